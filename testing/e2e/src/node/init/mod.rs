//! Owns a node from inside: process 1 of its PID namespace, which mounts the node's own files and keeps containerd,
//! kubelet and kube-proxy running.
//!
//! Every process of the node lives in this PID namespace and every mount in its mount namespace. So killing this one
//! process removes the node.

mod files;
mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

use super::scripted_proc::{Counters, Load};
pub use files::MOUNT_POINTS;
pub(crate) use services::SERVICES;
use services::Service;

/// How often children are reaped and services checked.
const TICK: Duration = Duration::from_millis(100);
/// The control file with the boot time that the node shows, in seconds since the epoch.
pub(super) const BOOT: &str = "boot";
/// How often the scripted counters advance.
const COUNTER_STEP: Duration = Duration::from_secs(1);

/// The command line of `plimsoll-cluster node-init`.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeInit {
    /// The node's name
    pub name: String,
    /// The node's folder on this host
    #[arg(long)]
    pub folder: PathBuf,
    /// The folder of the Kubernetes programs
    #[arg(long)]
    pub bin: PathBuf,
}

/// A file through which this host controls the node, such as `load` or `hold-kubelet`. `folder` is the node's folder.
pub(crate) fn control_file(folder: &Path, name: &str) -> PathBuf {
    folder.join("control").join(name)
}

/// Runs as the node's process 1. Returns only on an error.
pub fn run(init: &NodeInit) -> Result<()> {
    fs::write(control_file(&init.folder, "pid"), host_pid()?)?;
    rustix::system::sethostname(init.name.as_bytes())?;
    let boot = boot_time()?;
    let mut counters = Counters::new(boot);
    counters.advance(Duration::ZERO, Load::IDLE, unix_time(), &init.folder.join("proc"))?;
    files::mount_all(&init.folder)?;
    supervise(init, &mut counters, boot)
}

/// This process's number on the host. `/proc` shows it until the node's own is mounted.
fn host_pid() -> Result<String> {
    let link = fs::read_link("/proc/self").context("cannot read /proc/self")?;
    Ok(link.to_string_lossy().into_owned())
}

fn supervise(init: &NodeInit, counters: &mut Counters, boot: u64) -> Result<()> {
    let mut services = services::all(init);
    let mut advanced = Instant::now();
    loop {
        reap(&mut services)?;
        for service in &mut services {
            service.start_if_due(&init.folder)?;
        }
        if advanced.elapsed() >= COUNTER_STEP {
            let elapsed = advanced.elapsed();
            advanced += elapsed;
            let load = Load::read(&control_file(&init.folder, "load")).unwrap_or(Load::IDLE);
            counters.set_boot(wanted_boot(&init.folder).unwrap_or(boot));
            counters.advance(elapsed, load, unix_time(), &init.folder.join("proc"))?;
        }
        sleep(TICK);
    }
}

/// Reaps ended children. Process 1 is the parent of every orphan in its namespace, such as containerd's shims.
fn reap(services: &mut [Service]) -> Result<()> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, _))) => {
                services.iter_mut().for_each(|service| service.ended(pid.as_raw_nonzero().get()))
            }
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for children"),
        }
    }
}

/// The boot time that [`Node::pretend_boot`](super::Node::pretend_boot) has set.
fn wanted_boot(folder: &Path) -> Option<u64> {
    fs::read_to_string(control_file(folder, BOOT)).ok()?.trim().parse().ok()
}

/// Seconds since the epoch.
pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The boot time in seconds since the epoch, by the clock of the node's time namespace.
fn boot_time() -> Result<u64> {
    let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    let up: u64 = text.split('.').next().unwrap_or_default().parse().context("/proc/uptime")?;
    Ok(unix_time().saturating_sub(up))
}
