//! A decision: one pod, the nodes of the request, and the state of the cluster at that time.
//!
//! Invariant: Filter, Prioritize, Preempt, explain and the shadow policy call the same functions. The verbs pass
//! [`Prepared`] values, which change no result.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use cluster::GpuRequestError;
use jiff::Timestamp;
use placement::gpu::fragmentation::Cost;
use placement::gpu::{ChoiceRule, GpuRequest, NoFit, NodeCards, score_less_card_cost, scores};
use placement::load::{
    Evaluation, NodeLoad, Pairing, PodKind, PodToPlace, RecentPods, ResolvedPolicy, Score, Verdict,
    pass_over_limits,
};
use placement::selector::Labels;
use placement::units::NodeName;

use super::DecidedPod;
use crate::node_request::CandidateNodes;
use crate::view::{Prepared, Rated, Snapshot};

/// All inputs of a decision about one pod. The state of the cluster is shared with the view, not copied.
#[derive(Debug)]
pub struct Decision {
    /// The pod, and the node that it was bound to.
    pub pod: Arc<DecidedPod>,
    /// The time of the decision, at which readings are fresh or stale.
    pub time: Timestamp,
    /// The pod's GPU request; `None` where it has none, or a faulty one.
    pub request: Option<GpuRequest>,
    /// The fault of a GPU request that cannot be read, or that no node can meet.
    pub fault: Option<GpuRequestError>,
    /// How cards are chosen.
    pub rule: ChoiceRule,
    /// The nodes in the order of the request.
    nodes: CandidateNodes,
    /// All nodes at that time, and the policy in force.
    snapshot: Arc<Snapshot>,
    /// The pairing under the policy in force and under the shadow policy, once computed.
    pairings: [OnceLock<Pairing>; 2],
}

impl Decision {
    /// A decision by the state of the cluster in `snapshot`.
    #[must_use]
    pub fn new(
        snapshot: Arc<Snapshot>,
        pod: DecidedPod,
        request: Option<GpuRequest>,
        nodes: CandidateNodes,
        time: Timestamp,
    ) -> Self {
        Self {
            pod: Arc::new(pod),
            time,
            request,
            fault: None,
            rule: snapshot.choice_rule(),
            nodes,
            snapshot,
            pairings: Default::default(),
        }
    }

    /// The same decision with the fault of the pod's GPU request.
    #[must_use]
    pub fn with_fault(self, fault: Option<GpuRequestError>) -> Self {
        Self { fault, ..self }
    }

    /// The same decision without the GPU request, for callers that check cards separately.
    #[must_use]
    pub fn without_cards(self) -> Self {
        Self { request: None, ..self }
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<ResolvedPolicy> {
        &self.snapshot.policy
    }

    /// The state of the cluster that was decided by.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// How many nodes the request named.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the request named no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The name of the node at a position of the request.
    ///
    /// # Panics
    ///
    /// Where there is no such position.
    #[must_use]
    pub fn name(&self, position: usize) -> &NodeName {
        self.nodes.name(self.snapshot.names(), position)
    }

    /// The load of the node at a position, without the pod itself, which is in flight if kube-scheduler has just sent a
    /// request for it. `None` for an unknown node.
    #[must_use]
    pub fn load(&self, position: usize) -> Option<Cow<'_, NodeLoad>> {
        let load = self.snapshot.at(self.nodes.places()[position]?).load.as_ref()?;
        Some(self.without_pod(load))
    }

    fn without_pod<'n>(&self, load: &'n NodeLoad) -> Cow<'n, NodeLoad> {
        if !load.recent.has_in_flight(&self.pod.uid) {
            return Cow::Borrowed(load);
        }
        let mut recent = RecentPods::clone(&load.recent);
        recent.remove_in_flight(&self.pod.uid);
        Cow::Owned(NodeLoad { recent: Arc::new(recent), ..load.clone() })
    }

    /// The cards of the node at a position; `None` for a node without cards.
    pub(super) fn cards(&self, position: usize) -> Option<&Arc<NodeCards>> {
        self.snapshot.at(self.nodes.places()[position]?).cards.as_ref()
    }

    /// The inputs of a load decision about a node under `policy`: the one in force or the shadow policy.
    pub fn evaluation<'p, 'n>(
        &'p self,
        policy: &'p ResolvedPolicy,
        node: &'n NodeLoad,
    ) -> Evaluation<'p, 'n> {
        let evaluation = self.without_pairing(policy, node);
        let pod = PodToPlace { pairing: self.pairing(policy, None), ..evaluation.pod };
        Evaluation { pod, ..evaluation }
    }

    /// The verdict about a node under the policy in force by its limits alone.
    pub fn verdict_by_limits(&self, node: &NodeLoad) -> Verdict<'_> {
        self.without_pairing(self.policy(), node).verdict()
    }

    /// As [`Decision::evaluation`], for what the pairing does not affect: verdicts and limits.
    fn without_pairing<'p, 'n>(
        &'p self,
        policy: &'p ResolvedPolicy,
        node: &'n NodeLoad,
    ) -> Evaluation<'p, 'n> {
        let pod = if self.is_in_force(policy) {
            self.pod.to_place()
        } else {
            self.pod.to_place_by_shadow()
        };
        Evaluation { policy, node, pod, now: self.time }
    }

    /// The pod's pairing under `policy`: the one in force or the shadow policy.
    pub fn pairing(&self, policy: &ResolvedPolicy, prepared: Option<&Prepared>) -> Pairing {
        let scoring = &policy.policy.scoring;
        if !scoring.pairs() {
            return Pairing::NONE;
        }
        let is_in_force = self.is_in_force(policy);
        *self.pairings[usize::from(!is_in_force)].get_or_init(|| {
            let prepared = self.prepared_under(policy, prepared);
            let nodes = self.snapshot.cpu_use(prepared, self.time, |node| {
                let node = &*self.without_pod(node);
                Evaluation { policy, node, pod: PodToPlace::ORDINARY, now: self.time }.cpu_use()
            });
            self.pod.pairing(scoring, nodes, is_in_force)
        })
    }

    /// The prepared values, if they are those under `policy`: the one in force.
    fn prepared_under<'a>(
        &self,
        policy: &ResolvedPolicy,
        prepared: Option<&'a Prepared>,
    ) -> Option<&'a Prepared> {
        if self.is_in_force(policy) { prepared } else { None }
    }

    /// Whether each candidate may take the pod by its load under `policy`. An unknown node may, unless the pod's
    /// namespace has nodes of its own.
    pub fn verdicts<'p>(
        &'p self,
        policy: &'p ResolvedPolicy,
        prepared: Option<&Prepared>,
    ) -> Verdicts<'p> {
        let mut each = match self.prepared_under(policy, prepared) {
            Some(prepared) if !self.depends_on_pod(policy) => self.prepared_verdicts(prepared),
            _ => (0..self.len()).map(|at| self.verdict(policy, self.load(at).as_deref())).collect(),
        };
        let over_limits = pass_over_limits(
            &policy.policy.overload,
            self.pod.waited,
            &each,
            |position| self.no_fit(position).is_none(),
            |position| self.limit_ratio(policy, position),
            |one, other| self.compare_names(one, other),
        );
        for position in &over_limits {
            each[*position] = Verdict::Accepted;
        }
        Verdicts { each, over_limits }
    }

    /// How near the node at a position is to its limits; infinite for an unknown node, which has no readings.
    pub(super) fn limit_ratio(&self, policy: &ResolvedPolicy, position: usize) -> f64 {
        match self.load(position) {
            Some(load) => self.without_pairing(policy, &load).limit_ratio(),
            None => f64::INFINITY,
        }
    }

    fn prepared_verdicts(&self, prepared: &Prepared) -> Vec<Verdict<'_>> {
        let policy = self.policy();
        let uses = self.pod.uses();
        prepared.of_each(
            (&self.snapshot, self.time),
            self.nodes.places(),
            Verdict::Accepted,
            |loads| loads.all_accept(&uses).then_some(Verdict::Accepted),
            |loads, node| match loads.of(node) {
                Ok(loads) => loads.verdict(policy, node, &uses),
                Err(load) => self.verdict(policy, load),
            },
        )
    }

    fn verdict<'p>(&'p self, policy: &'p ResolvedPolicy, load: Option<&NodeLoad>) -> Verdict<'p> {
        match load {
            Some(known) => self.without_pairing(policy, known).verdict(),
            None => self.unknown_node_verdict(policy),
        }
    }

    fn unknown_node_verdict<'p>(&'p self, policy: &'p ResolvedPolicy) -> Verdict<'p> {
        if self.pod.kind != PodKind::Ordinary {
            return Verdict::Accepted;
        }
        let broken = policy.broken_namespace_rule(&self.pod.namespace, &Labels::default());
        broken.map_or(Verdict::Accepted, Verdict::OtherNamespace)
    }

    /// Whether `policy` is the one in force, for which loads are prepared.
    fn is_in_force(&self, policy: &ResolvedPolicy) -> bool {
        std::ptr::eq(policy, &**self.policy())
    }

    /// Whether the verdicts depend on more of the pod than its use: on an exemption, or on the nodes of its namespace.
    fn depends_on_pod(&self, policy: &ResolvedPolicy) -> bool {
        policy.exempts(&self.pod.to_place()) || policy.confines(&self.pod.namespace)
    }

    /// The score of each node under `policy`: by its load and, for a pod with a GPU request, by its cards.
    pub fn scores(&self, policy: &ResolvedPolicy, prepared: Option<&Prepared>) -> Vec<Score> {
        let by_load = match self.prepared_under(policy, prepared) {
            Some(prepared) => self.prepared_load_scores(prepared),
            None => (0..self.len())
                .map(|at| self.load_score(policy, self.load(at).as_deref()))
                .collect(),
        };
        let mut scores = by_load;
        let by_cards = self.card_scores(prepared);
        for (position, score) in scores.iter_mut().enumerate() {
            *score = match &by_cards {
                Some(by_cards) => by_cards[position].mean(*score),
                None => self.less_card_cost(position, *score),
            };
        }
        scores
    }

    fn prepared_load_scores(&self, prepared: &Prepared) -> Vec<Score> {
        let policy = self.policy();
        let uses = self.pod.uses();
        let pairing = self.pairing(policy, Some(prepared));
        prepared.of_each(
            (&self.snapshot, self.time),
            self.nodes.places(),
            Score::ZERO,
            |_| None,
            |loads, node| match loads.of(node) {
                Ok(loads) => loads.score(policy, node, &uses, pairing),
                Err(load) => self.load_score(policy, load),
            },
        )
    }

    fn load_score(&self, policy: &ResolvedPolicy, load: Option<&NodeLoad>) -> Score {
        load.map_or(Score::ZERO, |known| self.evaluation(policy, known).score())
    }

    /// The score of the node at a position for a pod without a GPU request.
    fn less_card_cost(&self, position: usize, by_load: Score) -> Score {
        let cost = self.cost_to_cards(position);
        cost.map_or(by_load, |cost| score_less_card_cost(by_load, cost))
    }

    /// The cost to the cards of the node at a position of the CPU that the pod takes; `None` for a pod with a GPU
    /// request, or where fragmentation is not measured.
    pub fn cost_to_cards(&self, position: usize) -> Option<Cost> {
        if self.request.is_some() {
            return None;
        }
        let measure = self.rule.for_plain_pods()?;
        Some(self.cards(position)?.cost_of_cpu(self.pod.cpu, measure))
    }

    /// The score of each node by its cards, 0 where none fit; `None` for a pod without a GPU request.
    pub fn card_scores(&self, prepared: Option<&Prepared>) -> Option<Vec<Score>> {
        let request = self.request.as_ref()?;
        let ratings = self.ratings(request, prepared).into_iter();
        let ratings: Vec<_> = ratings.map(|rating| rating.and_then(Result::ok)).collect();
        Some(scores(&ratings, |one, other| self.compare_names(one, other)))
    }

    /// The order of the names of the nodes at two positions.
    fn compare_names(&self, one: usize, other: usize) -> Ordering {
        let names = self.snapshot.names();
        match (self.nodes.places()[one], self.nodes.places()[other]) {
            (Some(one), Some(other)) => names.rank(one).cmp(&names.rank(other)),
            _ => self.name(one).cmp(self.name(other)),
        }
    }

    /// The rating of each node by its cards, or why none fit; `None` for a node without cards.
    fn ratings(&self, request: &GpuRequest, prepared: Option<&Prepared>) -> Vec<Option<Rated>> {
        let uid = &self.pod.uid;
        let rule = &self.rule;
        if let Some(prepared) = prepared {
            let at = (&*self.snapshot, prepared);
            return prepared.ratings.rate(at, uid, (request, rule), self.nodes.places());
        }
        (0..self.len()).map(|at| Some(self.cards(at)?.rate(uid, request, rule))).collect()
    }

    /// [`Decision::no_fit`] of each node.
    pub fn no_fits(&self, prepared: &Prepared) -> Vec<Option<NoFit>> {
        let Some(request) = &self.request else { return vec![None; self.len()] };
        if !prepared.ratings.has(request, &self.rule) {
            // Where no ratings are kept, checking is faster than rating.
            return (0..self.len()).map(|position| self.no_fit(position)).collect();
        }
        let mut no_fits = Vec::with_capacity(self.len());
        for (position, rating) in self.ratings(request, Some(prepared)).into_iter().enumerate() {
            no_fits.push(if self.is_backed_off(position) {
                Some(NoFit::BackedOff)
            } else {
                rating.map_or(Some(NoFit::NoCards), Result::err)
            });
        }
        no_fits
    }

    /// Why the node at a position is rejected for its cards; `None` where it is not.
    pub fn no_fit(&self, position: usize) -> Option<NoFit> {
        let request = self.request.as_ref()?;
        if self.is_backed_off(position) {
            return Some(NoFit::BackedOff);
        }
        match self.cards(position) {
            Some(cards) => cards.check(&self.pod.uid, request).err(),
            None => Some(NoFit::NoCards),
        }
    }

    /// Whether the node at a position takes no pods of the pod's namespace for a while.
    fn is_backed_off(&self, position: usize) -> bool {
        self.snapshot.is_backed_off(self.name(position), &self.pod.namespace, self.time)
    }

    /// The nodes in the order of the request.
    pub(super) fn nodes(&self) -> &CandidateNodes {
        &self.nodes
    }

    /// The same decision between other nodes of its snapshot.
    pub(super) fn between(&self, nodes: CandidateNodes) -> Self {
        Self {
            pod: Arc::clone(&self.pod),
            time: self.time,
            request: self.request.clone(),
            fault: self.fault.clone(),
            rule: self.rule.clone(),
            nodes,
            snapshot: Arc::clone(&self.snapshot),
            pairings: self.pairings.clone(),
        }
    }
}

/// Whether each candidate of a decision may take the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdicts<'p> {
    /// In the order of the candidates; a node that passes although it is over a limit is accepted.
    pub each: Vec<Verdict<'p>>,
    /// Positions of the nodes that pass although they are over a limit: the least loaded, where every node is over one.
    pub over_limits: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::sync::LazyLock;

    use api::explain::{DecisionBasis, Node};
    use cluster::{Event, NodeFacts, Pod, WatchCause};
    use jiff::SignedDuration;
    use placement::gpu::{Card, Claim};
    use placement::names::Names;
    use placement::policy::LoadPolicy;
    use placement::reading::{Reading, ReadingCodec};
    use placement::resources::Amounts;
    use placement::units::{Ratio, Units};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::kept::KeptDecision;
    use super::super::summary::summary;
    use super::*;
    use crate::decisions::explain;
    use crate::view::{Current, GpuPodId, fixtures};

    const NODES: usize = 150;
    /// Pods hold cards of one whose node the watch has not shown.
    const UNSHOWN: usize = NODES + 5;

    const POLICIES: [&str; 3] = [
        "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
  priority: [{name: cpu_usage_avg_5m, weight: 1}]
",
        "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}]
  scoring: {pairing: 0.5}
  estimates: {enabled: true}
  hotValue: [{timeRange: 5m, count: 2}]
  nodePools:
  - {name: batch, selector: pool=batch, metrics: [{name: cpu_usage_avg_5m, limit: 0.95}]}
  namespaces: [{names: [team-a], nodeSelector: team=a}]
",
        // Nearly every node is over its limit, and many equally: some pass by their names.
        "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.05, weight: 1}]
",
    ];

    static CURRENT: LazyLock<[Arc<Current>; 3]> = LazyLock::new(|| POLICIES.map(current));

    fn now() -> Timestamp {
        Timestamp::from_second(1_795_165_200).unwrap()
    }

    /// 64 nodes with room, then nodes of every load; each seventh has no reading, and each third has a card.
    fn node(number: usize) -> NodeFacts {
        let percent = number * 37 % if number < 64 { 60 } else { 100 } / 10 * 10;
        let load = Ratio::new(percent as f64 / 100.0).unwrap();
        // Some readings get old earlier than others.
        let at = now() - SignedDuration::from_secs(number as i64 % 90);
        let text = ReadingCodec::default().encode(&Reading::new(load, at));
        let key = if number.is_multiple_of(7) { "other" } else { "cpu_usage_avg_5m" };
        let pool = if number.is_multiple_of(5) { "batch" } else { "none" };
        let team = if number.is_multiple_of(4) { "a" } else { "b" };
        let node: cluster::Node = serde_json::from_value(json!({
            "metadata": {
                "name": format!("n{number}"),
                "annotations": { key: text },
                "labels": { "pool": pool, "team": team },
            },
            "status": {
                "allocatable": { "cpu": "8", "memory": "32Gi" },
                "capacity": { "cpu": "8", "memory": "32Gi" },
            },
        }))
        .unwrap();
        let card = Card { healthy: !number.is_multiple_of(9), ..fixtures::card() };
        let cards = number.is_multiple_of(3).then(|| Ok(vec![card]));
        NodeFacts { cards, ..node.facts(&Names::default(), &ReadingCodec::default()) }
    }

    fn pod(namespace: &str, more: &Value) -> Pod {
        let mut pod = json!({ "metadata": { "name": "p", "uid": "p", "namespace": namespace } });
        let containers =
            json!([{ "name": "main", "resources": { "requests": { "cpu": "1300m" } } }]);
        pod["spec"] = json!({ "containers": containers });
        for part in ["metadata", "spec"] {
            for (field, value) in more[part].as_object().into_iter().flatten() {
                pod[part][field] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn gpu_id(name: &str) -> GpuPodId {
        GpuPodId { uid: name.into(), namespace: "ml".to_owned(), name: name.to_owned() }
    }

    fn current(policy: &str) -> Arc<Current> {
        let view = fixtures::view_under(LoadPolicy::from_yaml(policy).unwrap());
        view.apply_nodes(Event::Listed((0..NODES).map(node).collect()), now());
        let mut settled = HashSet::new();
        let _ = view.apply_pods(Event::Listing, &mut settled, now());
        for number in 0..NODES {
            let (node, cpu) = (format!("n{number}"), format!("{}m", 4_000 + number * 611 % 3_900));
            let requests = json!({ "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }], "nodeName": node });
            let of_node = json!({ "metadata": { "uid": format!("on-{node}") }, "spec": requests });
            view.count_cpu(&pod("ml", &of_node), WatchCause::Listed);
        }
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut settled, now());
        view.change(|index| {
            let bind = |units: u32, name: &str, node: usize| {
                let request = GpuRequest::single("c", Units(units)).unwrap();
                let claim = Claim::on_card(&request, &"GPU-0".into());
                let node = NodeName::from(format!("n{node}"));
                fixtures::gpu_pod(&gpu_id(name), units, Some((&node, claim)))
            };
            for (name, node) in [("a", 3), ("b", 6), ("c", UNSHOWN)] {
                let facts = bind(9, name, node);
                index.apply(&facts, facts.gpu.as_ref().unwrap().as_ref().unwrap());
            }
            // Cards are set aside for the pod itself.
            let waits = fixtures::gpu_pod(&gpu_id("p"), 9, None);
            index.apply(&waits, waits.gpu.as_ref().unwrap().as_ref().unwrap());
            index.keep(&"p".into(), &"n12".into(), vec!["GPU-0".into()]);
            for number in 0..20_usize {
                let node = NodeName::from(format!("n{}", number % 7 * 10));
                let uses = Amounts { cpu: 0.3, memory: 0.0 };
                index.count_in_flight(&format!("f{number}").into(), &node, now(), uses, 0.7);
            }
        });
        view.current()
    }

    /// An ordinary pod, one whose priority class is exempt, one of a namespace with nodes of its own, and one of a
    /// DaemonSet.
    fn pods() -> [Pod; 4] {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        [
            pod("ml", &json!({})),
            pod("ml", &json!({ "spec": { "priorityClassName": "system-node-critical" } })),
            pod("team-a", &json!({})),
            pod("team-a", &json!({ "metadata": { "ownerReferences": owner } })),
        ]
    }

    proptest! {
        #[test]
        fn prepared_values_change_no_decision_whatever_nodes_are_named_and_however_old_they_are(
            named in prop::collection::vec(0..NODES + 10, 0..2 * NODES),
            later in prop_oneof![3 => 0..900_i64, 1 => -100..0_i64],
            (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
            units in prop::option::of(1..17_u32),
        ) {
            let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
            let names: Vec<_> = named.iter().map(|number| format!("n{number}")).collect();
            let time = now() + SignedDuration::from_secs(later);
            // One with prepared values and one without: a decision keeps its pairing.
            let [one, other] = [(); 2].map(|()| {
                let names = names.iter().map(String::as_str);
                let nodes = CandidateNodes::new(current.snapshot.names(), names);
                let estimates = current.estimates(pod, &Names::default());
                let pod = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
                let request = units.map(|units| GpuRequest::single("main", Units(units)).unwrap());
                Decision::new(Arc::clone(&current.snapshot), pod, request, nodes, time)
            });
            let (policy, prepared) = (one.policy(), &current.prepared);
            prop_assert_eq!(one.verdicts(policy, Some(prepared)), other.verdicts(policy, None));
            prop_assert_eq!(one.scores(policy, Some(prepared)), other.scores(policy, None));
            prop_assert_eq!(one.pairing(policy, Some(prepared)), other.pairing(policy, None));
            let no_fits: Vec<_> = (0..other.len()).map(|at| other.no_fit(at)).collect();
            prop_assert_eq!(one.no_fits(prepared), no_fits);
            prop_assert_eq!(one.card_scores(Some(prepared)), other.card_scores(None));
        }
    }

    /// The verdict and the score of each node, by its name.
    fn decided(decision: &Decision) -> BTreeMap<NodeName, (String, Score)> {
        let policy = decision.policy();
        let verdicts = decision.verdicts(policy, None).each.into_iter();
        let scores = decision.scores(policy, None);
        let named = verdicts.zip(scores).enumerate();
        named
            .map(|(at, (verdict, score))| {
                (decision.name(at).clone(), (format!("{verdict:?}"), score))
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_kept_decision_is_the_same_about_every_node_in_whatever_order_they_were_named(
            order in Just((0..NODES + 10).collect::<Vec<_>>()).prop_shuffle(),
            count in prop_oneof![1..6_usize, 1..NODES],
            later in 0..900_i64,
            (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
            units in prop::option::of(1..17_u32),
        ) {
            let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
            let names: Vec<_> = order[..count].iter().map(|number| format!("n{number}")).collect();
            let names = names.iter().map(String::as_str);
            let nodes = CandidateNodes::new(current.snapshot.names(), names);
            let estimates = current.estimates(pod, &Names::default());
            let pod = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
            let request = units.map(|units| GpuRequest::single("main", Units(units)).unwrap());
            let time = now() + SignedDuration::from_secs(later);
            let decision = Decision::new(Arc::clone(&current.snapshot), pod, request, nodes, time);
            let restored = KeptDecision::new(&decision).restored();
            prop_assert_eq!(restored.len(), count);
            prop_assert_eq!(decided(&restored), decided(&decision));
        }
    }

    proptest! {
        // Each explains every node in full.
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_decision_in_short_agrees_with_its_explanation(
            named in prop::collection::vec(0..NODES + 10, 1..NODES),
            later in 0..900_i64,
            (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
            units in prop::option::of(1..17_u32),
            node in prop::option::of(0..NODES),
        ) {
            let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
            let names: HashSet<_> = named.iter().map(|number| format!("n{number}")).collect();
            let names = names.iter().map(String::as_str);
            let nodes = CandidateNodes::new(current.snapshot.names(), names);
            let estimates = current.estimates(pod, &Names::default());
            let pod = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
            if let Some(node) = node {
                pod.set_node(&format!("n{node}"));
            }
            let request = units.map(|units| GpuRequest::single("main", Units(units)).unwrap());
            let time = now() + SignedDuration::from_secs(later);
            let decision = Decision::new(Arc::clone(&current.snapshot), pod, request, nodes, time);
            let short = summary(&decision);
            let all = explain(&decision, DecisionBasis::Decision, 0..decision.len());
            let accepted: Vec<_> = all.nodes.iter().filter(|node| node.accepted).collect();
            prop_assert_eq!(short.accepted as usize, accepted.len());
            let rejected: u32 = short.reasons.iter().map(|reason| reason.nodes).sum();
            prop_assert_eq!(short.nodes, short.accepted + rejected);
            for reason in &short.reasons {
                let first = |node: &&Node| !node.accepted && node.reasons[0] == reason.reason;
                prop_assert_eq!(reason.nodes as usize, all.nodes.iter().filter(first).count());
            }
            let own = accepted.iter().find(|node| short.node.as_deref() == Some(&*node.name));
            prop_assert_eq!(short.score, own.map(|own| own.score));
            let better = own.map(|own| accepted.iter().filter(|node| node.score > own.score).count());
            prop_assert_eq!(short.better.map(|better| better as usize), better);
            let mut others: Vec<_> = accepted.iter().filter(|node| own.is_none_or(|own| own.name != node.name)).collect();
            others.sort_by_key(|node| (std::cmp::Reverse(node.score), &node.name));
            let best: Vec<_> = others.iter().take(3).map(|node| (&*node.name, node.score)).collect();
            prop_assert_eq!(short.best.iter().map(|best| (&*best.node, best.score)).collect::<Vec<_>>(), best);
            prop_assert!(accepted.is_empty() || short.nearest.is_none());
        }
    }

    #[test]
    fn the_pods_of_the_test_above_are_decided_by_all_that_may_differ() {
        let current = &CURRENT[1];
        let decision = |pod: &Pod| {
            let estimates = current.estimates(pod, &Names::default());
            let names: Vec<String> = (0..NODES + 10).map(|number| format!("n{number}")).collect();
            let nodes =
                CandidateNodes::new(current.snapshot.names(), names.iter().map(String::as_str));
            let pod = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
            Decision::new(Arc::clone(&current.snapshot), pod, None, nodes, now())
        };
        let [ordinary, exempt, confined, daemon] = pods().each_ref().map(decision);
        let policy = ordinary.policy();
        assert_ne!(ordinary.pairing(policy, None).part, 0.0);
        let accepted = |decision: &Decision| {
            let verdicts = decision.verdicts(policy, Some(&current.prepared)).each;
            verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count()
        };
        let all = NODES + 10;
        assert!(accepted(&ordinary) < all && accepted(&confined) < accepted(&ordinary));
        assert_eq!((accepted(&exempt), accepted(&daemon)), (all, all));
        assert!(current.snapshot.cards(&format!("n{UNSHOWN}")).is_some());
    }
}
