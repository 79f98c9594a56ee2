//! Pods that are gone while their processes run: after a deletion by force, or where the kubelet was away.
//!
//! Their units stay taken until the kernel shows no process of them in their control group, which is the last word on what uses a card's
//! memory. A file keeps what was granted, so that a plugin that starts knows it too; the kubelet's checkpoint loses it at the next
//! admission.
//!
//! What cannot be looked at counts as running: a pod's processes have ended where all folders that may hold its control group were
//! listed, and it has none or an empty one.
//!
//! Invariant: units are free for a pod that ended in the ordinary way as soon as the kubelet says so. It removes the control
//! group of a pod before the pod's object.

pub mod file;
pub mod groups;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cgroups::PodGroup;
use cluster::PodFacts;
use placement::units::PodUid;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::file::GrantsFile;
use self::groups::{HostGroups, Look};
use crate::metrics::Metrics;
use crate::pods::PodCache;
use crate::records::holders::Holder;
use crate::records::{Records, SharedRecords};

/// Pause between two looks while a pod lingers.
const PAUSE: Duration = Duration::from_millis(200);
/// A pod that was granted ids within this time and has a control group without processes may be about to get its first. Later it
/// has had some.
const YOUNG: Duration = Duration::from_secs(60);
/// Pause before the file is read or written again where that failed.
const FILE_PAUSE: Duration = Duration::from_secs(1);

/// Looks for pods that linger.
pub struct Lingering {
    /// The node's pods, by a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// The host's control groups.
    pub groups: HostGroups,
    /// The file of what was granted.
    pub file: GrantsFile,
    /// Where the pods are counted.
    pub metrics: Metrics,
}

impl Lingering {
    /// Takes in what an earlier process wrote down, as far as that can be read.
    pub fn load(&self) {
        if self.groups.look() == Look::NoKubelet {
            tracing::warn!(
                "--cgroup-dir: no control groups of a kubelet are there. Units of pods that are deleted by force are given to others \
                 while their processes may still run. Mount the host's /sys/fs/cgroup read-only and name it with this flag"
            );
        }
        self.take_in();
    }

    /// Takes in what an earlier process wrote down. Returns whether that is done.
    pub fn take_in(&self) -> bool {
        self.file.take_in(&mut self.records.lock().holders)
    }

    /// Waits until that is done.
    pub async fn taken_in(&self) {
        while !self.take_in() {
            sleep(FILE_PAUSE).await;
        }
    }

    /// Writes down what was granted.
    pub fn save(&self, records: &mut Records) {
        self.file.save(&mut records.holders);
    }

    /// Brings up to date which pods linger. Returns whether any does.
    pub fn look(&self) -> bool {
        let all = self.pods.all().into_iter();
        let known: HashMap<PodUid, Arc<PodFacts>> =
            all.map(|facts| (facts.uid.clone(), facts)).collect();
        let holds = |records: &Records, uid: &PodUid| {
            let facts = known.get(uid).filter(|facts| !facts.finished);
            facts.is_some_and(|facts| records.holds(facts))
        };
        let any_open = {
            let records = self.records.lock();
            records.holders.iter().any(|(uid, holder)| holder.lingers || !holds(&records, uid))
        };
        if !any_open {
            return false;
        }
        // Without the lock: files of the kernel, about one a pod.
        let groups = self.groups.look();
        let mut records = self.records.lock();
        records.holders.see(|uid| known.contains_key(uid));
        let decide = |(uid, holder): (&PodUid, &Holder)| {
            let decided = match (holds(&records, uid), &groups) {
                (true, _) => Some(false),
                (false, Look::Pods(pods)) => {
                    decide(pods.get(uid.as_str()), holder, known.contains_key(uid))
                }
                (false, Look::Failed) => decide(PodGroup::Unknown, holder, known.contains_key(uid)),
                (false, Look::NoKubelet) => None,
            };
            (uid.clone(), decided)
        };
        let decided: HashMap<PodUid, Option<bool>> = records.holders.iter().map(decide).collect();
        let changed = records.holders.decide(|uid| decided.get(uid).copied().flatten());
        let lingering = records.holders.lingering().count();
        self.metrics.lingering.set(i64::try_from(lingering).unwrap_or(i64::MAX));
        if changed {
            self.save(&mut records);
            drop(records);
            self.records.notify();
        }
        lingering > 0
    }

    /// Looks until the shutdown: at each change of pods and records, and all the while that a pod lingers.
    pub async fn run(self: Arc<Self>, shutdown: daemon::Shutdown) {
        let (mut pods, mut records) = (self.pods.changes(), self.records.changes());
        let mut again = interval(FILE_PAUSE);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looks = async {
            loop {
                let lingers = self.look();
                tokio::select! {
                    changed = pods.changed() => if changed.is_err() { return },
                    changed = records.changed() => if changed.is_err() { return },
                    () = sleep(PAUSE), if lingers => {}
                    _ = again.tick(), if self.file.is_behind() => self.save(&mut self.records.lock()),
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = looks => {}
        }
    }
}

/// Whether a pod lingers that holds no ids by the kubelet's records, or is gone; `None` where it is over.
fn decide(group: PodGroup, holder: &Holder, is_known: bool) -> Option<bool> {
    let is_young = holder.granted_at.elapsed() < YOUNG;
    match group {
        PodGroup::Populated | PodGroup::Unknown => Some(true),
        PodGroup::Empty => (is_young && !is_known).then_some(true),
        // Its pod is yet to be shown, and its control group to be made.
        PodGroup::Absent => (is_young && !holder.seen).then_some(false),
    }
}
