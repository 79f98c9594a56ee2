//! Whether this plugin can read pods from the API server.
//!
//! Without that no new pod can be identified, and a kubelet with a connection of its own would send the plugin pods all
//! the same. The watch of pods alone does not show it: an idle connection that no packet passes looks like an idle node
//! for minutes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::pods::{PodRef, ReadPod};

/// Time between two reads while they succeed.
const EVERY: Duration = Duration::from_secs(30);
/// Time between two reads after one has failed.
const RETRY: Duration = Duration::from_secs(5);
/// Failed reads in a row after which the API server counts as unreachable. With a second for each read that is half a
/// minute.
const FAILURES: u32 = 5;

/// The pod that is read. None needs to have the name: that there is none is an answer too.
const NAMESPACE: &str = "default";
const NAME: &str = "plimsoll-gpushare-reachability";

/// Reads periodically, and publishes whether that works.
pub(crate) struct ApiReach {
    /// Reads one pod.
    pub api: Arc<dyn ReadPod>,
    /// The time between two reads, after a success and after a failure.
    pub pauses: Pauses,
    /// Publishes whether the API server can be reached; true before the first read.
    pub reachable: watch::Sender<bool>,
}

/// The time between two reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pauses {
    /// After one that succeeded.
    pub every: Duration,
    /// After one that failed.
    pub retry: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { every: EVERY, retry: RETRY }
    }
}

impl ApiReach {
    /// Reads until the shutdown. `report` is called after each read: with the error once [`ApiReach::reachable`] is
    /// false.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown, report: impl Fn(Result<(), String>)) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow(report) => {}
        }
    }

    async fn follow(&self, report: impl Fn(Result<(), String>)) {
        let pod = PodRef::new(NAMESPACE, NAME);
        let mut failures = 0_u32;
        loop {
            let read = self.api.read(&pod).await;
            failures = if read.is_ok() { 0 } else { failures.saturating_add(1) };
            let reachable = failures < FAILURES;
            let changed = daemon::publish(&self.reachable, reachable);
            match &read {
                Err(why) if changed => tracing::warn!(
                    "pods cannot be read from the API server, so no GPU pod can be admitted and no free unit is \
                     offered: {why}"
                ),
                Ok(_) if changed => tracing::info!("pods can be read from the API server again"),
                _ => {}
            }
            report(match read {
                Err(why) if !reachable => Err(format!("no free unit is offered: {why}")),
                _ => Ok(()),
            });
            sleep(if failures == 0 { self.pauses.every } else { self.pauses.retry }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use cluster::PodFacts;
    use futures::future::BoxFuture;

    use super::*;

    #[derive(Default)]
    struct Api {
        down: AtomicBool,
        failed: AtomicU32,
    }

    impl ReadPod for Api {
        fn read<'a>(&'a self, _: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>> {
            let down = self.down.load(Ordering::Relaxed);
            self.failed.fetch_add(down.into(), Ordering::Relaxed);
            Box::pin(
                async move { if down { Err("no route to host".to_owned()) } else { Ok(None) } },
            )
        }
    }

    #[tokio::test]
    async fn failed_reads_in_a_row_mean_unreachable_until_one_succeeds() {
        let api = Arc::new(Api::default());
        let (sender, mut reachable) = watch::channel(true);
        let pause = Duration::from_millis(1);
        let pauses = Pauses { every: pause, retry: pause };
        let reach = ApiReach { api: api.clone(), pauses, reachable: sender };
        let task = tokio::spawn(reach.run(daemon::Shutdown::new(), |_| {}));
        api.down.store(true, Ordering::Relaxed);
        reachable.wait_for(|reachable| !*reachable).await.unwrap();
        assert!(api.failed.load(Ordering::Relaxed) >= FAILURES, "not after a single failure");
        api.down.store(false, Ordering::Relaxed);
        reachable.wait_for(|reachable| *reachable).await.unwrap();
        task.abort();
    }
}
