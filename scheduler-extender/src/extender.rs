//! The state that the HTTP handlers share.

use std::sync::Arc;

use axum::http::HeaderMap;
use cluster::{GpuRequestError, Pod};
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::names::Names;
use tokio::sync::watch;

use crate::Clock;
use crate::binder::Binder;
use crate::decisions::{
    DecidedPod, Decision, DecisionLog, Evaluator, NominatedPods, RatingCache, WaitingPods,
};
use crate::gangs::Gangs;
use crate::gpu_evictions::GpuEvictions;
use crate::host_names::HostNames;
use crate::metrics::Metrics;
use crate::node_request::{self, CandidateNodes, NamesJson, NodeRequest};
use crate::over_limits::OverLimits;
use crate::replicas::{FORWARDED, Forwarder, OtherReplicas, Replicas};
use crate::report::StateReport;
use crate::shadow::Shadow;
use crate::view::{Current, NodeNames, PodEstimates, View};
use crate::wire::WireError;

/// The state that Filter, Prioritize, Preempt and explain read. They answer from memory.
pub struct Decider {
    /// Node loads and GPUs, as the watches last showed them.
    pub view: Arc<View>,
    /// Resource names and annotation keys.
    pub names: Arc<Names>,
    /// The last decisions, for explain.
    pub decisions: Arc<DecisionLog>,
    /// First request times of pods whose objects do not show since when they wait.
    pub waiting: WaitingPods,
    /// Pods whose overloaded nominated node was rejected, so that kube-scheduler asks about all nodes.
    pub nominated: NominatedPods,
    /// The pods that are placed and bound together.
    pub gangs: Arc<Gangs>,
    /// The nodes' ratings for recent GPU requests.
    pub ratings: RatingCache,
    /// Sends events for pods that may go to nodes over their limits.
    pub over_limits: OverLimits,
    /// Pods for which others may be evicted; `None` without `--evict-for-cards`.
    pub gpu_evictions: Option<GpuEvictions>,
    /// The shadow policy; `None` without `--shadow-policy-file`.
    pub shadow: Option<Arc<Shadow>>,
    /// The counters of `/metrics`.
    pub metrics: Metrics,
    /// The clock against which readings are fresh or stale.
    pub clock: Clock,
}

/// A request of Filter or Prioritize, with the names by whose places it names nodes.
pub struct PlacedRequest<'a> {
    /// The pod to place.
    pub pod: Pod,
    nodes: CandidateNodes,
    /// The nodes' names as JSON.
    pub names: NamesJson<'a>,
    known: Arc<NodeNames>,
}

/// A decision of a verb.
pub struct Decided<'a> {
    /// The decision.
    pub decision: Arc<Decision>,
    /// The nodes' names as JSON, in its order.
    pub names: NamesJson<'a>,
    current: Arc<Current>,
    ratings: &'a RatingCache,
}

impl Decided<'_> {
    /// Computes what follows from the decision.
    #[must_use]
    pub fn evaluator(&self) -> Evaluator<'_> {
        Evaluator::prepared(&self.decision, &self.current.prepared, self.ratings)
    }
}

impl Decider {
    /// Counts the decision's pod as in flight on the candidate where it will probably be bound.
    pub(crate) fn count_in_flight(&self, decision: &Decision, candidate: usize) {
        let pod = &decision.pod;
        let node = decision.name(candidate);
        let uses = pod.uses_in_flight();
        let declares = pod.declared.rates;
        self.view.change(|index| {
            index.count_in_flight(&pod.namespace, &pod.uid, node, decision.time, uses, declares);
            if pod.has_volume_claims {
                index.wait_for_volumes(&pod.uid);
            }
        });
    }

    /// Ends the pod's in-flight entry: in another attempt, as after a failed binding, it must not count itself. Takes
    /// no lock for a pod that is not in flight.
    pub(crate) fn end_in_flight(&self, pod: &Pod) {
        let uid = pod.uid();
        if self.view.current().in_flight.contains(&uid) {
            self.view.change(|index| index.not_in_flight(&uid));
        }
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
    pub fn read_request<'a>(&self, body: &'a [u8]) -> Result<PlacedRequest<'a>, WireError> {
        let known = Arc::clone(self.view.read().names());
        let read = node_request::read(body, &known);
        if matches!(read, Err(WireError::NoNames)) {
            self.metrics.calls.note_whole_nodes();
        }
        let NodeRequest { pod, nodes, names } = read?;
        Ok(PlacedRequest { pod, nodes, names, known })
    }

    /// As [`node_request::read_beside_large_pod`], of a pod that asks for GPU memory.
    pub fn read_beside_large_pod<'a>(
        &self,
        body: &'a [u8],
    ) -> Option<(GpuRequestError, NamesJson<'a>)> {
        let view = self.view.read();
        node_request::read_beside_large_pod(body, self.names.gpu_resource(), view.names())
    }

    /// The decision about the request's pod and nodes, by the current view.
    pub fn decide<'a>(&'a self, request: PlacedRequest<'a>) -> Decided<'a> {
        let PlacedRequest { pod, nodes, names, known } = request;
        let current = self.view.current();
        let candidates = nodes.moved(&known, current.snapshot.names());
        let now = self.now();
        let waited = self.waiting.record_request(&pod, now);
        let decision = self.decision_by(&current, &pod, waited, candidates, now);
        let decision = Arc::new(decision.beside_slices());
        Decided { decision, names, current, ratings: &self.ratings }
    }

    fn decision_by(
        &self,
        current: &Current,
        pod: &Pod,
        waited: SignedDuration,
        nodes: CandidateNodes,
        now: Timestamp,
    ) -> Decision {
        let beyond_units = current.snapshot.beyond_units_of(pod.namespace());
        let (request, fault) = match pod.request(&self.names) {
            Ok(request) => (request.map(|request| request.with_beyond_units(beyond_units)), None),
            Err(fault) => (None, Some(fault)),
        };
        let decided = DecidedPod::new(pod, current.estimates(pod, &self.names), waited)
            .with_declared(pod.declared(&self.names));
        let snapshot = Arc::clone(&current.snapshot);
        let by_units = request.is_some() || fault.is_some();
        let by_claims = if by_units { None } else { self.view.claim_request(pod) };
        let decision = Decision::new(snapshot, decided, request, nodes, now).with_fault(fault);
        by_claims.into_iter().fold(decision, Decision::with_claims)
    }

    /// The decision at `now` about a pod and nodes of `current` by name, outside of Filter and Prioritize.
    pub fn decision_for<'a>(
        &self,
        current: &Current,
        pod: &Pod,
        nodes: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Decision {
        let nodes = CandidateNodes::new(current.snapshot.names(), nodes);
        self.decision_by(current, pod, self.waiting.waited(pod, now), nodes, now)
    }

    /// The decision at `now` about a pod that uses nothing, on nodes by name: what holds of the nodes alone.
    pub fn decision_for_none<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Decision {
        let snapshot = self.view.read();
        let nodes = CandidateNodes::new(snapshot.names(), nodes);
        let none = DecidedPod::new(&Pod::default(), PodEstimates::default(), SignedDuration::ZERO);
        Decision::new(snapshot, none, None, nodes, now)
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

#[cfg(test)]
impl Decider {
    /// The verbs over this view, at this time, without evictions and shadow policy.
    pub(crate) fn of_view(view: View, now: Timestamp) -> Self {
        Self {
            view: Arc::new(view),
            names: Arc::default(),
            decisions: Arc::default(),
            waiting: WaitingPods::default(),
            nominated: NominatedPods::default(),
            gangs: Arc::default(),
            ratings: RatingCache::default(),
            over_limits: OverLimits::default(),
            gpu_evictions: None,
            shadow: None,
            metrics: Metrics::default(),
            clock: Arc::new(move || now),
        }
    }
}

/// The state of all HTTP handlers.
pub struct Extender {
    /// For the verbs that answer from memory.
    pub decider: Decider,
    /// For Bind, which calls the API server.
    pub binder: Arc<Binder>,
    /// Forwards requests about GPUs to the leader.
    pub forwarder: Forwarder,
    /// This replica's part in the leader election.
    pub replicas: Arc<Replicas>,
    /// The rows of `/v1/state`.
    pub state: StateReport,
    /// The names in `Host` headers that the inspect port accepts.
    pub host_names: HostNames,
    /// Why the newest policy file is refused; `None` if it is not.
    pub policy_fault: watch::Receiver<Option<String>>,
    /// Reads explain, shadow and decisions from the other replicas; `None` for a single replica.
    pub others: Option<OtherReplicas>,
    /// The shutdown. After it, each connection is closed with its next answer.
    pub ending: Shutdown,
}

impl Extender {
    /// The other replicas, where they are to be asked too: not by a request that is from one of them.
    pub(crate) fn others_to_ask(&self, headers: &HeaderMap) -> Option<&OtherReplicas> {
        if headers.contains_key(FORWARDED) { None } else { self.others.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;
    use std::time::Duration;

    use cluster::Event;
    use placement::policy::LoadPolicy;
    use placement::reading::ReadingCodec;
    use placement::resources::Resource;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::Verb;
    use crate::view::fixtures;

    /// The cores that count on node `n`, nine minutes after this pod of a core was prioritized.
    fn in_flight_later(volumes: &Value) -> f64 {
        let now = Timestamp::from_second(1_795_165_200).unwrap();
        let view = fixtures::view_under(estimating());
        let node = json!({ "metadata": { "name": "n" }, "status": { "capacity": { "cpu": "8" } } });
        let node: cluster::Node = serde_json::from_value(node).unwrap();
        let node = node.facts(&Names::default(), &ReadingCodec::default());
        view.apply_nodes(Event::Listed(vec![node]), now);
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now);
        let decider = Decider::of_view(view, now);
        let pod = json!({
            "metadata": { "name": "p", "namespace": "shop", "uid": "u" },
            "spec": { "volumes": volumes, "containers": [
                { "name": "c", "resources": { "requests": { "cpu": "1" } } },
            ] },
        });
        let body = json!({ "Pod": pod, "NodeNames": ["n"] }).to_string();
        let decided = decider.decide(decider.read_request(body.as_bytes()).unwrap());
        decider.count_in_flight(&decided.decision, 0);
        let later = now + SignedDuration::from_mins(9);
        let view = decider.view.read();
        let recent = &view.load("n").unwrap().recent;
        recent.use_not_in_reading(Resource::Cpu, later, SignedDuration::from_mins(5), later)
    }

    /// A policy by which pods in flight count.
    fn estimating() -> LoadPolicy {
        let text = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {metrics: [{name: cpu_usage_avg_5m, \
                    period: 3m, weight: 1}]}";
        LoadPolicy::from_yaml(text).unwrap()
    }

    #[test]
    fn a_first_filter_takes_no_lock_and_a_further_attempt_is_not_in_flight() {
        let (view, now) = (fixtures::view_under(estimating()), Timestamp::UNIX_EPOCH);
        fixtures::list(&view, &["n", "m"].map(str::to_owned), &fixtures::gpu());
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now);
        let decider = Arc::new(Decider::of_view(view, now));
        let asks = json!({ "requests": { "cpu": "1" }, "limits": { "aliyun.com/gpu-mem": 4 } });
        let pod = json!({ "metadata": { "name": "p", "namespace": "shop", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "resources": asks }] } });
        let body = json!({ "Pod": pod, "NodeNames": ["n", "m"] }).to_string();
        let [filter, prioritize, _, by_gpus, _] = crate::http::VERBS.map(|(_, verb)| verb);
        let answers = decider.view.ask(|_| {
            let (ended, end) = mpsc::channel();
            let (decider, body) = (Arc::clone(&decider), body.clone());
            let ask = move |verb: Verb| verb(&decider, body.as_bytes()).json().to_vec();
            std::thread::spawn(move || ended.send([filter, by_gpus].map(ask)));
            end.recv_timeout(Duration::from_secs(30)).expect("without the lock")
        });
        assert!(answers.iter().all(|json| json.starts_with(br#"{"NodeNames":["n","m"]"#)));
        let is_in_flight = || decider.view.current().in_flight.contains("u");
        assert!(!is_in_flight());
        prioritize(&decider, body.as_bytes());
        assert!(is_in_flight());
        filter(&decider, body.as_bytes());
        assert!(!is_in_flight());
    }

    #[test]
    fn a_pod_whose_volume_may_have_to_be_bound_first_stays_in_flight() {
        let claim = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "v" } }]);
        assert_eq!([claim, json!(null)].map(|volumes| in_flight_later(&volumes)), [0.85, 0.0]);
    }
}
