//! What the verbs work with.

use std::sync::Arc;

use cluster::Pod;
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::names::Names;

use crate::asked::{self, Asked, AskedNodes, NamesJson};
use crate::binder::Binder;
use crate::card_evictions::CardEvictions;
use crate::decisions::{DecidedPod, Decision, DecisionLog, WaitingPods};
use crate::metrics::Metrics;
use crate::over_limits::OverLimits;
use crate::replicas::{Forwarder, Others};
use crate::shadow::Shadow;
use crate::view::{Board, View};
use crate::wire::WireError;

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
    /// Since when pods wait whose objects do not say so.
    pub waiting: WaitingPods,
    /// Pods that may go to nodes over their limits.
    pub over_limits: OverLimits,
    /// Pods for which others may be evicted, where that is wanted.
    pub card_evictions: Option<CardEvictions>,
    /// A second policy without effect, where there is one.
    pub shadow: Option<Arc<Shadow>>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The time at which readings are fresh or stale.
    pub clock: Clock,
}

/// A request of Filter or Prioritize, and the board that its nodes are on.
pub struct AskedOn<'a> {
    /// The pod to place.
    pub pod: Pod,
    nodes: AskedNodes,
    /// The names of the nodes.
    pub names: NamesJson<'a>,
    board: Arc<Board>,
}

impl Decider {
    /// Counts the pod that was decided about on the candidate where it will probably be bound.
    pub(crate) fn count_in_flight(&self, decision: &Decision, candidate: usize) {
        let (pod, node) = (&decision.pod, decision.candidate(candidate).name.as_str());
        let (uses, requested) = (pod.uses_in_flight(), pod.requested_cpu());
        self.view.load.in_flight(&pod.uid, node, decision.time, uses, requested);
    }

    /// The time now, by the clock.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Reads a request of Filter or Prioritize.
    ///
    /// # Errors
    ///
    /// As [`asked::read`].
    pub fn asked<'a>(&self, body: &'a [u8]) -> Result<AskedOn<'a>, WireError> {
        let board = self.view.load.current();
        let Asked { pod, nodes, names } = asked::read(body, &board)?;
        Ok(AskedOn { pod, nodes, names, board })
    }

    /// What a decision about the pod follows from now, and the names of the nodes.
    pub fn decision<'a>(&self, asked: AskedOn<'a>) -> (Arc<Decision>, NamesJson<'a>) {
        let AskedOn { pod, nodes, names, board } = asked;
        let current = self.view.load.current();
        let nodes = nodes.moved(&board, &current);
        let now = self.now();
        let waited = self.waiting.asked(&pod, now);
        (Arc::new(self.decision_on(&pod, waited, current, nodes, now)), names)
    }

    fn decision_on(
        &self,
        pod: &Pod,
        waited: SignedDuration,
        board: Arc<Board>,
        nodes: AskedNodes,
        now: Timestamp,
    ) -> Decision {
        let (request, fault) = match pod.request(&self.names) {
            Ok(request) => (request, None),
            Err(fault) => (None, Some(fault)),
        };
        let decided = DecidedPod::new(pod, self.view.estimates(pod, &self.names), waited);
        Decision::new(board, &self.view.cards, decided, request, nodes, now).with_fault(fault)
    }

    /// What a decision about the pod follows from at `now`, for nodes by name.
    pub fn decision_among<'a>(
        &self,
        pod: &Pod,
        nodes: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Decision {
        let board = self.view.load.current();
        let nodes = AskedNodes::new(&board, nodes);
        self.decision_on(pod, self.waiting.seen(pod, now), board, nodes, now)
    }

    /// Keeps what a pod is decided by, and has the shadow decide too.
    pub fn note(&self, decision: &Arc<Decision>) {
        self.decisions.note(decision);
        if let Some(shadow) = &self.shadow {
            shadow.note(decision);
        }
    }

    /// As [`Decider::note`], where no verb before has done so.
    pub fn note_if_new(&self, decision: &Arc<Decision>) {
        if !self.decisions.is_being_decided(&decision.pod.uid, decision.time) {
            self.note(decision);
        }
    }
}

/// What all verbs need.
pub struct Extender {
    /// For the verbs that answer from memory.
    pub decider: Decider,
    /// For Bind, which asks the API server.
    pub binder: Arc<Binder>,
    /// For requests that another replica has to answer.
    pub forwarder: Forwarder,
    /// For what kube-scheduler has asked other replicas; `None` for the only one.
    pub others: Option<Others>,
    /// The process is about to end: connections are closed after the next answer.
    pub ending: Shutdown,
}
