//! Owns the removal of a cluster, also of one whose start or removal was interrupted: it looks for what exists, and
//! relies on no record of it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{cgroups, network};
use crate::command::{run, wait_for, words};
use crate::kernel::processes::{self, Pid, Signal};
use crate::node::init::MOUNT_POINTS;
use crate::node::spec::{NODES, NodeSpec};
use crate::settings::Settings;

/// The file in the state folder that lists the mount points which `up` created on the host, one a line.
pub(crate) const CREATED: &str = "created-folders";

/// Removes every process, namespace, link, cgroup and file of a cluster in this state folder.
pub(crate) fn remove(settings: &Settings) -> Result<()> {
    kill_nodes()?;
    network::remove();
    wait_for("the pods' cgroups to empty", Duration::from_secs(60), || {
        cgroups::remove(cgroups::OURS);
        Ok((!cgroups::exist(cgroups::OURS)).then_some(()))
    })?;
    remove_created_folders(&settings.state);
    remove_state(&settings.state)
}

/// Kills each node's process 1, with which its PID namespace ends, and what else is in its network namespace.
fn kill_nodes() -> Result<()> {
    wait_for("the cluster's processes to end", Duration::from_secs(120), || {
        let pids = members()?;
        pids.iter().for_each(|pid| drop(processes::signal(*pid, Signal::KILL)));
        Ok(pids.is_empty().then_some(()))
    })
}

fn members() -> Result<Vec<Pid>> {
    let mut pids: Vec<Pid> = processes::all()?.into_iter().filter(|pid| is_init(*pid)).collect();
    pids.extend(NODES.iter().flat_map(network_residents));
    Ok(pids)
}

/// Whether this is a node's process 1, or its parent, which created the namespaces with the same arguments.
fn is_init(pid: Pid) -> bool {
    let words = processes::arguments(pid);
    words.iter().any(|word| word == "node-init") && words.iter().any(|word| word == "--folder")
}

fn network_residents(node: &NodeSpec) -> Vec<Pid> {
    let listed = run(&mut words(&format!("ip netns pids {}", node.network()))).unwrap_or_default();
    listed.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}

/// Removes those folders that are still empty. What was put into the others is not ours.
fn remove_created_folders(state: &Path) {
    let created = fs::read_to_string(state.join(CREATED)).unwrap_or_default();
    for folder in created.lines().filter(|line| MOUNT_POINTS.contains(line)) {
        let _ = fs::remove_dir(folder);
    }
}

/// Removes the state folder. Fails while something is mounted below it: deleting would reach the host's files.
fn remove_state(state: &Path) -> Result<()> {
    let mounts =
        fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let below = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .find(|path| Path::new(path).starts_with(state));
    if let Some(mounted) = below {
        bail!("{mounted} is still mounted: unmount it, then run this again");
    }
    match fs::remove_dir_all(state) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", state.display()))
        }
        _ => Ok(()),
    }
}
