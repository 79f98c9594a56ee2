//! Has the MPS clients of a pod terminated before its processes are killed.
//!
//! A client that is killed with kernels in flight ends the others on its GPU. Terminated by its server, it ends none:
//! the server lets it submit nothing more, and ends its work first. That takes MPS's privileged socket, which the
//! container `drain` beside the control daemon reaches ([`pipe`]); [`due`] says when.
//!
//! Invariant: nothing waits for this. A pod is killed by its kubelet alone, and its units are free once its processes
//! have ended, terminated or not.

mod due;
mod pipe;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use placement::units::PodUid;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::metrics::Metrics;
use crate::pods::{PodCache, PodFields};
use crate::records::SharedRecords;
use due::DrainSchedule;
pub(crate) use pipe::DrainPipe;

/// Time between two looks at whether the pipe has a reader.
const LOOK: Duration = Duration::from_secs(5);
/// What is waited for while nothing is due.
const NEVER: Duration = Duration::from_secs(3600);

/// Asks for the end of the clients of pods that are about to be killed.
pub(crate) struct Drain {
    /// Where it is asked for.
    pub pipe: DrainPipe,
    /// The node's pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Which pods were granted ids.
    pub records: Arc<SharedRecords>,
    /// Counts pods.
    pub metrics: Metrics,
}

impl Drain {
    /// Asks until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            ((), ()) = async { tokio::join!(self.look(), self.follow()) } => {}
        }
    }

    /// Counts whether the pipe has a reader.
    async fn look(&self) {
        let mut was_served = false;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let served = self.pipe.is_served();
            self.metrics.mps_drain.set(served.into());
            if served && !was_served {
                tracing::info!("MPS's clients are terminated before their processes are killed");
            } else if !served && was_served {
                tracing::warn!(
                    "MPS's clients are no longer terminated before their processes are killed"
                );
            }
            was_served = served;
        }
    }

    async fn follow(&self) {
        // Without the pods it is not known which are gone.
        self.pods.listed().await;
        let mut changes = self.pods.changes();
        let mut schedule = DrainSchedule::default();
        schedule.add_gone(self.records.lock().holders().map(|(uid, _)| uid.clone()));
        loop {
            let due = schedule.step(&self.pods.by_uids(), Instant::now(), Timestamp::now());
            for (pod, is_first) in &due.now {
                self.ask(pod, *is_first);
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(due.next.unwrap_or_else(|| Instant::now() + NEVER)) => {}
            }
        }
    }

    /// Asks for a pod. Each pod counts once.
    fn ask(&self, pod: &PodUid, is_first: bool) {
        let facts = self.pods.by_uid(pod);
        let PodFields { namespace, pod: name, .. } = PodFields::of(facts.as_deref());
        let asked = self.pipe.ask(pod);
        if is_first {
            let result = if asked.is_ok() { "asked" } else { "failed" };
            self.metrics.mps_drains.with([result]).inc();
        }
        match asked {
            Ok(()) => tracing::debug!(
                uid = pod.as_str(),
                namespace,
                pod = name,
                "the pod's MPS clients are to be terminated"
            ),
            Err(error) if is_first => {
                tracing::warn!(uid = pod.as_str(), namespace, pod = name, "{error}");
            }
            Err(_) => {}
        }
    }
}
