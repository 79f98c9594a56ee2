//! What the verbs work with.

use std::sync::Arc;

use cluster::Pod;
use jiff::Timestamp;
use placement::names::Names;

use crate::binder::Binder;
use crate::decisions::{DecidedPod, Decision, DecisionLog};
use crate::metrics::Metrics;
use crate::over_limits::OverLimits;
use crate::shadow::Shadow;
use crate::view::View;
use crate::wire::Name;

/// Returns the time now; tests give one that stands still.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What Filter, Prioritize, Preempt and explain need: they answer from memory alone.
pub struct Decider {
    /// Nodes and cards as last seen.
    pub view: Arc<View>,
    /// The names on the wire.
    pub names: Arc<Names>,
    /// What the last pods were decided by.
    pub decisions: Arc<DecisionLog>,
    /// Pods that may go to nodes over their limits.
    pub over_limits: OverLimits,
    /// A second policy without effect, where there is one.
    pub shadow: Option<Arc<Shadow>>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The time at which readings are fresh or stale.
    pub clock: Clock,
}

impl Decider {
    /// The time now, by the clock.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// What a decision about the pod follows from at `now`.
    pub fn decision(&self, pod: &Pod, nodes: &[Name<'_>], now: Timestamp) -> Arc<Decision> {
        Arc::new(self.decision_among(pod, nodes.iter().map(Name::as_str), now))
    }

    /// As [`Decider::decision`], for nodes named in another form.
    pub fn decision_among<'a>(
        &self,
        pod: &Pod,
        nodes: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Decision {
        let (board, cards) = (self.view.load.read(), self.view.cards.read());
        let pod_request = pod.request(&self.names).ok().flatten();
        let decided = DecidedPod::new(pod, self.view.estimate(pod, &self.names), now);
        Decision::new(&board, &cards, decided, pod_request, nodes, now)
    }

    /// Keeps what a pod is decided by, and has the shadow decide too.
    pub fn note(&self, decision: &Arc<Decision>) {
        self.decisions.note(decision);
        if let Some(shadow) = &self.shadow {
            shadow.note(decision);
        }
    }

    /// As [`Decider::note`], where no verb before has done so.
    pub fn note_if_new(&self, pod: &Pod, nodes: &[Name<'_>]) {
        let now = self.now();
        if !self.decisions.is_being_decided(&pod.uid(), now) {
            self.note(&self.decision(pod, nodes, now));
        }
    }
}

/// What all verbs need.
pub struct Extender {
    /// For the verbs that answer from memory.
    pub decider: Decider,
    /// For Bind, which asks the API server.
    pub binder: Arc<Binder>,
}
