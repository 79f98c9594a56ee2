//! A second policy that decides without effect, so that it can be tried on the real cluster.
//!
//! Invariants: it decides from the same data as the policy in force, and its decisions are never sent to
//! kube-scheduler; without `--shadow-policy-file` nothing of this runs. A verb only queues its [`Decision`]; if the
//! queue is full, the decision is skipped and counted.

mod comparison;
mod file;
mod samples;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use daemon::Shutdown;
use jiff::Timestamp;
use placement::load::ResolvedPolicy;
use tokio::sync::mpsc;

use crate::decisions::Decision;
use crate::metrics::ShadowMetrics;

pub use comparison::{Comparison, PolicyResult, compare};
pub use file::ShadowFile;
pub(crate) use samples::MAX_SAMPLES;
use samples::Samples;

/// Decisions in the queue at most. kube-scheduler places one pod at a time.
const QUEUE: usize = 64;

/// The shadow policy and its comparisons.
pub struct Shadow {
    policy: ArcSwapOption<ResolvedPolicy>,
    queue: mpsc::Sender<Arc<Decision>>,
    samples: Mutex<Samples>,
    metrics: ShadowMetrics,
}

/// The queue of decisions to compare.
pub type DecisionQueue = mpsc::Receiver<Arc<Decision>>;

impl Shadow {
    /// A shadow without a policy yet, and the queue for [`Shadow::follow`].
    #[must_use]
    pub fn new(metrics: ShadowMetrics) -> (Arc<Self>, DecisionQueue) {
        let (queue, decisions) = mpsc::channel(QUEUE);
        let shadow =
            Self { policy: ArcSwapOption::empty(), queue, samples: Mutex::default(), metrics };
        (Arc::new(shadow), decisions)
    }

    /// Replaces the shadow policy.
    pub fn set_policy(&self, policy: Arc<ResolvedPolicy>) {
        self.policy.store(Some(policy));
    }

    /// Whether there is a policy.
    pub fn has_policy(&self) -> bool {
        self.policy.load().is_some()
    }

    /// Queues a decision for comparison.
    pub fn enqueue(&self, decision: &Arc<Decision>) {
        if self.has_policy() && self.queue.try_send(Arc::clone(decision)).is_err() {
            self.metrics.skipped.inc();
        }
    }

    /// The comparisons of the last hour, newest first.
    pub fn last_hour(&self, now: Timestamp) -> Vec<Arc<Comparison>> {
        self.samples().newest_first(now)
    }

    /// Compares queued decisions until the shutdown, on blocking threads.
    ///
    /// # Errors
    ///
    /// Where a comparison panics.
    pub async fn follow(
        self: Arc<Self>,
        mut queue: DecisionQueue,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        while let Some(Some(decision)) = shutdown.run_until_cancelled(queue.recv()).await {
            let shadow = Arc::clone(&self);
            tokio::task::spawn_blocking(move || shadow.compare(&decision)).await?;
        }
        Ok(())
    }

    fn compare(&self, decision: &Decision) {
        let Some(policy) = self.policy.load_full() else { return };
        let comparison = Arc::new(compare(decision, &policy));
        self.metrics.count_comparison(&comparison);
        self.samples().insert(comparison, [decision.policy(), &policy]);
    }

    // Every change is one insert or removal.
    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
