//! Owns the cgroups that hold the cluster's pods. They are created before a kubelet starts and removed with the
//! cluster.
//!
//! Version 1 has one hierarchy for each controller, version 2 a single one. Both are walked in the same way.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const MOUNTED_AT: &str = "/sys/fs/cgroup";
/// The topmost of our cgroups in each hierarchy.
const OURS: &str = "plimsoll-cluster";

/// Creates `path`, which starts at the root of a hierarchy, in every hierarchy.
pub(crate) fn create(path: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let mut folder = hierarchy;
        for part in Path::new(path).components().filter(|part| part.as_os_str() != "/") {
            let parent = folder.clone();
            folder.push(part);
            create_one(&parent, &folder)
                .with_context(|| format!("cannot create the cgroup {}", folder.display()))?;
        }
    }
    Ok(())
}

/// Removes our cgroups, innermost first. One that still holds a process stays.
pub(crate) fn remove() {
    for hierarchy in hierarchies() {
        remove_below(&hierarchy.join(OURS));
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(MOUNTED_AT);
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    let entries = fs::read_dir(&root).into_iter().flatten().flatten();
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
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_below(&entry.path());
    }
    let _ = fs::remove_dir(folder);
}

/// Whether any of our cgroups exists.
pub(crate) fn exist() -> bool {
    hierarchies().iter().any(|hierarchy| hierarchy.join(OURS).exists())
}
