//! Owns the proof that kills leave running pods alone: their processes stay, and no container restarts.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::kernel::processes::{self, Pid};
use k8s_openapi::api::core::v1::Pod;

use crate::support::pods::{name, processes_of, statuses, uid};

/// What must not change of a container: the numbers and start times of its processes, and its restarts.
type Container = (Vec<(i32, Option<u64>)>, i32);

/// The running pods of the last comparison, by UID and container.
#[derive(Debug, Default)]
pub(super) struct Untouched(BTreeMap<(String, String), Container>);

impl Untouched {
    /// Compares those of these pods that ran at the last comparison, and remembers all. An error where one has changed.
    pub(super) fn compare(&mut self, pods: &[Pod]) -> Result<()> {
        let mut now = BTreeMap::new();
        for pod in pods {
            for status in statuses(pod) {
                let processes = processes_of(pod, &status.name)?;
                let dated =
                    processes.iter().map(|pid| (number(*pid), processes::started(*pid))).collect();
                let key = (uid(pod).to_owned(), status.name.clone());
                let container = (dated, status.restart_count);
                if let Some(before) = self.0.get(&key) {
                    let of = format!("{}/{}", name(pod), status.name);
                    ensure!(*before == container, "{of} changed: {before:?} became {container:?}");
                }
                now.insert(key, container);
            }
        }
        self.0 = now;
        Ok(())
    }
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
