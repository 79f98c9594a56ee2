//! The use of each pod of the node, from the kubelet's control groups: version 1 and 2, the systemd and the cgroupfs
//! driver, at the root or below a `--cgroup-root`.
//!
//! Invariant: nothing is kept between two readings, and a reading is bounded, whatever the tree holds: [`MAX_PODS`]
//! pods, a few thousand folders, and 16 KiB of each file. What cannot be read is absent, never 0. So is what a pod uses
//! whose containers are not in its control group: not started yet, ended, or run elsewhere by a runtime of its own
//! (some of WebAssembly and virtual machines).

mod cpus;
mod files;
mod hierarchy;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cgroups::PodUid;
pub use cpus::{PodCpus, read_cpus};
pub use files::{Version, cpu, memory_used, number};

use hierarchy::Hierarchies;

/// The largest number of pods that are read, the first in the order of their UIDs. The kubelet's own default limit is
/// 110.
pub const MAX_PODS: usize = 512;

/// A single process with less memory than this, in bytes, is the sandbox's own (`pause`), whose containers have not
/// started or run elsewhere. It uses some 300 KiB.
const SANDBOX_ALONE: u64 = 1 << 20;

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
    /// The memory that it uses in bytes, without caches that can be reclaimed: what MemAvailable of the node lacks for
    /// it.
    pub memory: Option<u64>,
}

/// Why no pods can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// No control groups are mounted there.
    #[error(
        "{path}: no control groups are mounted there; mount the host's /sys read-only at sys below --host-root",
        path = .0.display()
    )]
    NotMounted(PathBuf),
    /// There are control groups, but none of a kubelet.
    #[error(
        "{path}: no control group there is named kubepods, kubepods.slice or *-kubepods.slice; in a container, mount \
         the host's /sys read-only at sys below --host-root", path = .0.display()
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
        let tasks = hierarchies.tasks(&path, &mut buffer);
        // A process that starts uses some.
        let cpu = hierarchies.cpu_time(&path, &mut buffer).filter(|used| !used.is_zero());
        let memory = hierarchies.memory_used(&path, &mut buffer);
        if !holds_containers(tasks, memory) {
            continue;
        }
        match pods.last_mut().filter(|last| last.uid == uid) {
            Some(last) => last.add(cpu, memory),
            None => pods.push(PodUsage { uid, cpu, memory }),
        }
    }
    pods.retain(|pod| pod.cpu.is_some() || pod.memory.is_some());
    Ok(PodUsages { pods, omitted })
}

/// Whether containers run in a group with so many tasks, as far as that can be told.
fn holds_containers(tasks: Option<u64>, memory: Option<u64>) -> bool {
    match tasks {
        None => true,
        Some(0) => false,
        Some(1) => memory.is_none_or(|used| used >= SANDBOX_ALONE),
        Some(_) => true,
    }
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
    /// Adds what a second control group of the pod has used: a kubelet that was given another cgroup driver leaves the
    /// old one behind.
    fn add(&mut self, cpu: Option<Duration>, memory: Option<u64>) {
        self.cpu = sum(self.cpu, cpu, Duration::saturating_add);
        self.memory = sum(self.memory, memory, u64::saturating_add);
    }
}

/// The sum of the known values.
fn sum<T: Copy>(one: Option<T>, other: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    one.zip(other).map(|(one, other)| add(one, other)).or(one).or(other)
}
