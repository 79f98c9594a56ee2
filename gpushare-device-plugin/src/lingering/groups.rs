//! Reads the host's control groups.
//!
//! Invariant: once a kubelet's control groups were found, a later read without them is a failure, not a host without a
//! kubelet.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgroups::{NoGroups, Pods};

use crate::metrics::Metrics;

/// The host's control groups.
pub struct HostGroups {
    root: PathBuf,
    metrics: Metrics,
    last: Mutex<LastRead>,
}

#[derive(Default)]
struct LastRead {
    /// Whether a kubelet's control groups were ever found.
    found: bool,
    /// The failure that was logged last.
    logged: Option<String>,
}

/// The result of one read of the control groups.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The control groups by pod.
    Pods(Pods),
    /// They cannot be read: the groups of all pods are unknown.
    Failed,
    /// The host has no control groups of a kubelet.
    NoKubelet,
}

impl HostGroups {
    /// The control groups that are mounted at `root`. Failed reads are counted in `metrics`.
    pub fn new(root: PathBuf, metrics: Metrics) -> Self {
        Self { root, metrics, last: Mutex::default() }
    }

    /// Reads the control groups of all pods.
    pub fn read(&self) -> ReadOutcome {
        let read = Pods::read(&self.root);
        let mut last = self.last();
        last.found |= read.is_ok();
        let (outcome, why) = match read {
            Ok(pods) => {
                let why = pods.unread().map(ToString::to_string);
                (ReadOutcome::Pods(pods), why)
            }
            Err(NoGroups::NoKubelet) if !last.found => (ReadOutcome::NoKubelet, None),
            Err(none) => (ReadOutcome::Failed, Some(none.to_string())),
        };
        if why.is_some() {
            self.metrics.cgroup_failures.inc();
        }
        if why != last.logged {
            self.log(why.as_deref());
            last.logged = why;
        }
        outcome
    }

    fn log(&self, why: Option<&str>) {
        let root = self.root.display();
        match why {
            Some(why) => tracing::warn!(
                "{root}: {why}. Pods that are gone keep their units until it is known that their \
                 processes have ended"
            ),
            None => tracing::info!("{root}: the pods' control groups are read again"),
        }
    }

    // Each change is one assignment, so a panic cannot leave a partial change.
    fn last(&self) -> MutexGuard<'_, LastRead> {
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
        let root = folder.path().join("cgroup");
        let away = folder.path().join("away");
        let metrics = Metrics::default();
        let groups = HostGroups::new(root.clone(), metrics.clone());
        assert_eq!(groups.read(), ReadOutcome::NoKubelet, "not mounted");
        fs::create_dir_all(root.join("kubepods")).unwrap();
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        assert!(matches!(groups.read(), ReadOutcome::Pods(_)));
        fs::rename(&root, away).unwrap();
        assert_eq!(groups.read(), ReadOutcome::Failed, "no longer mounted");
        fs::create_dir(&root).unwrap();
        assert_eq!(groups.read(), ReadOutcome::Failed, "mounted without control groups");
        assert_eq!(metrics.cgroup_failures.get(), 2);
    }
}
