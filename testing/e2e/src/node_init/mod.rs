//! Owns a machine from inside: it is process 1 of the machine's PID namespace, gives it its own file tree and keeps
//! containerd, kubelet and kube-proxy running.
//!
//! Everything that the machine ever runs is a descendant in this PID namespace and dies with this process, and every
//! mount lives in its mount namespace: killing one process removes the machine.

mod files;
mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

use crate::scripted_proc::{Counters, Load};
pub use files::MOUNT_POINTS;
pub(crate) use services::SERVICES;
use services::Service;

/// How often children are reaped and services looked after.
const TICK: Duration = Duration::from_millis(100);
/// How often the scripted counters advance.
const COUNTER_STEP: Duration = Duration::from_secs(1);

/// What a machine's first process is told.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeInit {
    /// The machine's name
    pub name: String,
    /// The machine's folder on this host
    #[arg(long)]
    pub folder: PathBuf,
    /// The folder of the Kubernetes programs
    #[arg(long)]
    pub bin: PathBuf,
}

/// The files through which a machine and its host talk, below the machine's folder.
pub(crate) fn control_file(folder: &Path, name: &str) -> PathBuf {
    folder.join("control").join(name)
}

/// Becomes the machine; returns only on an error.
pub fn run(init: &NodeInit) -> Result<()> {
    fs::write(control_file(&init.folder, "pid"), host_pid()?)?;
    rustix::system::sethostname(init.name.as_bytes())?;
    let mut counters = Counters::new(boot_time()?);
    counters.advance(Duration::ZERO, Load::IDLE, &init.folder.join("proc"))?;
    files::mount_all(&init.folder)?;
    supervise(init, &mut counters)
}

/// Before `/proc` is mounted anew, it still shows this process as the host sees it.
fn host_pid() -> Result<String> {
    let link = fs::read_link("/proc/self").context("cannot read /proc/self")?;
    Ok(link.to_string_lossy().into_owned())
}

fn supervise(init: &NodeInit, counters: &mut Counters) -> Result<()> {
    let mut services = services::all(init);
    let mut advanced = Instant::now();
    loop {
        reap(&mut services)?;
        for service in &mut services {
            service.look_after(&init.folder)?;
        }
        if advanced.elapsed() >= COUNTER_STEP {
            let elapsed = advanced.elapsed();
            advanced += elapsed;
            let load = Load::read(&control_file(&init.folder, "load")).unwrap_or(Load::IDLE);
            counters.advance(elapsed, load, &init.folder.join("proc"))?;
        }
        sleep(TICK);
    }
}

/// As process 1 it inherits every orphan of the machine, shims above all, and must wait for each.
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

/// When the machine was started, in seconds since the epoch, by the clock of its own time namespace.
fn boot_time() -> Result<u64> {
    let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    let up: u64 = text.split('.').next().unwrap_or_default().parse().context("/proc/uptime")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(now.saturating_sub(up))
}
