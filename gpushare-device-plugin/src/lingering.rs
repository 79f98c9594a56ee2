//! Pods that are gone while their processes run: after a deletion by force, or where the kubelet was away.
//!
//! Their units stay taken until the kernel shows no process of them in their control group, which is the last word on what uses a card's
//! memory. A file keeps what was granted, so that a plugin that starts knows it too; the kubelet's checkpoint loses it at the next
//! admission.
//!
//! Invariant: units are free for a pod that ended in the ordinary way as soon as the kubelet says so. It removes the control
//! group of a pod before the pod's object.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cgroups::{PodGroup, Pods};
use cluster::PodFacts;
use placement::units::PodUid;
use tokio::time::sleep;

use crate::metrics::Metrics;
use crate::pods::PodCache;
use crate::records::holders::{Holder, Holders};
use crate::records::{Records, SharedRecords};

/// Pause between two looks while a pod lingers.
const PAUSE: Duration = Duration::from_millis(200);
/// A pod that was granted ids within this time and has a control group without processes may be about to get its first. Later it
/// has had some.
const YOUNG: Duration = Duration::from_secs(60);
/// The file's name.
const FILE: &str = "gpushare-device-plugin.json";

/// Looks for pods that linger.
pub struct Lingering {
    /// The node's pods, by a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// Where the host's control groups are mounted.
    pub cgroups: PathBuf,
    /// The folder of the file.
    pub folder: PathBuf,
    /// Where the pods are counted.
    pub metrics: Metrics,
}

impl Lingering {
    /// Takes in what an earlier process wrote down.
    pub fn load(&self) {
        if Pods::read(&self.cgroups).is_none() {
            tracing::warn!(
                "--cgroup-dir {}: no control groups of a kubelet there. Units of pods that are deleted by force are given to others \
                 while their processes may still run. Mount the host's /sys/fs/cgroup read-only and name it with this flag",
                self.cgroups.display()
            );
        }
        let path = self.folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                return tracing::warn!("cannot read {} (--state-dir): {error}", path.display());
            }
        };
        match Holders::from_json(&text) {
            Ok(holders) => self.records.lock().holders = holders,
            Err(error) => tracing::warn!(
                "{} is none of this plugin's files and counts as empty: {error}",
                path.display()
            ),
        }
    }

    /// Writes down what was granted.
    pub fn save(&self, records: &Records) {
        let (path, fresh) = (self.folder.join(FILE), self.folder.join("fresh"));
        let text = records.holders.to_json();
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&fresh, text))
            .and_then(|()| fs::rename(&fresh, &path));
        if let Err(error) = written {
            tracing::warn!(
                "cannot write {}: {error}. Make --state-dir a writable folder of the host: without the file a plugin that \
                 restarts knows nothing of pods that were deleted by force",
                path.display()
            );
        }
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
        let groups = Pods::read(&self.cgroups);
        let mut records = self.records.lock();
        records.holders.see(|uid| known.contains_key(uid));
        let decide = |(uid, holder): (&PodUid, &Holder)| {
            let decided = match (holds(&records, uid), &groups) {
                (true, _) => Some(false),
                (false, Some(groups)) => {
                    decide(groups.get(uid.as_str()), holder, known.contains_key(uid))
                }
                (false, None) => None,
            };
            (uid.clone(), decided)
        };
        let decided: HashMap<PodUid, Option<bool>> = records.holders.iter().map(decide).collect();
        let changed = records.holders.decide(|uid| decided.get(uid).copied().flatten());
        let lingering = records.holders.lingering().count();
        self.metrics.lingering.set(i64::try_from(lingering).unwrap_or(i64::MAX));
        if changed {
            self.save(&records);
            drop(records);
            self.records.notify();
        }
        lingering > 0
    }

    /// Looks until the shutdown: at each change of pods and records, and all the while that a pod lingers.
    pub async fn run(self: Arc<Self>, shutdown: daemon::Shutdown) {
        let (mut pods, mut records) = (self.pods.changes(), self.records.changes());
        let looks = async {
            loop {
                let lingers = self.look();
                tokio::select! {
                    changed = pods.changed() => if changed.is_err() { return },
                    changed = records.changed() => if changed.is_err() { return },
                    () = sleep(PAUSE), if lingers => {}
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
fn decide(group: Option<PodGroup>, holder: &Holder, is_known: bool) -> Option<bool> {
    let is_young = holder.granted_at.elapsed() < YOUNG;
    match group {
        Some(PodGroup::Populated) => Some(true),
        Some(PodGroup::Empty) => (is_young && !is_known).then_some(true),
        // Its pod is yet to be shown, and its control group to be made.
        None => (is_young && !holder.seen).then_some(false),
    }
}
