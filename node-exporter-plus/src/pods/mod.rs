//! The use of each pod of the node, from the kubelet's control groups: version 1 and 2, the systemd and the cgroupfs
//! driver, at the root or below a `--cgroup-root`.
//!
//! Invariant: nothing is kept between two readings, and a reading is bounded, whatever the tree holds: [`MAX_PODS`] pods,
//! a few thousand folders, and 16 KiB of each file. What cannot be read is absent, never 0.

mod files;
mod hierarchy;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cgroups::PodUid;
pub use files::{Version, cpu, number, working_set};

use hierarchy::Hierarchies;

/// The largest number of pods that are read, the first in the order of their UIDs. The kubelet's own default limit is 110.
pub const MAX_PODS: usize = 512;

/// The use of all pods of the node at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsages {
    /// In the order of their UIDs, each UID once.
    pub pods: Vec<PodUsage>,
    /// How many pods were left out because there are more than [`MAX_PODS`].
    pub omitted: usize,
}

/// The use of one pod, from the counters of its own control group, which contains all its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    /// The pod.
    pub uid: PodUid,
    /// The CPU time that it has used since it started.
    pub cpu: Option<Duration>,
    /// Its working set in bytes, as the kubelet computes it: memory in use without file pages that were not used lately.
    pub working_set: Option<u64>,
}

/// Why no pods can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// No control groups are mounted there.
    #[error(
        "--path.cgroupfs {path}: no control groups are mounted there; mount the host's /sys/fs/cgroup read-only and \
         name it with this flag", path = .0.display()
    )]
    NotMounted(PathBuf),
    /// There are control groups, but none of a kubelet.
    #[error(
        "--path.cgroupfs {path}: no control group there is named kubepods, kubepods.slice or *-kubepods.slice; in a \
         container, mount the host's /sys/fs/cgroup read-only and name it with this flag", path = .0.display()
    )]
    NoKubelet(PathBuf),
}

/// Whether the pods' control groups can be found below `root`.
///
/// # Errors
/// When they cannot.
pub fn check(root: &Path) -> Result<(), CgroupError> {
    find(root).map(drop)
}

/// Reads the use of every pod. A pod that ends during the read is left out, or has the values that were read before.
///
/// # Errors
/// When the pods' control groups cannot be found. A node that has them and no pod has an empty list.
pub fn read(root: &Path) -> Result<PodUsages, CgroupError> {
    let (hierarchies, roots) = find(root)?;
    let (found, omitted) = cgroups::pods(hierarchies.listed(), &roots, MAX_PODS);
    let mut buffer = Vec::new();
    let mut pods: Vec<PodUsage> = Vec::with_capacity(found.len());
    for cgroups::PodFolder { uid, path } in found {
        let cpu = hierarchies.cpu(&path, &mut buffer);
        let working_set = hierarchies.working_set(&path, &mut buffer);
        match pods.last_mut().filter(|last| last.uid == uid) {
            Some(last) => last.add(cpu, working_set),
            None => pods.push(PodUsage { uid, cpu, working_set }),
        }
    }
    pods.retain(|pod| pod.cpu.is_some() || pod.working_set.is_some());
    Ok(PodUsages { pods, omitted })
}

fn find(root: &Path) -> Result<(Hierarchies, Vec<PathBuf>), CgroupError> {
    let hierarchies =
        Hierarchies::below(root).ok_or_else(|| CgroupError::NotMounted(root.to_owned()))?;
    let roots = cgroups::kubepods(hierarchies.listed());
    if roots.is_empty() {
        return Err(CgroupError::NoKubelet(root.to_owned()));
    }
    Ok((hierarchies, roots))
}

impl PodUsage {
    /// Adds what a second control group of the pod has used: a kubelet that was given another cgroup driver leaves the old
    /// one behind.
    fn add(&mut self, cpu: Option<Duration>, working_set: Option<u64>) {
        self.cpu = sum(self.cpu, cpu, Duration::saturating_add);
        self.working_set = sum(self.working_set, working_set, u64::saturating_add);
    }
}

/// The sum of the known values.
fn sum<T: Copy>(one: Option<T>, other: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    one.zip(other).map(|(one, other)| add(one, other)).or(one).or(other)
}
