//! Owns the removal of a cluster, also of one whose start or end was interrupted: it looks for what exists instead of
//! trusting what was recorded.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::{run, wait_for, words};
use crate::node_init::MOUNT_POINTS;
use crate::processes::{self, Pid, Signal};
use crate::settings::{MACHINES, Machine, Settings};
use crate::{cgroups, network};

/// Mount points that `up` had to create on the host, one a line.
pub(crate) const CREATED: &str = "created-folders";

/// Removes every process, namespace, link, cgroup and file of a cluster in this state folder.
pub(crate) fn remove(settings: &Settings) -> Result<()> {
    kill_machines()?;
    network::remove();
    wait_for("the pods' cgroups to empty", Duration::from_secs(10), || {
        cgroups::remove();
        Ok((!cgroups::exist()).then_some(()))
    })?;
    remove_created_folders(&settings.state);
    remove_state(&settings.state)
}

/// A machine's first process takes everything inside along; strangers in its network namespace are killed beside.
fn kill_machines() -> Result<()> {
    let doomed = || -> Result<Vec<Pid>> {
        let mut pids: Vec<Pid> =
            processes::all()?.into_iter().filter(|pid| is_init(*pid)).collect();
        pids.extend(MACHINES.iter().flat_map(network_residents));
        Ok(pids)
    };
    wait_for("the cluster's processes to end", Duration::from_secs(20), || {
        let pids = doomed()?;
        pids.iter().for_each(|pid| drop(processes::signal(*pid, Signal::KILL)));
        Ok(pids.is_empty().then_some(()))
    })
}

/// Both the process that made the namespaces and the one inside them carry these words.
fn is_init(pid: Pid) -> bool {
    let words = processes::arguments(pid);
    words.iter().any(|word| word == "node-init") && words.iter().any(|word| word == "--folder")
}

fn network_residents(machine: &Machine) -> Vec<Pid> {
    let listed =
        run(&mut words(&format!("ip netns pids {}", machine.network()))).unwrap_or_default();
    listed.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}

/// Only folders that are still empty go: anything in them is somebody else's.
fn remove_created_folders(state: &Path) {
    let created = fs::read_to_string(state.join(CREATED)).unwrap_or_default();
    for folder in created.lines().filter(|line| MOUNT_POINTS.contains(line)) {
        let _ = fs::remove_dir(folder);
    }
}

/// Refuses to delete through a mount: a bind of ours that survived would reach the host's own files.
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
