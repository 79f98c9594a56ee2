//! The pods of a gang get their places together, and are bound together.
//!
//! kube-scheduler asks about the unbound pods of a PodGroup one after the other, binds none of them meanwhile, and
//! tells no extender how that ends. So Filter gives each of them one node and keeps a place there
//! ([`Index::keep_in_group`](crate::view::Index::keep_in_group)), and Bind sends none of their bindings before each pod
//! that has a place has a reservation.
//!
//! ```text
//! Filter of each pod ──ask, answer──> Try ──Bind of each pod: wait──> all have a reservation: all are sent
//!                                                                └──> one has none, or does not come: none is sent
//! ```
//!
//! After a failed Bind kube-scheduler tries a pod again at once, alone where it has not yet heard of the others. So for
//! a second Filter answers with an error for pods of that group, after which it tries them together.
//!
//! Invariants: all waiting Binds of a try get the same outcome, which does not change. A pod is in one try at most.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::PodGroup;
use jiff::{SignedDuration, Timestamp};
use placement::units::PodUid;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::binder::BindError;
use crate::view::GpuPodId;

/// How long Binds wait for a further one: some milliseconds pass between them, unless kube-scheduler binds volumes
/// before.
const WAIT: Duration = Duration::from_secs(2);

/// How long a Bind waits in all: its caller waits 4 s.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Binds that wait at a time, of all gangs. Each has a connection, of which there are 1,024. Where more come, those of
/// their gang are sent; the places of its other pods are kept.
const MAX_WAITING: usize = 256;

/// After this time without a request, kube-scheduler has given a group up, or is binding its pods: a further request is
/// of a new try.
pub(crate) const IDLE: SignedDuration = SignedDuration::from_secs(1);

/// After this time without a request, and without a Bind, a group of which a pod was refused has been given up.
const GIVEN_UP: SignedDuration = SignedDuration::from_millis(100);

/// How long pods of a group are not placed after a failed Bind, so that kube-scheduler hears of those of all.
const PAUSE: Duration = Duration::from_secs(1);

/// How long after its first request a replica places no others while gangs are bound by half: the one that led before
/// may have been killed between the writes of their bindings.
const RECOVERY: SignedDuration = SignedDuration::from_secs(10);

/// How long the gangs that are bound by half are taken to be the same.
const RECOVERY_STEP: SignedDuration = SignedDuration::from_millis(200);

/// A group is forgotten this long after the last request for a pod of it. Its pods are then asked about again.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// The error of Filter in the pause after a failed Bind.
const TRIED_AGAIN: &str =
    "a pod of its group could not be bound: the group is tried again in a second";

/// The error of Filter for other pods during the recovery.
const RECOVERS: &str =
    "this replica has just begun to lead, and the rest of a gang that is bound by half comes first";

/// The error of a Bind without a request before.
const UNKNOWN: &str = "this replica was not asked for their places; trying again will help";

/// Whether the pods of a try are bound, or why not.
type GangResult = Result<(), Arc<str>>;

/// The gangs that kube-scheduler has lately asked about.
#[derive(Debug)]
pub struct Gangs {
    tries: Mutex<Tries>,
    waiting: Semaphore,
}

#[derive(Debug, Default)]
struct Tries {
    groups: HashMap<PodGroup, Group>,
    /// Groups of which a pod was refused, for [`Gangs::given_up`].
    refused: HashSet<PodGroup>,
    all: HashMap<u64, Try>,
    /// The try of each pod that has, or had, a place.
    of: HashMap<PodUid, u64>,
    begun: u64,
    swept_at: Timestamp,
    recovery: Option<Recovery>,
}

/// What is known of gangs that were bound by half when this replica was first asked.
#[derive(Debug)]
struct Recovery {
    began: Timestamp,
    looked_at: Timestamp,
    half_bound: HashSet<PodGroup>,
}

/// What kube-scheduler has asked about a group.
#[derive(Debug)]
struct Group {
    /// The try that it is at; none before a pod has a place, and from the first Bind on.
    open: Option<u64>,
    /// The pods that it has asked about for the current placement, and the last of them.
    asked: HashSet<PodUid>,
    last: PodUid,
    asked_at: Timestamp,
    /// Whether one of them was refused.
    has_refused: bool,
    /// When a try of several pods has failed.
    failed_at: Option<Instant>,
    /// Pods that others have waited for in vain. They are not waited for again.
    late: HashSet<PodUid>,
}

/// One attempt of kube-scheduler's to place the unbound pods of a group. It may ask about all of them several times,
/// each time with other nodes, and take any of these placements.
#[derive(Debug)]
struct Try {
    group: PodGroup,
    /// The pods that have, or had, a place.
    placed: BTreeSet<PodUid>,
    /// Those of them that have a reservation, and when the last one came.
    reserved: BTreeSet<PodUid>,
    reserved_at: Instant,
    outcome: watch::Sender<Option<GangResult>>,
}

/// What a Bind has to do.
#[derive(Debug)]
enum Turn {
    Go,
    Wait(u64, watch::Receiver<Option<GangResult>>),
    Refused,
}

impl Default for Gangs {
    fn default() -> Self {
        Self { tries: Mutex::default(), waiting: Semaphore::new(MAX_WAITING) }
    }
}

impl Gangs {
    /// Records Filter's request for a pod of a group. Returns the pods whose kept places end with it: its own, and
    /// where this is the next placement or a new try, those of the last one.
    ///
    /// # Errors
    ///
    /// Shortly after a try has failed.
    pub fn ask(
        &self,
        group: &PodGroup,
        pod: &PodUid,
        now: Timestamp,
    ) -> Result<Vec<PodUid>, &'static str> {
        self.tries().ask(group, pod, now)
    }

    /// Records whether the pod that was asked about last has got a place.
    pub fn answer(&self, group: &PodGroup, pod: &PodUid, has_place: bool) {
        self.tries().answer(group, pod, has_place);
    }

    /// The pods whose places end, since kube-scheduler has given their groups up.
    pub fn given_up(&self, now: Timestamp) -> Vec<PodUid> {
        let mut tries = self.tries();
        let Tries { groups, refused, all, .. } = &mut *tries;
        let mut ended = Vec::new();
        refused.retain(|name| {
            let Some(group) = groups.get_mut(name).filter(|it| it.has_refused) else {
                return false;
            };
            group.has_refused = now.duration_since(group.asked_at).abs() < GIVEN_UP;
            if !group.has_refused {
                let open = group.open.and_then(|number| all.get(&number));
                ended.extend(open.into_iter().flat_map(Try::missing).cloned());
            }
            group.has_refused
        });
        ended
    }

    /// Why the pod is not placed yet: gangs that are bound by half when this replica is first asked come before it.
    pub fn waits_for_half_bound(
        &self,
        group: Option<&PodGroup>,
        now: Timestamp,
        look: impl FnOnce() -> HashSet<PodGroup>,
    ) -> Option<&'static str> {
        let mut tries = self.tries();
        let known = tries.recovery.get_or_insert_with(|| Recovery {
            began: now,
            looked_at: Timestamp::MIN,
            half_bound: HashSet::new(),
        });
        if now.duration_since(known.began).abs() >= RECOVERY {
            return None;
        }
        if now.duration_since(known.looked_at).abs() >= RECOVERY_STEP {
            known.looked_at = now;
            known.half_bound = look();
        }
        let comes_first = group.is_some_and(|group| known.half_bound.contains(group));
        (!known.half_bound.is_empty() && !comes_first).then_some(RECOVERS)
    }

    /// Waits, with a reservation, for those of the pod's gang. `is_in_group`: whether the pod is known to be in one.
    ///
    /// # Errors
    ///
    /// Why the pods of the gang are not bound.
    pub async fn wait(&self, pod: &PodUid, is_in_group: bool) -> GangResult {
        let turn = self.tries().reserve(pod, is_in_group);
        let (number, mut outcome) = match turn {
            Turn::Go => return Ok(()),
            Turn::Refused => return Err(UNKNOWN.into()),
            Turn::Wait(number, outcome) => (number, outcome),
        };
        let Ok(_permit) = self.waiting.try_acquire() else {
            return self.tries().decide(number, Ok(()));
        };
        let longest = Instant::now() + LONGEST_WAIT;
        loop {
            let Some(reserved_at) = self.tries().all.get(&number).map(|it| it.reserved_at) else {
                return Ok(());
            };
            let until = longest.min(reserved_at + WAIT);
            if Instant::now() >= until {
                return self.tries().give_up(number);
            }
            if let Ok(decided) = timeout_at(until, outcome.wait_for(Option::is_some)).await {
                return decided.ok().and_then(|it| it.clone()).unwrap_or(Ok(()));
            }
        }
    }

    /// Records that a pod cannot be bound: nor are those that wait for it.
    pub fn fail(&self, pod: &GpuPodId, why: &BindError) {
        let mut tries = self.tries();
        if let Some(number) = tries.of.get(&pod.uid).copied() {
            tries.decide(number, Err(format!("pod {} has no place ({why})", pod.name).into())).ok();
        }
    }

    // Every change is complete when the lock is released, except after a panic of the allocator.
    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tries {
    fn ask(
        &mut self,
        group: &PodGroup,
        pod: &PodUid,
        now: Timestamp,
    ) -> Result<Vec<PodUid>, &'static str> {
        self.sweep(now);
        let known = self.groups.entry(group.clone()).or_insert_with(|| Group::new(pod, now));
        if known.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(TRIED_AGAIN);
        }
        let mut ended = Vec::new();
        let is_again = known.asked.contains(pod);
        let open = known.open.and_then(|number| self.all.get(&number));
        let has_place = open.is_some_and(|open| open.placed.contains(pod));
        if now.duration_since(known.asked_at).abs() >= IDLE {
            known.restart(None);
        } else if is_again && known.last == *pod {
            // Its nominated node did not do.
            ended.push(pod.clone());
        } else if is_again && has_place {
            // The next placement.
            ended.extend(open.into_iter().flat_map(Try::missing).cloned());
            known.restart(known.open);
        } else if is_again {
            // The pods with places are being bound, and this one is tried once more.
            known.restart(None);
        }
        known.asked.insert(pod.clone());
        known.last = pod.clone();
        known.asked_at = now;
        let earlier = self.of.get(pod).copied().filter(|number| Some(*number) != known.open);
        if let Some(earlier) = earlier.and_then(|number| self.all.get(&number))
            && earlier.outcome.borrow().is_none()
        {
            ended.extend(earlier.missing().cloned());
            if !earlier.reserved.contains(pod) {
                known.late.extend(earlier.missing().cloned());
            }
            if !earlier.reserved.is_empty() {
                known.failed_at = Some(Instant::now());
            }
            earlier.decide(Err("kube-scheduler tries them anew".into()));
        }
        Ok(ended)
    }

    fn answer(&mut self, group: &PodGroup, pod: &PodUid, has_place: bool) {
        let Some(known) = self.groups.get_mut(group) else { return };
        if !has_place {
            known.has_refused = true;
            self.refused.insert(group.clone());
            return;
        }
        let number = *known.open.get_or_insert_with(|| {
            self.begun += 1;
            self.begun
        });
        let open = self.all.entry(number).or_insert_with(|| Try::new(group));
        open.placed.insert(pod.clone());
        let earlier = self.of.insert(pod.clone(), number).filter(|earlier| *earlier != number);
        if let Some((number, earlier)) = earlier.and_then(|it| Some((it, self.all.get_mut(&it)?))) {
            earlier.placed.remove(pod);
            if earlier.placed.is_empty() && earlier.outcome.receiver_count() == 0 {
                self.all.remove(&number);
            }
        }
    }

    /// What a pod with a reservation does now.
    fn reserve(&mut self, pod: &PodUid, is_in_group: bool) -> Turn {
        let number = self.of.get(pod).copied();
        let Some((number, of_pod)) = number.and_then(|it| Some((it, self.all.get_mut(&it)?)))
        else {
            return if is_in_group { Turn::Refused } else { Turn::Go };
        };
        let Some(group) = self.groups.get_mut(&of_pod.group) else { return Turn::Refused };
        group.late.remove(pod);
        let is_last = of_pod.placed.iter().all(|it| it == pod || group.late.contains(it));
        if is_last && matches!(&*of_pod.outcome.borrow(), Some(Err(_))) {
            // The others have gone on without it.
            return Turn::Go;
        }
        of_pod.reserved.insert(pod.clone());
        of_pod.reserved_at = Instant::now();
        // kube-scheduler binds once it has asked about all of them.
        if group.open == Some(number) {
            group.restart(None);
        }
        if of_pod.missing().all(|missing| group.late.contains(missing)) {
            of_pod.decide(Ok(()));
        }
        Turn::Wait(number, of_pod.outcome.subscribe())
    }

    /// Ends the waiting of a try whose Binds have not all come.
    fn give_up(&mut self, number: u64) -> GangResult {
        let Some(of_pod) = self.all.get(&number) else { return Ok(()) };
        let missing: Vec<PodUid> = of_pod.missing().cloned().collect();
        if of_pod.outcome.borrow().is_none()
            && let Some(group) = self.groups.get_mut(&of_pod.group)
        {
            group.late.extend(missing.iter().cloned());
        }
        let why = format!("no binding of {} of its pods came within seconds", missing.len());
        self.decide(number, Err(why.into()))
    }

    /// Tells the outcome of a try, unless there is one. Returns the outcome.
    fn decide(&mut self, number: u64, outcome: GangResult) -> GangResult {
        let Some(of_pod) = self.all.get(&number) else { return Ok(()) };
        let has_failed = outcome.is_err() && of_pod.placed.len() > 1;
        if of_pod.decide(outcome)
            && has_failed
            && let Some(group) = self.groups.get_mut(&of_pod.group)
        {
            group.failed_at = Some(Instant::now());
        }
        of_pod.outcome.borrow().clone().unwrap_or(Ok(()))
    }

    fn sweep(&mut self, now: Timestamp) {
        if now.duration_since(self.swept_at).abs() < FORGET_AFTER / 2 {
            return;
        }
        self.swept_at = now;
        self.groups.retain(|_, it| now.duration_since(it.asked_at).abs() < FORGET_AFTER);
        self.all
            .retain(|_, it| self.groups.contains_key(&it.group) || it.outcome.receiver_count() > 0);
        self.of.retain(|_, number| self.all.contains_key(number));
    }
}

impl Group {
    fn new(pod: &PodUid, now: Timestamp) -> Self {
        Self {
            open: None,
            asked: HashSet::new(),
            last: pod.clone(),
            asked_at: now,
            has_refused: false,
            failed_at: None,
            late: HashSet::new(),
        }
    }

    /// Begins a placement, of a try that is open or of a new one.
    fn restart(&mut self, open: Option<u64>) {
        self.open = open;
        self.asked.clear();
        self.has_refused = false;
    }
}

impl Try {
    fn new(group: &PodGroup) -> Self {
        Self {
            group: group.clone(),
            placed: BTreeSet::new(),
            reserved: BTreeSet::new(),
            reserved_at: Instant::now(),
            outcome: watch::Sender::new(None),
        }
    }

    /// The pods that have a place and no reservation.
    fn missing(&self) -> impl Iterator<Item = &PodUid> {
        self.placed.difference(&self.reserved)
    }

    /// Tells the outcome, unless there is one. Returns whether there was none.
    fn decide(&self, outcome: GangResult) -> bool {
        self.outcome.send_if_modified(|decided| {
            let is_first = decided.is_none();
            if is_first {
                *decided = Some(outcome);
            }
            is_first
        })
    }
}
