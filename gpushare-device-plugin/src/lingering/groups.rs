//! The host's control groups, as they were looked at last.
//!
//! Invariant: a host on which a kubelet's control groups were found counts as one that has them, also where they are found no more.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgroups::{NoGroups, Pods};

use crate::metrics::Metrics;

/// The host's control groups.
pub struct HostGroups {
    root: PathBuf,
    metrics: Metrics,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// Whether a kubelet's were found.
    found: bool,
    /// What was logged.
    told: Option<String>,
}

/// What a look at the control groups tells.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// What is known of each pod.
    Pods(Pods),
    /// They may be there, and nothing is known of any pod.
    Failed,
    /// The host has none of a kubelet.
    NoKubelet,
}

impl HostGroups {
    /// Those that are mounted at `root`. Failed looks are counted in `metrics`.
    pub fn new(root: PathBuf, metrics: Metrics) -> Self {
        Self { root, metrics, last: Mutex::default() }
    }

    /// Looks at them.
    pub fn look(&self) -> Look {
        let read = Pods::read(&self.root);
        let mut last = self.last();
        last.found |= read.is_ok();
        let (look, why) = match read {
            Ok(pods) => {
                let why = pods.unread().map(ToString::to_string);
                (Look::Pods(pods), why)
            }
            Err(NoGroups::NoKubelet) if !last.found => (Look::NoKubelet, None),
            Err(none) => (Look::Failed, Some(none.to_string())),
        };
        if why.is_some() {
            self.metrics.cgroup_failures.inc();
        }
        if why != last.told {
            self.tell(why.as_deref());
            last.told = why;
        }
        look
    }

    fn tell(&self, why: Option<&str>) {
        let root = self.root.display();
        match why {
            Some(why) => tracing::warn!(
                "--cgroup-dir {root}: {why}. Pods that are gone keep their units until it is known that their processes have ended"
            ),
            None => tracing::info!("--cgroup-dir {root}: the pods' control groups are read again"),
        }
    }

    // Each change is one assignment, so that a panic leaves nothing half done.
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_host_has_no_kubelets_groups_only_where_none_were_found_before() {
        let folder = tempfile::tempdir().unwrap();
        let (root, away) = (folder.path().join("cgroup"), folder.path().join("away"));
        let metrics = Metrics::default();
        let groups = HostGroups::new(root.clone(), metrics.clone());
        assert_eq!(groups.look(), Look::NoKubelet, "not mounted");
        fs::create_dir_all(root.join("kubepods")).unwrap();
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        assert!(matches!(groups.look(), Look::Pods(_)));
        fs::rename(&root, away).unwrap();
        assert_eq!(groups.look(), Look::Failed, "no longer mounted");
        fs::create_dir(&root).unwrap();
        assert_eq!(groups.look(), Look::Failed, "mounted without control groups");
        assert_eq!(metrics.cgroup_failures.get(), 2);
    }
}
