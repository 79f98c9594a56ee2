//! A second policy that decides without effect, so that it can be tried on the real cluster.
//!
//! Invariants: it decides from the same data as the policy in force, and its decisions are never sent to
//! kube-scheduler; without `--shadow-policy-file` nothing of this runs. A verb only queues its [`Decision`]; if the
//! queue is full, one is skipped and counted.

mod comparison;
mod file;
mod metrics;
mod samples;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use daemon::Shutdown;
use jiff::Timestamp;
use placement::load::ResolvedPolicy;
use placement::units::PodUid;

use crate::decisions::Decision;
use crate::tables::{Table, TurnQueue};

pub use comparison::{Comparison, PolicyResult, compare};
pub use file::ShadowFile;
pub use metrics::ShadowMetrics;
pub(crate) use samples::MAX_SAMPLES;
pub(crate) use samples::Samples;

/// The shadow policy and its comparisons.
pub struct Shadow {
    policy: ArcSwapOption<ResolvedPolicy>,
    queue: TurnQueue<PodUid, Arc<Decision>>,
    samples: Mutex<Samples>,
    metrics: ShadowMetrics,
}

impl Shadow {
    /// A shadow without a policy yet.
    #[must_use]
    pub fn new(metrics: ShadowMetrics) -> Arc<Self> {
        let queue = TurnQueue::new(Table::ShadowDecisions);
        let (policy, samples) = (ArcSwapOption::empty(), Mutex::default());
        Arc::new(Self { policy, queue, samples, metrics })
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
        if !self.has_policy() {
            return;
        }
        let pod = &decision.pod;
        if self.queue.push(&pod.namespace, pod.uid.clone(), Arc::clone(decision)).is_some() {
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
    pub async fn follow(self: Arc<Self>, shutdown: Shutdown) -> anyhow::Result<()> {
        while let Some((_, decision)) = shutdown.run_until_cancelled(self.queue.next()).await {
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
