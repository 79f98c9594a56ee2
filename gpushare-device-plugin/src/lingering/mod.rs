//! Deleted pods whose processes still run: after a deletion by force, or a deletion while the kubelet was down.
//!
//! Their units stay in use until the kernel shows no process in their control group, since only processes use a GPU's
//! memory. Grants are saved in a file for a restarted plugin; the kubelet's checkpoint loses them at the next
//! admission.
//!
//! Unreadable control groups count as running: a pod's processes have ended only if all folders that may hold its
//! control group were listed, and it has none or an empty one.
//!
//! Invariant: the units of a pod that ended normally are free as soon as the kubelet frees them. The kubelet removes a
//! pod's control group before the pod's object.

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
use self::groups::{HostGroups, ReadOutcome};
use crate::metrics::Metrics;
use crate::pods::PodCache;
use crate::records::{PodRecord, Presence, Records, SharedRecords};

/// Pause between two updates while a pod lingers.
const PAUSE: Duration = Duration::from_millis(200);
/// A pod with an empty control group may be about to start its first process within this time after a grant. Later its
/// processes have ended.
const YOUNG: Duration = Duration::from_secs(60);
/// Pause before a failed read or write of the file is retried.
const FILE_PAUSE: Duration = Duration::from_secs(1);

/// Detects pods that linger.
pub struct Lingering {
    /// The node's pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// The host's control groups.
    pub groups: HostGroups,
    /// The file of saved grants.
    pub file: GrantsFile,
    /// Counts the pods that linger.
    pub metrics: Metrics,
}

impl Lingering {
    /// Loads the grants of earlier processes if the file can be read, and warns if the host's control groups are not
    /// mounted.
    pub fn load(&self) {
        if self.groups.read() == ReadOutcome::NoKubelet {
            tracing::warn!(
                "no control groups of a kubelet are in /sys/fs/cgroup below --host-root. Units of pods that are \
                 deleted by force are given to others while their processes may still run. Mount the host's there, \
                 read-only"
            );
        }
        self.load_grants();
    }

    /// Loads the grants of earlier processes. Returns whether they are loaded.
    pub fn load_grants(&self) -> bool {
        self.file.load_into(&mut self.records.lock())
    }

    /// Waits until the grants of earlier processes are loaded.
    pub async fn grants_loaded(&self) {
        while !self.load_grants() {
            sleep(FILE_PAUSE).await;
        }
    }

    /// Saves the grants.
    pub fn save(&self, records: &mut Records) {
        self.file.save(records);
    }

    /// Updates which pods linger. Returns whether any does.
    pub fn update(&self) -> bool {
        self.look().lingers
    }

    fn look(&self) -> Look {
        let known: PodsByUid =
            self.pods.all().into_iter().map(|facts| (facts.uid.clone(), facts)).collect();
        {
            let mut records = self.records.lock();
            records.mark_seen(|uid| known.contains_key(uid));
            if !has_open(&records, &known) && !records.resource_claims.has_unprepared() {
                return Look { lingers: false, is_open: false };
            }
        }
        // Not under the lock: this reads about one file of the kernel for each pod.
        let groups = self.groups.read();
        let mut records = self.records.lock();
        let mut presence = HashMap::new();
        for (uid, record) in records.holders() {
            let present = if is_held(&records, &known, uid) {
                Presence::Present
            } else {
                presence_by_group(&groups, uid, record, known.contains_key(uid))
            };
            presence.insert(uid.clone(), present);
        }
        let mut changed = records.set_presence(&presence);
        changed |= records.resource_claims.remove_ended(|pod| may_have_processes(&groups, pod));
        let lingering = records.lingering().count();
        let lingers = lingering > 0 || records.resource_claims.has_unprepared();
        let is_open = has_open(&records, &known);
        self.metrics.lingering.set(i64::try_from(lingering).unwrap_or(i64::MAX));
        if changed {
            self.save(&mut records);
            drop(records);
            self.records.notify();
        }
        Look { lingers, is_open }
    }

    /// Updates until the shutdown: at each change of pods and records, and every [`PAUSE`] while a pod lingers.
    pub async fn run(self: Arc<Self>, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&self) {
        let mut pods = self.pods.changes();
        let mut records = self.records.changes();
        let mut again = interval(FILE_PAUSE);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Look { lingers, is_open } = self.look();
            tokio::select! {
                changed = pods.changed() => if changed.is_err() { return },
                changed = records.changed() => if changed.is_err() { return },
                () = sleep(PAUSE), if lingers => {}
                // One that is young until then may have ended without an event.
                () = sleep(YOUNG), if is_open => {}
                _ = again.tick(), if self.file.has_unsaved() => self.save(&mut self.records.lock()),
            }
        }
    }
}

/// What one look at the records and the control groups has found.
struct Look {
    /// Whether a pod or a claim lingers.
    lingers: bool,
    /// Whether a pod that was granted ids is not held by the kubelet's records.
    is_open: bool,
}

/// The node's pods by UID.
type PodsByUid = HashMap<PodUid, Arc<PodFacts>>;

/// Whether a pod lingers, or was granted ids that the kubelet no longer holds for it.
fn has_open(records: &Records, known: &PodsByUid) -> bool {
    records.holders().any(|(uid, record)| record.lingers || !is_held(records, known, uid))
}

/// Whether a pod that exists holds ids by the kubelet's records.
fn is_held(records: &Records, known: &PodsByUid, uid: &PodUid) -> bool {
    known.get(uid).is_some_and(|facts| !facts.finished && records.holds(facts))
}

/// Whether a pod may have a process, by its control group.
fn may_have_processes(groups: &ReadOutcome, uid: &PodUid) -> bool {
    match groups {
        ReadOutcome::Pods(pods) => {
            matches!(pods.get(uid.as_str()), PodGroup::Populated | PodGroup::Unknown)
        }
        ReadOutcome::Failed => true,
        ReadOutcome::NoKubelet => false,
    }
}

/// Whether a pod that is deleted or holds no ids by the kubelet's records is still there, by its control group.
fn presence_by_group(
    groups: &ReadOutcome,
    uid: &PodUid,
    record: &PodRecord,
    is_known: bool,
) -> Presence {
    let group = match groups {
        ReadOutcome::Pods(pods) => pods.get(uid.as_str()),
        ReadOutcome::Failed => PodGroup::Unknown,
        ReadOutcome::NoKubelet => return Presence::Ended,
    };
    let is_young = record.granted_at.elapsed() < YOUNG;
    match group {
        PodGroup::Populated | PodGroup::Unknown => Presence::Lingers,
        PodGroup::Empty if is_young && !is_known => Presence::Lingers,
        // Neither the watch nor the control group may exist yet for a new pod.
        PodGroup::Absent if is_young && !record.seen => Presence::Present,
        PodGroup::Empty | PodGroup::Absent => Presence::Ended,
    }
}
