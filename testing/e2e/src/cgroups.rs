//! Owns the cgroups below which the cluster's pods live: made before a kubelet starts, removed with the cluster.
//!
//! Version 1 has one hierarchy a controller, version 2 a single one; both are handled by the same walk.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const MOUNTED_AT: &str = "/sys/fs/cgroup";
/// The one cgroup of ours in each hierarchy.
const OURS: &str = "plimsoll-cluster";

/// Creates `path` (from the root of a hierarchy) everywhere.
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

/// Removes ours, innermost first; one that still holds a process stays.
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

/// A version 1 cpuset starts empty and refuses processes until it has processors and memory nodes.
fn copy_cpuset(parent: &Path, folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let version_1 = folder.join("cgroup.clone_children").exists();
        if version_1 && folder.join(file).exists() {
            fs::write(folder.join(file), fs::read(parent.join(file))?)?;
        }
    }
    Ok(())
}

/// Version 2 passes a controller on to children only where it is asked to.
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

/// Whether any of ours is still there.
pub(crate) fn exist() -> bool {
    hierarchies().iter().any(|hierarchy| hierarchy.join(OURS).exists())
}
