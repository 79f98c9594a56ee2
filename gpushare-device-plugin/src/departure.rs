//! The orderly end: the GPUs are closed in the node's report before the kubelet loses its device plugin.
//!
//! The kubelet fails a pod for good that it admits while no plugin serves the resource. Pods come from Bind alone, so
//! the GPUs are closed first, and the plugin goes on serving until no pod is on its way: an extender that has seen the
//! report binds none, and what it bound before is shown by the watch of this node's pods.
//!
//! Invariant: the end is delayed by [`LIMIT`] at most, and not at all where nothing is served or the API server is not
//! reached: nothing can be bound then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::PodFacts;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::pods::PodCache;

/// The longest delay of the end. The session's end and the calls in progress follow within [`daemon::GRACE`].
const LIMIT: Duration = Duration::from_secs(8);
/// Time without a newly bound pod after which none is on its way: from the write of the closed GPUs until an
/// extender's watch shows them, and from a Binding until the watch here shows the pod. Each takes milliseconds.
const QUIET: Duration = Duration::from_secs(2);

/// Whether this plugin serves the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not been registered yet.
    #[default]
    Starting,
    /// The kubelet has had its list of devices. It stays so while the kubelet restarts.
    Serving,
    /// It is about to end.
    Ending,
}

/// Ends the program.
pub(crate) struct Departure {
    /// The phase of this plugin.
    pub phase: watch::Sender<Phase>,
    /// The phase that the node's report was last written in; `None` before the first.
    pub reported: watch::Receiver<Option<Phase>>,
    /// The node's pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Whether the API server can be reached.
    pub reachable: watch::Receiver<bool>,
}

impl Departure {
    /// Waits for the shutdown, and cancels `end` once the kubelet needs this plugin no more.
    pub(crate) async fn run(mut self, shutdown: daemon::Shutdown, end: daemon::Shutdown) {
        // However this function is left.
        let _end = end.drop_guard();
        shutdown.cancelled().await;
        let before = self.phase.send_replace(Phase::Ending);
        if before != Phase::Serving || !*self.reachable.borrow() {
            return;
        }
        tracing::info!("closing the GPUs in the node's report before the end");
        if timeout(LIMIT, self.no_pod_comes()).await.is_err() {
            tracing::warn!(
                "ending after {LIMIT:?} although pods may still be on their way to this node: the kubelet fails those \
                 that it admits before the next plugin is registered"
            );
        }
    }

    async fn no_pod_comes(&mut self) {
        if self.reported.wait_for(|phase| *phase == Some(Phase::Ending)).await.is_err() {
            return;
        }
        let mut changes = self.pods.changes();
        let mut known = BTreeSet::new();
        let mut quiet_at = Instant::now() + QUIET;
        loop {
            let mut waits = false;
            for facts in self.pods.all().iter().filter(|facts| asks_for_units(facts)) {
                waits |= is_to_be_admitted(facts);
                if known.insert(facts.uid.clone()) {
                    quiet_at = Instant::now() + QUIET;
                }
            }
            let is_quiet = Instant::now() >= quiet_at;
            if is_quiet && !waits {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(quiet_at), if !is_quiet => {}
            }
        }
    }
}

fn asks_for_units(facts: &PodFacts) -> bool {
    !matches!(facts.gpu, Ok(None))
}

fn is_to_be_admitted(facts: &PodFacts) -> bool {
    !facts.admitted && !facts.finished && !facts.deleting
}

#[cfg(test)]
mod tests {
    use cluster::Event;
    use tokio::time::sleep;

    use super::*;
    use crate::fixtures::{A, simple};

    /// A plugin that is about to end, and how long it has waited.
    struct Ending {
        pods: Arc<PodCache>,
        reported: watch::Sender<Option<Phase>>,
        begun: Instant,
        end: daemon::Shutdown,
    }

    impl Ending {
        fn of(phase: Phase, reachable: bool) -> Self {
            let pods = Arc::new(PodCache::default());
            let (reported, receiver) = watch::channel(Some(phase));
            let (shutdown, end) = (daemon::Shutdown::new(), daemon::Shutdown::new());
            let departure = Departure {
                phase: watch::channel(phase).0,
                reported: receiver,
                pods: pods.clone(),
                reachable: watch::channel(reachable).1,
            };
            shutdown.cancel();
            tokio::spawn(departure.run(shutdown, end.clone()));
            Self { pods, reported, begun: Instant::now(), end }
        }

        fn show(&self, admitted: bool) {
            let facts = PodFacts { admitted, ..(*simple("p", A, 1)).clone() };
            self.pods.apply(Event::Applied(facts.into()));
        }

        async fn ended_after(&self) -> Duration {
            self.end.cancelled().await;
            self.begun.elapsed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_the_gpus_are_closed_and_no_pod_has_come_for_a_while() {
        let ending = Ending::of(Phase::Serving, true);
        sleep(Duration::from_secs(1)).await;
        ending.reported.send_replace(Some(Phase::Ending));
        assert_eq!(ending.ended_after().await, Duration::from_secs(1) + QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_the_admission_of_a_pod_that_is_bound() {
        let ending = Ending::of(Phase::Serving, true);
        ending.reported.send_replace(Some(Phase::Ending));
        sleep(Duration::from_secs(1)).await;
        ending.show(false);
        sleep(Duration::from_secs(4)).await;
        assert!(!ending.end.is_cancelled());
        ending.show(true);
        assert_eq!(ending.ended_after().await, Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_time_whatever_comes() {
        let unreported = Ending::of(Phase::Serving, true);
        assert_eq!(unreported.ended_after().await, LIMIT);
        let waiting = Ending::of(Phase::Serving, true);
        waiting.show(false);
        waiting.reported.send_replace(Some(Phase::Ending));
        assert_eq!(waiting.ended_after().await, LIMIT);
        assert!(LIMIT < daemon::GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_at_once_where_nothing_is_served_or_nothing_can_be_bound() {
        for ending in [Ending::of(Phase::Starting, true), Ending::of(Phase::Serving, false)] {
            assert_eq!(ending.ended_after().await, Duration::ZERO);
        }
    }
}
