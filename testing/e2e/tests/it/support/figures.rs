//! Owns what a run measures: the time from a pod's creation to its process, and the memory of Plimsoll's programs. The
//! figures are printed; no test fails because of them.

use std::fs;

use anyhow::{Context, Result};
use e2e::kernel::processes;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::env::TestEnv;
use crate::support::pods::{gpu_containers, process_of, processes_of, statuses};

/// The unit of process start times: hundredths of a second since boot.
const TICKS_PER_SECOND: f64 = 100.0;

/// A time on the clock of process start times, in seconds since boot.
pub(crate) struct Clock(f64);

impl Clock {
    /// The time now.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
        let seconds = text.split(' ').next().and_then(|first| first.parse().ok());
        seconds.map(Self).context("/proc/uptime cannot be read")
    }

    /// Seconds since boot.
    pub(crate) fn seconds(&self) -> f64 {
        self.0
    }
}

/// The CPU use of a container since its first process started, in cores.
pub(crate) fn cores(pod: &Pod, container: &str) -> Result<f64> {
    let processes = processes_of(pod, container)?;
    let first = processes.iter().filter_map(|process| processes::started(*process)).min();
    let began = first.context("no process")? as f64 / TICKS_PER_SECOND;
    let ticks: u64 = processes.into_iter().filter_map(processes::cpu_ticks).sum();
    Ok(ticks as f64 / TICKS_PER_SECOND / (Clock::now()?.0 - began))
}

/// Sorted milliseconds from a time to each pod's first process.
pub(crate) struct Delays(Vec<u64>);

impl Delays {
    /// The delays of the first GPU container of each pod.
    pub(crate) fn of(clock: &Clock, pods: &[Pod]) -> Result<Self> {
        let mut delays = pods.iter().map(|pod| delay(clock, pod)).collect::<Result<Vec<_>>>()?;
        delays.sort_unstable();
        Ok(Self(delays))
    }

    /// The only delay, or the median and the largest of several.
    pub(crate) fn summary(&self) -> String {
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
    let process = process_of(pod, container)?;
    let ticks = processes::started(process).context("the process is gone")?;
    let seconds = ticks as f64 / TICKS_PER_SECOND - clock.0;
    Ok((seconds.max(0.0) * 1000.0) as u64)
}

/// Records the resident memory of every container in Plimsoll's namespace.
pub(crate) fn record_memory(env: &TestEnv) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(env.client(), "plimsoll");
    for pod in env.block_on(pods.list(&ListParams::default()))? {
        // A container that has never been made has no process to measure.
        for status in statuses(&pod).iter().filter(|status| status.container_id.is_some()) {
            let kib: u64 = processes_of(&pod, &status.name)?
                .into_iter()
                .filter_map(processes::resident_kib)
                .sum();
            let node = crate::support::pods::node(&pod).unwrap_or_default().to_owned();
            env.figure(&format!("rss_kib {} on {node}", status.name), kib.to_string());
        }
    }
    Ok(())
}
