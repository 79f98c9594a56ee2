//! The state that the HTTP handlers share.

use std::sync::Arc;

use cluster::Pod;
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::gpu::GpuRequest;
use placement::names::Names;

use crate::binder::Binder;
use crate::card_evictions::CardEvictions;
use crate::decisions::{DecidedPod, Decision, DecisionLog, NominatedPods, WaitingPods};
use crate::metrics::Metrics;
use crate::node_request::{self, CandidateNodes, NamesJson, NodeRequest};
use crate::over_limits::OverLimits;
use crate::replicas::{Forwarder, OtherReplicas};
use crate::shadow::Shadow;
use crate::view::{Board, View};
use crate::wire::WireError;

/// Returns the current time. Tests use a fixed one.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The state that Filter, Prioritize, Preempt and explain read. They answer from memory.
pub struct Decider {
    /// Node loads and cards, as the watches last showed them.
    pub view: Arc<View>,
    /// Resource names and annotation keys.
    pub names: Arc<Names>,
    /// The last decisions, for explain.
    pub decisions: Arc<DecisionLog>,
    /// First request times of pods whose objects do not show since when they wait.
    pub waiting: WaitingPods,
    /// Pods whose overloaded nominated node was rejected, so that kube-scheduler asks about all nodes.
    pub nominated: NominatedPods,
    /// Sends events for pods that may go to nodes over their limits.
    pub over_limits: OverLimits,
    /// Pods for which others may be evicted; `None` without `--evict-for-cards`.
    pub card_evictions: Option<CardEvictions>,
    /// The shadow policy; `None` without `--shadow-policy-file`.
    pub shadow: Option<Arc<Shadow>>,
    /// The counters of `/metrics`.
    pub metrics: Metrics,
    /// The clock against which readings are fresh or stale.
    pub clock: Clock,
}

/// A request of Filter or Prioritize, with the board that its node places refer to.
pub struct BoardRequest<'a> {
    /// The pod to place.
    pub pod: Pod,
    nodes: CandidateNodes,
    /// The nodes' names as JSON.
    pub names: NamesJson<'a>,
    board: Arc<Board>,
}

impl Decider {
    /// Counts the decision's pod as in flight on the candidate where it will probably be bound.
    pub(crate) fn count_in_flight(&self, decision: &Decision, candidate: usize) {
        let (pod, node) = (&decision.pod, decision.candidate(candidate).name.as_str());
        let (uses, requested) = (pod.uses_in_flight(), pod.requested_cpu());
        self.view.load.in_flight(&pod.uid, node, decision.time, uses, requested);
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Reads a request of Filter or Prioritize.
    ///
    /// # Errors
    ///
    /// As [`node_request::read`].
    pub fn read_request<'a>(&self, body: &'a [u8]) -> Result<BoardRequest<'a>, WireError> {
        let board = self.view.load.current();
        let NodeRequest { pod, nodes, names } = node_request::read(body, &board)?;
        Ok(BoardRequest { pod, nodes, names, board })
    }

    /// The decision about the request's pod and nodes, by the current view. Also returns the nodes' names.
    pub fn decide<'a>(&self, request: BoardRequest<'a>) -> (Arc<Decision>, NamesJson<'a>) {
        let BoardRequest { pod, nodes, names, board } = request;
        let current = self.view.load.current();
        let nodes = nodes.on_board(&board, &current);
        let now = self.now();
        let waited = self.waiting.record_request(&pod, now);
        (Arc::new(self.decision_on(&pod, waited, current, nodes, now)), names)
    }

    fn decision_on(
        &self,
        pod: &Pod,
        waited: SignedDuration,
        board: Arc<Board>,
        nodes: CandidateNodes,
        now: Timestamp,
    ) -> Decision {
        let beyond_units = board.policy.policy.gpu.beyond_units_of(pod.namespace());
        let with_right = |request: GpuRequest| request.with_beyond_units(beyond_units);
        let (request, fault) = match pod.request(&self.names) {
            Ok(request) => (request.map(with_right), None),
            Err(fault) => (None, Some(fault)),
        };
        let decided = DecidedPod::new(pod, self.view.estimates(pod, &self.names), waited);
        Decision::new(board, &self.view.cards, decided, request, nodes, now).with_fault(fault)
    }

    /// The decision at `now` about a pod and nodes by name, outside of Filter and Prioritize.
    pub fn decision_for<'a>(
        &self,
        pod: &Pod,
        nodes: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Decision {
        let board = self.view.load.current();
        let nodes = CandidateNodes::new(&board, nodes);
        self.decision_on(pod, self.waiting.waited(pod, now), board, nodes, now)
    }

    /// Adds a decision to the decision log, and queues its comparison with the shadow policy.
    pub fn record(&self, decision: &Arc<Decision>) {
        self.decisions.record(decision);
        if let Some(shadow) = &self.shadow {
            shadow.enqueue(decision);
        }
    }

    /// As [`Decider::record`], unless an earlier verb has recorded the decision of this scheduling attempt.
    pub fn record_if_new(&self, decision: &Arc<Decision>) {
        if !self.decisions.has_current(&decision.pod.uid, decision.time) {
            self.record(decision);
        }
    }
}

/// The state of all HTTP handlers.
pub struct Extender {
    /// For the verbs that answer from memory.
    pub decider: Decider,
    /// For Bind, which calls the API server.
    pub binder: Arc<Binder>,
    /// Forwards requests about cards to the leader.
    pub forwarder: Forwarder,
    /// Reads explain and shadow from the other replicas; `None` for a single replica.
    pub others: Option<OtherReplicas>,
    /// The shutdown. After it, each connection is closed with its next answer.
    pub ending: Shutdown,
}
