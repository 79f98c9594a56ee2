//! Polls NVML for the processes on each GPU, and the kernel for the pods that they belong to.
//!
//! Invariant: NVML is called on one thread at a time. While it hangs, all processes are unknown.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nvml::Probe;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::host::HostProcesses;
use super::{GpuProcess, GpuProcesses, Snapshot, Unknown};
use crate::gpus::watch::OpenNvml;

/// Time for one read of all GPUs. After it NVML counts as hanging.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Polls the processes on this node's GPUs.
pub(crate) struct ProcessWatch {
    /// NVML, while it is open.
    pub probe: watch::Receiver<OpenNvml>,
    /// Reads the control groups of processes.
    pub host: HostProcesses,
    /// Time between two polls.
    pub every: Duration,
    /// Publishes the processes.
    pub snapshots: watch::Sender<Arc<Snapshot>>,
}

impl ProcessWatch {
    /// Polls until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = self.probe.changed() => if changed.is_err() { return },
            }
            let probe = self.probe.borrow_and_update().clone();
            let Some(probe) = probe else {
                self.publish(self.lost());
                continue;
            };
            let host = self.host.clone();
            let since = SystemTime::now() - self.every;
            let read = tokio::task::spawn_blocking(move || read_all(&*probe, &host, since));
            self.publish_outcome(read).await;
        }
    }

    async fn publish_outcome(&self, mut read: JoinHandle<Result<Snapshot, nvml::Error>>) {
        let answer = match timeout(READ_TIMEOUT, &mut read).await {
            Ok(answer) => answer,
            Err(_) => {
                tracing::warn!("NVML has not listed the processes within {READ_TIMEOUT:?}");
                self.publish(self.lost());
                read.await
            }
        };
        match answer {
            Ok(Ok(snapshot)) => self.publish(snapshot),
            Ok(Err(error)) => {
                tracing::debug!("NVML does not list the processes: {error}");
                self.publish(self.lost());
            }
            Err(panicked) => {
                tracing::error!("reading the processes: {panicked}");
                self.publish(self.lost());
            }
        }
    }

    /// The GPUs of the last snapshot, with unknown processes.
    fn lost(&self) -> Snapshot {
        let mut lost = Snapshot::clone(&self.snapshots.borrow());
        for gpu in &mut lost {
            gpu.processes = Err(Unknown::Lost);
        }
        lost
    }

    fn publish(&self, snapshot: Snapshot) {
        let before = self.snapshots.borrow().clone();
        for gpu in &snapshot {
            let uuid = &gpu.gpu.uuid;
            let old = before.iter().find(|old| old.gpu.uuid == *uuid);
            let was = old.and_then(|old| old.processes.as_ref().err());
            match (gpu.processes.as_ref().err(), was) {
                (now, was) if now == was => {}
                (Some(why), _) => tracing::info!(uuid, "the GPU's processes are unknown: {why}"),
                (None, _) => tracing::info!(uuid, "the GPU's processes are known"),
            }
        }
        self.snapshots.send_replace(Arc::new(snapshot));
    }
}

/// Reads the processes of all GPUs. May block.
fn read_all(
    probe: &dyn Probe,
    host: &HostProcesses,
    since: SystemTime,
) -> Result<Snapshot, nvml::Error> {
    // Checked each time: the reads take microseconds, and an error may be temporary.
    let are_hosts = host.are_hosts().unwrap_or(false);
    let mut snapshot = Snapshot::new();
    for gpu in probe.gpus()? {
        let processes = if are_hosts {
            on_gpu(probe, host, &gpu.uuid, since)
        } else {
            Err(Unknown::PidNamespace)
        };
        snapshot.push(GpuProcesses { gpu, processes });
    }
    Ok(snapshot)
}

fn on_gpu(
    probe: &dyn Probe,
    host: &HostProcesses,
    uuid: &str,
    since: SystemTime,
) -> Result<Vec<GpuProcess>, Unknown> {
    let Ok(answer) = probe.processes(uuid, since) else { return Err(Unknown::Lost) };
    let Some(processes) = answer else {
        let mig = probe.status(uuid).is_ok_and(|status| status.mig == Some(true));
        return Err(if mig { Unknown::Mig } else { Unknown::Driver });
    };
    Ok(processes
        .into_iter()
        .map(|process| GpuProcess { process, of: host.membership(process.pid) })
        .collect())
}

#[cfg(test)]
mod tests {
    use nvml::{Process, Scripted, Status};

    use super::*;
    use crate::fixtures::{A, B};
    use crate::processes::host::Membership;

    fn host(first: &str) -> (tempfile::TempDir, HostProcesses) {
        let dir = tempfile::tempdir().unwrap();
        for (process, group) in [("1", first), ("self", "/own"), ("7", "/system.slice")] {
            std::fs::create_dir_all(dir.path().join(process)).unwrap();
            std::fs::write(dir.path().join(process).join("cgroup"), format!("0::{group}\n"))
                .unwrap();
        }
        let proc = dir.path().to_owned();
        (dir, HostProcesses { proc })
    }

    fn gpu(uuid: &str, index: u32) -> nvml::Gpu {
        nvml::Gpu { uuid: uuid.to_owned(), index, ..nvml::Gpu::default() }
    }

    fn probe() -> Arc<Scripted> {
        let probe = Scripted::new(vec![gpu(A, 0), gpu(B, 1)]);
        let processes =
            [7, 8].map(|pid| Process { pid, used_bytes: Some(1), sm_percent: None, mps: None });
        probe.set_processes(A, processes.into());
        Arc::new(probe)
    }

    /// The processes of GPUs A and B.
    fn seen(probe: &Scripted, host: &HostProcesses) -> Vec<Result<Vec<Membership>, Unknown>> {
        let mut seen = Vec::new();
        for gpu in read_all(probe, host, SystemTime::UNIX_EPOCH).unwrap() {
            let processes = gpu.processes;
            seen.push(processes.map(|all| all.into_iter().map(|process| process.of).collect()));
        }
        seen
    }

    #[test]
    fn processes_are_seen_with_what_they_belong_to() {
        let (_dir, host) = host("/init.scope");
        let probe = probe();
        let of_a = Ok(vec![Membership::NoPod, Membership::Unknown]);
        assert_eq!(seen(&probe, &host), [of_a.clone(), Err(Unknown::Driver)]);
        probe.set_status(B, Status { mig: Some(true), ..Status::default() });
        assert_eq!(seen(&probe, &host), [of_a.clone(), Err(Unknown::Mig)]);
        probe.set_lost(B, true);
        assert_eq!(seen(&probe, &host), [of_a, Err(Unknown::Lost)]);
    }

    #[test]
    fn outside_of_the_hosts_pid_namespace_an_empty_list_says_nothing() {
        let (_dir, host) = host("/own");
        let probe = probe();
        probe.set_processes(A, vec![]);
        assert_eq!(seen(&probe, &host), [Err(Unknown::PidNamespace), Err(Unknown::PidNamespace)]);
    }

    #[tokio::test]
    async fn while_nvml_is_closed_all_processes_are_unknown() {
        let (_dir, host) = host("/init.scope");
        let (open, receiver) = watch::channel(Some(probe() as Arc<dyn Probe>));
        let (sender, mut seen) = watch::channel(Arc::default());
        let every = Duration::from_secs(3600);
        let watch = ProcessWatch { probe: receiver, host, every, snapshots: sender };
        let task = tokio::spawn(watch.follow());
        seen.wait_for(|snapshot: &Arc<Snapshot>| snapshot.iter().any(|gpu| gpu.processes.is_ok()))
            .await
            .unwrap();
        open.send_replace(None);
        seen.wait_for(|snapshot| {
            snapshot.len() == 2 && snapshot.iter().all(|gpu| gpu.processes == Err(Unknown::Lost))
        })
        .await
        .unwrap();
        task.abort();
    }
}
