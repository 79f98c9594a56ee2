//! Owns what the run measures beside its facts: the time from a pod's creation to its process, and the memory of each
//! of our programs as a pod. Figures are shown, never judged.

use std::fs;

use anyhow::{Context, Result};
use e2e::processes;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::pods::{gpu_containers, processes_of, statuses};
use crate::world::World;

/// The kernel counts the start of processes in hundredths of a second since boot.
const TICKS_PER_SECOND: f64 = 100.0;

/// A moment on the clock by which the kernel dates processes.
pub(crate) struct Clock(f64);

impl Clock {
    /// Now.
    pub(crate) fn start() -> Result<Self> {
        let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
        let seconds = text.split(' ').next().and_then(|first| first.parse().ok());
        seconds.map(Self).context("/proc/uptime cannot be read")
    }
}

/// Milliseconds from a moment to each pod's first process, in order.
pub(crate) struct Delays(Vec<u64>);

impl Delays {
    /// Those of these pods' first GPU containers.
    pub(crate) fn of(clock: &Clock, pods: &[Pod]) -> Result<Self> {
        let mut delays = pods.iter().map(|pod| delay(clock, pod)).collect::<Result<Vec<_>>>()?;
        delays.sort_unstable();
        Ok(Self(delays))
    }

    /// One figure, or the median and the largest of several.
    pub(crate) fn shown(&self) -> String {
        match self.0.as_slice() {
            [one] => one.to_string(),
            [.., last] => format!("median {}, last {last}", self.0[self.0.len() / 2]),
            [] => "none".to_owned(),
        }
    }
}

fn delay(clock: &Clock, pod: &Pod) -> Result<u64> {
    let gpu = gpu_containers(pod);
    let container = gpu.keys().next().context("no GPU container")?;
    let process = *processes_of(pod, container)?.first().context("no process")?;
    let ticks = processes::started(process).context("the process is gone")?;
    let seconds = ticks as f64 / TICKS_PER_SECOND - clock.0;
    Ok((seconds.max(0.0) * 1000.0) as u64)
}

/// Notes the resident memory of every container in our namespace.
pub(crate) fn note_memory(world: &World) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), "plimsoll");
    for pod in world.wait(pods.list(&ListParams::default()))? {
        for status in statuses(&pod) {
            let kib: u64 = processes_of(&pod, &status.name)?
                .into_iter()
                .filter_map(processes::resident_kib)
                .sum();
            let node = crate::pods::node(&pod).unwrap_or_default().to_owned();
            world.figure(&format!("rss_kib {} on {node}", status.name), kib.to_string());
        }
    }
    Ok(())
}
