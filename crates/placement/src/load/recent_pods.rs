//! Pods that were bound to a node recently or are in flight to it: for crane's hot value, and for the use that
//! readings do not show yet.
//!
//! Invariants: a pod counts once, however often its binding is recorded. An in-flight pod that is never bound expires:
//! kube-scheduler unassigns members of a gang without a request to extenders. A reading shows a pod from the start of
//! its containers on, not from its binding: an image may take long to pull, and some never come.

use jiff::{SignedDuration, Timestamp};

use crate::demand::{Demand, Rates};
use crate::policy::HotRule;
use crate::reading::{MAX_AHEAD, is_far_ahead, is_fresh};
use crate::resources::{Amounts, Resource};
use crate::units::PodUid;

/// The most bindings that are kept for a node; crane keeps 1,024 for the whole cluster.
const MAX_BOUND: usize = 1024;

/// The most in-flight pods that are kept for a node.
const MAX_IN_FLIGHT: usize = 1024;

/// How long an in-flight pod counts. kube-scheduler 1.36 binds 91 to 297 pods a second, each some milliseconds
/// after its request to the extender (measured at 20 and 1,000 nodes).
pub const IN_FLIGHT_MAX_AGE: SignedDuration = SignedDuration::from_secs(30);

/// How long an in-flight pod counts whose volumes are bound before it is: kube-scheduler waits so long for them (by
/// default, `bindTimeoutSeconds` of its plugin VolumeBinding).
pub const VOLUMES_BIND_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// A bound pod whose containers have not started counts for this long: until then an image may still be pulled. Later
/// it probably never starts.
pub const STARTS_WITHIN: SignedDuration = SignedDuration::from_hours(1);

/// The pods that were bound to one node recently, and the in-flight pods that count on it.
///
/// # Examples
///
/// ```
/// use jiff::{SignedDuration, Timestamp};
/// use placement::load::RecentPods;
/// use placement::policy::HotRule;
/// use placement::resources::{Amounts, Resource};
///
/// let five_minutes = SignedDuration::from_mins(5);
/// let (rule, now) = (HotRule { range: five_minutes, count: 2 }, Timestamp::UNIX_EPOCH);
/// let mut recent = RecentPods::default();
/// for pod in ["a", "b", "b"] {
///     recent.bound(&pod.into(), now, Amounts { cpu: 0.5, memory: 1e9 }, five_minutes);
/// }
/// // Two pods, 2 to a whole hot value; "b" counts once.
/// assert_eq!(recent.hot_value(&[rule], now), 1);
/// // A reading of this moment shows nothing of them.
/// assert_eq!(recent.use_not_in_reading(Resource::Cpu, now, five_minutes, now), 1.0);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecentPods {
    /// Bound pods by time, the oldest first.
    bound: Vec<RecentPod>,
    /// In-flight pods by time, the oldest first.
    in_flight: Vec<InFlightPod>,
    /// What pods in flight declare, and bound ones that the node's [`DeclaredPods`](super::DeclaredPods) do not have
    /// yet.
    declared: Vec<RecentDeclaration>,
}

#[derive(Debug, Clone, PartialEq)]
struct RecentPod {
    /// When it was bound.
    at: Timestamp,
    uid: PodUid,
    /// What it will probably use; 0 if it has ended.
    uses: Amounts,
    /// When all of its containers had started; `None` while they have not.
    started_at: Option<Timestamp>,
    ended: bool,
}

impl RecentPod {
    /// The part of its use that a reading taken at `read_at` does not show, 0 to 1.
    fn unseen(&self, read_at: Timestamp, visible_after: SignedDuration) -> f64 {
        match self.started_at {
            Some(started_at) => 1.0 - part_of(read_at.duration_since(started_at), visible_after),
            None if read_at.duration_since(self.at) < STARTS_WITHIN => 1.0,
            None => 0.0,
        }
    }

    /// Whether nothing of it counts any more, `horizon` after its binding and its start.
    fn is_over(&self, now: Timestamp, horizon: SignedDuration) -> bool {
        let since_binding = now.duration_since(self.at);
        let may_start = self.started_at.is_none() && since_binding < STARTS_WITHIN;
        let starts = may_start && self.uses != Amounts::default();
        let since_start = self.started_at.map_or(since_binding, |at| now.duration_since(at));
        !starts && since_binding > horizon && since_start > horizon
    }
}

#[derive(Debug, Clone, PartialEq)]
struct InFlightPod {
    /// The time of kube-scheduler's request.
    at: Timestamp,
    /// How long it counts after that.
    lasts: SignedDuration,
    uid: PodUid,
    /// What it will probably use.
    uses: Amounts,
}

/// What a pod declares that will probably be bound, or was just bound.
#[derive(Debug, Clone, PartialEq)]
struct RecentDeclaration {
    /// The time of kube-scheduler's request.
    at: Timestamp,
    /// How long it counts after that.
    lasts: SignedDuration,
    uid: PodUid,
    declares: Rates,
}

impl RecentPods {
    /// Records that `pod` was bound at `at` and will probably use `uses`; it is no longer in flight. Drops bindings
    /// that are older than the newest by more than `horizon`. A later call can set the use of a known binding. Returns
    /// whether anything changed.
    pub fn bound(
        &mut self,
        pod: &PodUid,
        at: Timestamp,
        uses: Amounts,
        horizon: SignedDuration,
    ) -> bool {
        // What it declares counts on until the node's declared pods have it.
        let was_in_flight = self.end_in_flight(pod);
        if let Some(known) = self.bound.iter_mut().find(|other| other.uid == *pod) {
            let sets_use = known.uses != uses && known.uses == Amounts::default() && !known.ended;
            if sets_use {
                known.uses = uses;
            }
            return was_in_flight || sets_use;
        }
        let uid = pod.clone();
        let started_at = None;
        insert(&mut self.bound, RecentPod { at, uid, uses, started_at, ended: false });
        let newest = self.bound.last().map_or(at, |newest| newest.at);
        self.bound.retain(|bound| !bound.is_over(newest, horizon));
        let drop = self.bound.len().saturating_sub(MAX_BOUND);
        self.bound.drain(..drop);
        true
    }

    /// Records that all containers of a bound pod had started at `at`. A later call changes nothing: a container may
    /// start again. Returns whether anything changed.
    pub fn started(&mut self, pod: &PodUid, at: Timestamp) -> bool {
        let known = self.bound.iter_mut().find(|bound| bound.uid == *pod);
        let Some(bound) = known.filter(|bound| bound.started_at.is_none()) else { return false };
        bound.started_at = Some(at);
        true
    }

    /// Records that `pod` will probably be bound here. Does nothing if it is known to be bound. Returns whether
    /// anything changed.
    pub fn in_flight(&mut self, pod: &PodUid, now: Timestamp, uses: Amounts) -> bool {
        if self.is_bound(pod) {
            return false;
        }
        self.end_in_flight(pod);
        self.in_flight.retain(|pod| is_in_flight(pod.at, pod.lasts, now));
        let drop = (self.in_flight.len() + 1).saturating_sub(MAX_IN_FLIGHT);
        self.in_flight.drain(..drop);
        let place = self.in_flight.partition_point(|other| other.at <= now);
        let (uid, lasts) = (pod.clone(), IN_FLIGHT_MAX_AGE);
        self.in_flight.insert(place, InFlightPod { at: now, lasts, uid, uses });
        true
    }

    /// An in-flight pod has volumes that are bound before it is: it counts for longer. Returns whether it is in flight.
    pub fn waits_for_volumes(&mut self, pod: &PodUid) -> bool {
        for declared in self.declared.iter_mut().filter(|other| other.uid == *pod) {
            declared.lasts = VOLUMES_BIND_WITHIN;
        }
        let known = self.in_flight.iter_mut().find(|other| other.uid == *pod);
        known.map(|pod| pod.lasts = VOLUMES_BIND_WITHIN).is_some()
    }

    /// Records what a pod declares that will probably be bound here, until [`RecentPods::forget_declared`] or its
    /// in-flight entry would expire.
    pub fn declared(&mut self, pod: &PodUid, now: Timestamp, declares: Rates) {
        self.forget_declared(pod);
        self.declared.retain(|pod| is_in_flight(pod.at, pod.lasts, now));
        let drop = (self.declared.len() + 1).saturating_sub(MAX_IN_FLIGHT);
        self.declared.drain(..drop);
        let (uid, lasts) = (pod.clone(), IN_FLIGHT_MAX_AGE);
        self.declared.push(RecentDeclaration { at: now, lasts, uid, declares });
    }

    /// What a pod declares no longer counts here. Returns whether it did.
    pub fn forget_declared(&mut self, pod: &PodUid) -> bool {
        self.forget_declared_of(|other| other == pod)
    }

    /// As [`RecentPods::forget_declared`], for each pod for which `is_known` returns true.
    pub fn forget_declared_of(&mut self, is_known: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.declared.len();
        self.declared.retain(|pod| !is_known(&pod.uid));
        self.declared.len() != before
    }

    /// Whether anything that a pod in flight declares is kept.
    pub fn declares_in_flight(&self) -> bool {
        !self.declared.is_empty()
    }

    /// What pods in flight declare of `demand`, each `most` at most: bytes a second.
    pub(crate) fn declared_in_flight(&self, demand: Demand, most: f64, now: Timestamp) -> f64 {
        let rate = |pod: &RecentDeclaration| (*pod.declares.get(demand) as f64).min(most);
        self.declared.iter().filter(|pod| is_in_flight(pod.at, pod.lasts, now)).map(rate).sum()
    }

    /// Records that a pod has ended: it uses nothing any more. Its binding still counts in the hot value. Returns
    /// whether anything changed.
    pub fn ended(&mut self, pod: &PodUid) -> bool {
        let was_in_flight = self.remove_in_flight(pod);
        let known = self.bound.iter_mut().find(|bound| bound.uid == *pod);
        let Some(bound) = known.filter(|bound| !bound.ended) else { return was_in_flight };
        (bound.uses, bound.ended) = (Amounts::default(), true);
        true
    }

    /// The use of pods that a reading taken at `read_at` does not include at `now`: all of the use of in-flight pods
    /// and of bound pods whose containers have not started. Of another bound pod's use, the part of `visible_after`
    /// that had not passed since its start.
    pub fn use_not_in_reading(
        &self,
        resource: Resource,
        read_at: Timestamp,
        visible_after: SignedDuration,
        now: Timestamp,
    ) -> f64 {
        let unseen = |pod: &RecentPod| pod.unseen(read_at, visible_after) * pod.uses.get(resource);
        let counts = |pod: &&InFlightPod| is_in_flight(pod.at, pod.lasts, now);
        let in_flight: f64 =
            self.in_flight.iter().filter(counts).map(|pod| pod.uses.get(resource)).sum();
        self.bound.iter().map(unseen).sum::<f64>() + in_flight
    }

    /// Whether the pod is in flight to this node.
    pub fn has_in_flight(&self, pod: &PodUid) -> bool {
        self.in_flight.iter().any(|other| other.uid == *pod)
            || self.declared.iter().any(|other| other.uid == *pod)
    }

    /// Removes a pod from the in-flight pods. Returns whether it was one.
    pub fn remove_in_flight(&mut self, pod: &PodUid) -> bool {
        let declared = self.forget_declared(pod);
        self.end_in_flight(pod) || declared
    }

    fn end_in_flight(&mut self, pod: &PodUid) -> bool {
        let before = self.in_flight.len();
        self.in_flight.retain(|other| other.uid != *pod);
        self.in_flight.len() != before
    }

    /// Whether the pod's binding is known.
    pub fn is_bound(&self, pod: &PodUid) -> bool {
        self.bound.iter().any(|other| other.uid == *pod)
    }

    /// How many entries are kept: of pods that are bound and in flight, and of what pods declare.
    pub fn len(&self) -> usize {
        self.bound.len() + self.in_flight.len() + self.declared.len()
    }

    /// Whether no pod is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pods count at `now` and were bound, or became in flight, later than `now - range`. If the clock was set
    /// back by more than [`MAX_AHEAD`], those from before do not count.
    pub fn within(&self, range: SignedDuration, now: Timestamp) -> usize {
        let old = self.bound.partition_point(|pod| now.duration_since(pod.at) >= range);
        let known = self.bound.partition_point(|pod| !is_far_ahead(pod.at, now));
        let counts = |pod: &&InFlightPod| is_in_flight(pod.at, pod.lasts.min(range), now);
        known.saturating_sub(old) + self.in_flight.iter().filter(counts).count()
    }

    /// When pods stop counting, in the hot value of these rules or as in flight: a time, and how long after it. Also
    /// when a pod starts counting that was recorded before the clock was set back.
    pub(super) fn change_times<'a>(
        &'a self,
        rules: &'a [HotRule],
    ) -> impl Iterator<Item = (Timestamp, SignedDuration)> + 'a {
        let bound = self.bound.iter().flat_map(|pod| {
            rules.iter().map(|rule| rule.range).chain([-MAX_AHEAD]).map(|range| (pod.at, range))
        });
        let in_flight = self.in_flight.iter().flat_map(|pod| {
            let ranges = rules.iter().map(|rule| rule.range.min(pod.lasts));
            ranges.chain([pod.lasts, -MAX_AHEAD]).map(|range| (pod.at, range))
        });
        let declared = self
            .declared
            .iter()
            .flat_map(|pod| [pod.lasts, -MAX_AHEAD].map(|range| (pod.at, range)));
        bound.chain(in_flight).chain(declared)
    }

    /// crane's hot value: the sum over the rules of ⌊pods within range ÷ count⌋.
    pub fn hot_value(&self, rules: &[HotRule], now: Timestamp) -> u64 {
        if self.bound.is_empty() && self.in_flight.is_empty() {
            return 0;
        }
        let of =
            |rule: &HotRule| self.within(rule.range, now) as u64 / u64::from(rule.count.max(1));
        rules.iter().map(of).sum()
    }
}

/// The part of `span` that has passed, 0 to 1.
pub(super) fn part_of(passed: SignedDuration, span: SignedDuration) -> f64 {
    (passed.as_secs_f64() / span.as_secs_f64().max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

/// Whether an in-flight entry recorded at `at`, which `lasts` so long, counts at `now`. If the clock was set back by
/// more than [`MAX_AHEAD`], it does not: otherwise it would count until the clock reaches `at` again.
#[must_use]
pub fn is_in_flight(at: Timestamp, lasts: SignedDuration, now: Timestamp) -> bool {
    is_fresh(at, now, lasts)
}

fn insert(pods: &mut Vec<RecentPod>, pod: RecentPod) {
    let place = pods.partition_point(|other| other.at <= pod.at);
    pods.insert(place, pod);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE_MINUTES: SignedDuration = SignedDuration::from_mins(5);
    const USES: Amounts = Amounts { cpu: 2.0, memory: 0.0 };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn pod(n: i64) -> PodUid {
        PodUid::from(format!("p{n}"))
    }

    #[test]
    fn hot_value_adds_the_floors_of_each_rule() {
        let rules = [
            HotRule { range: FIVE_MINUTES, count: 5 },
            HotRule { range: SignedDuration::from_mins(1), count: 2 },
        ];
        let mut recent = RecentPods::default();
        for i in 0..11 {
            recent.bound(&pod(i), at(i * 20), USES, FIVE_MINUTES);
        }
        // All 11 lie within 5 minutes of second 200: ⌊11/5⌋; three within the last minute: ⌊3/2⌋.
        assert_eq!(recent.hot_value(&rules, at(200)), 2 + 1);
    }

    #[test]
    fn a_pod_counts_once_in_flight_and_bound() {
        let mut recent = RecentPods::default();
        assert!(recent.in_flight(&pod(1), at(0), USES));
        assert!(recent.in_flight(&pod(1), at(1), USES));
        assert_eq!(recent.within(FIVE_MINUTES, at(2)), 1);
        assert!(recent.bound(&pod(1), at(2), USES, FIVE_MINUTES));
        assert!(!recent.bound(&pod(1), at(3), USES, FIVE_MINUTES));
        assert!(!recent.in_flight(&pod(1), at(4), USES));
        assert_eq!(recent.within(FIVE_MINUTES, at(4)), 1);
    }

    #[test]
    fn a_pod_in_flight_that_is_never_bound_stops_counting_by_itself() {
        let mut recent = RecentPods::default();
        recent.in_flight(&pod(1), at(0), USES);
        assert_eq!([29, 30].map(|second| recent.within(FIVE_MINUTES, at(second))), [1, 0]);
    }

    #[test]
    fn a_pod_counts_while_kube_scheduler_waits_for_its_volumes() {
        let rates = Rates { egress: 5, ..Rates::NONE };
        let mut recent = RecentPods::default();
        assert!(!recent.waits_for_volumes(&pod(1)));
        recent.in_flight(&pod(1), at(0), USES);
        recent.declared(&pod(1), at(0), rates);
        assert!(recent.waits_for_volumes(&pod(1)));
        // Another pod does not sweep it.
        recent.in_flight(&pod(2), at(590), Amounts::default());
        let counted = |now| {
            let declared = recent.declared_in_flight(Demand::Egress, 9.0, at(now));
            (unseen(&recent, now, now), declared)
        };
        assert_eq!((counted(599), counted(600)), ((2.0, 5.0), (0.0, 0.0)));
        assert!(recent.change_times(&[]).any(|(at, after)| at + after == self::at(600)));
        // The next attempt begins anew.
        recent.in_flight(&pod(1), at(599), USES);
        assert_eq!(unseen(&recent, 629, 629), 0.0);
    }

    #[test]
    fn a_bound_pod_does_not_make_a_node_hot_for_a_day_after_the_clock_was_set_back() {
        let rules = [HotRule { range: FIVE_MINUTES, count: 1 }];
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(86_400), USES, FIVE_MINUTES);
        let counted = [86_400, 86_340, 86_339, 0].map(|now| recent.hot_value(&rules, at(now)));
        assert_eq!(counted, [1, 1, 0, 0]);
        // What was prepared holds until it counts again.
        assert!(recent.change_times(&rules).any(|(at, after)| at + after == self::at(86_340)));
    }

    #[test]
    fn a_pod_in_flight_does_not_outlive_a_clock_that_is_set_back() {
        let rules = [HotRule { range: FIVE_MINUTES, count: 1 }];
        let mut recent = RecentPods::default();
        recent.in_flight(&pod(1), at(3_600), USES);
        let counted = |recent: &RecentPods, now| {
            (recent.within(FIVE_MINUTES, at(now)), unseen(recent, now, now))
        };
        assert_eq!((counted(&recent, 3_540), counted(&recent, 3_539)), ((1, 2.0), (0, 0.0)));
        // It would count again from then on: what was prepared holds until there.
        assert!(recent.change_times(&rules).any(|(at, after)| at + after == self::at(3_540)));
        recent.in_flight(&pod(2), at(0), USES);
        assert_eq!((recent.len(), counted(&recent, 0)), (1, (1, 2.0)));
    }

    #[test]
    fn bindings_beyond_the_horizon_are_dropped() {
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(0), USES, SignedDuration::from_secs(60));
        recent.started(&pod(1), at(0));
        recent.bound(&pod(2), at(61), USES, SignedDuration::from_secs(60));
        assert!(!recent.is_bound(&pod(1)) && recent.is_bound(&pod(2)));
    }

    #[test]
    fn a_late_binding_is_counted_in_its_place() {
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(50), USES, FIVE_MINUTES);
        recent.bound(&pod(2), at(10), USES, FIVE_MINUTES);
        assert_eq!(recent.within(SignedDuration::from_secs(30), at(60)), 1);
    }

    #[test]
    fn memory_is_bounded_however_many_pods_there_are() {
        let mut recent = RecentPods::default();
        for i in 0..3_000 {
            recent.bound(&pod(i), at(0), USES, FIVE_MINUTES);
            recent.in_flight(&pod(10_000 + i), at(0), USES);
        }
        assert_eq!((recent.bound.len(), recent.in_flight.len()), (MAX_BOUND, MAX_IN_FLIGHT));
    }

    fn unseen(recent: &RecentPods, read_at: i64, now: i64) -> f64 {
        recent.use_not_in_reading(Resource::Cpu, at(read_at), FIVE_MINUTES, at(now))
    }

    #[test]
    fn a_started_pod_counts_by_the_part_of_the_window_before_its_start() {
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(1_000), USES, FIVE_MINUTES);
        assert!(recent.started(&pod(1), at(1_000)) && !recent.started(&pod(1), at(1_900)));
        for (read_at, expected) in
            [(900, 2.0), (1_000, 2.0), (1_150, 1.0), (1_300, 0.0), (2_000, 0.0)]
        {
            assert_eq!(unseen(&recent, read_at, 2_000), expected, "{read_at}");
        }
    }

    #[test]
    fn a_bound_pod_counts_whole_until_its_containers_start() {
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(0), USES, FIVE_MINUTES);
        assert_eq!((unseen(&recent, 3_599, 3_599), unseen(&recent, 3_600, 3_600)), (2.0, 0.0));
        // Bindings of other pods do not drop it meanwhile.
        recent.bound(&pod(2), at(1_200), Amounts::default(), FIVE_MINUTES);
        recent.started(&pod(1), at(1_200));
        assert_eq!((unseen(&recent, 1_200, 1_200), unseen(&recent, 1_350, 1_350)), (2.0, 1.0));
        recent.bound(&pod(3), at(1_500), Amounts::default(), FIVE_MINUTES);
        assert!(recent.is_bound(&pod(1)));
        recent.bound(&pod(4), at(1_501), Amounts::default(), FIVE_MINUTES);
        assert!(!recent.is_bound(&pod(1)) && recent.is_bound(&pod(3)));
    }

    #[test]
    fn a_pod_in_flight_counts_whole_and_only_for_some_time() {
        let mut recent = RecentPods::default();
        recent.in_flight(&pod(1), at(0), USES);
        assert_eq!((unseen(&recent, 29, 29), unseen(&recent, 30, 30)), (2.0, 0.0));
    }

    #[test]
    fn a_pod_that_has_ended_uses_nothing_and_stays_in_the_hot_value() {
        let mut recent = RecentPods::default();
        recent.bound(&pod(1), at(0), USES, FIVE_MINUTES);
        assert!(recent.ended(&pod(1)) && !recent.ended(&pod(1)) && !recent.ended(&pod(2)));
        // A late event of its binding does not make it use anything.
        recent.bound(&pod(1), at(0), USES, FIVE_MINUTES);
        assert_eq!((unseen(&recent, 60, 60), recent.within(FIVE_MINUTES, at(60))), (0.0, 1));
    }
}
