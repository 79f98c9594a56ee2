//! Owns the cgroups that hold a cluster's pods, all below one at the top. They are created before a kubelet starts and
//! removed with the cluster.
//!
//! Version 1 has one hierarchy for each controller, version 2 a single one. Both are walked in the same way.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::kernel::processes::Pid;

const MOUNTED_AT: &str = "/sys/fs/cgroup";
/// The topmost cgroup of the two-node cluster in each hierarchy.
pub(crate) const OURS: &str = "plimsoll-cluster";
/// The hierarchy of version 1 in which [`join`] moves processes: one that every kernel has, and nobody else limits.
const JOINED: &str = "pids";

/// Creates `path`, which starts at the root of a hierarchy, in every hierarchy.
pub fn create(path: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let mut folder = hierarchy;
        // The root's are on under systemd. Where something else has the root, it may refuse.
        let _ = enable_controllers(&folder);
        for part in Path::new(path).components().filter(|part| part.as_os_str() != "/") {
            let parent = folder.clone();
            folder.push(part);
            create_one(&parent, &folder)
                .with_context(|| format!("cannot create the cgroup {}", folder.display()))?;
        }
    }
    Ok(())
}

/// Moves a process into the cgroup `path`, which is created, in one hierarchy. What it starts is in there too.
pub fn join(path: &str, pid: Pid) -> Result<()> {
    let root = PathBuf::from(MOUNTED_AT);
    let version_2 = root.join("cgroup.controllers").exists();
    let hierarchy = if version_2 { root } else { root.join(JOINED) };
    let folder = hierarchy.join(path.trim_start_matches('/'));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("cgroup.procs"), pid.as_raw_nonzero().to_string()))
        .with_context(|| format!("cannot move a process to the cgroup {}", folder.display()))
}

/// Removes the cgroup `top` with all below it, innermost first. One that still holds a process stays.
pub fn remove(top: &str) {
    for hierarchy in hierarchies() {
        remove_below(&hierarchy.join(top));
    }
}

/// The processes in the cgroup `top` and below it, in every hierarchy.
pub fn processes(top: &str) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> =
        hierarchies().into_iter().map(|hierarchy| hierarchy.join(top)).collect();
    while let Some(folder) = folders.pop() {
        let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
        folders.extend(subfolders(&folder));
    }
    found
}

fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(MOUNTED_AT);
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    subfolders(&root)
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn create_one(parent: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    copy_cpuset(parent, folder)?;
    enable_controllers(folder)
}

/// Copies the parent's processors and memory nodes. A version 1 cpuset has none at first, and refuses processes then.
fn copy_cpuset(parent: &Path, folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let version_1 = folder.join("cgroup.clone_children").exists();
        if version_1 && folder.join(file).exists() {
            fs::write(folder.join(file), fs::read(parent.join(file))?)?;
        }
    }
    Ok(())
}

/// Enables every controller for the children; version 2 does so only on request.
fn enable_controllers(folder: &Path) -> Result<()> {
    let Ok(controllers) = fs::read_to_string(folder.join("cgroup.controllers")) else {
        return Ok(());
    };
    for controller in controllers.split_whitespace() {
        fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(())
}

fn remove_below(folder: &Path) {
    subfolders(folder).iter().for_each(|folder| remove_below(folder));
    let _ = fs::remove_dir(folder);
}

/// Whether the cgroup `top` exists in any hierarchy.
pub fn exist(top: &str) -> bool {
    hierarchies().iter().any(|hierarchy| hierarchy.join(top).exists())
}
