//! A decision: one pod, the nodes of the request, and the state of the cluster at that time.
//!
//! Invariant: Filter, Prioritize, Preempt, explain and the shadow policy call the same functions. The verbs pass
//! [`Prepared`] values, which change no result.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter::zip;
use std::sync::{Arc, OnceLock};

use cluster::GpuRequestError;
use jiff::Timestamp;
use placement::gpu::fragmentation::{Cost, Measure};
use placement::gpu::{ChoiceRule, GpuRequest, NoFit, NodeCards, score_less_card_cost, scores};
use placement::load::{
    Evaluation, NodeLoad, PodKind, PodToPlace, RecentPods, ResolvedPolicy, Score, Verdict,
    pass_over_limits, typical_load,
};
use placement::names::ZONE_LABEL;
use placement::policy::{Model, Scale};
use placement::selector::Labels;
use placement::units::{NodeName, PodUid};

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
    /// [`Decision::typical`] under the policy in force and under the shadow policy, once computed.
    typical: [OnceLock<Box<[f64]>>; 2],
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
            typical: Default::default(),
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
        let evaluation = self.by_node_alone(policy, node);
        let pod = PodToPlace { typical: self.typical(policy, None), ..evaluation.pod };
        Evaluation { pod, ..evaluation }
    }

    /// The verdict about a node under the policy in force by its limits alone.
    pub fn verdict_by_limits(&self, node: &NodeLoad) -> Verdict<'_> {
        self.by_node_alone(self.policy(), node).verdict()
    }

    /// As [`Decision::evaluation`], for what other nodes do not affect: verdicts and limits.
    fn by_node_alone<'p, 'n>(
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

    /// The [`typical_load`] of each group of weights under `policy`, the one in force or the shadow policy: of the
    /// nodes that the pod could go to, without it. What Prioritize is asked about are the nodes that Filter accepted.
    pub fn typical(&self, policy: &ResolvedPolicy, prepared: Option<&Prepared>) -> &[f64] {
        let is_in_force = self.is_in_force(policy);
        self.typical[usize::from(!is_in_force)].get_or_init(|| {
            if policy.policy.scoring.model != Model::AboveTypical {
                return Box::default();
            }
            let prepared = self.prepared_under(policy, prepared);
            let is_candidate = self.are_candidates(policy, prepared);
            let mut typical = Vec::with_capacity(policy.groups());
            for group in 0..policy.groups() {
                let mut loads = Vec::with_capacity(self.len());
                let present = self.present_loads(policy, prepared, group);
                for (load, is_candidate) in present.into_iter().zip(&is_candidate) {
                    loads.extend(load.filter(|_| *is_candidate));
                }
                typical.push(typical_load(&mut loads));
            }
            typical.into()
        })
    }

    /// Which nodes the pod could go to.
    fn are_candidates(&self, policy: &ResolvedPolicy, prepared: Option<&Prepared>) -> Vec<bool> {
        let verdicts = self.verdicts(policy, prepared).each;
        let no_fits = match prepared {
            Some(prepared) => self.no_fits(prepared),
            None => (0..self.len()).map(|position| self.no_fit(position)).collect(),
        };
        let mut are_candidates = Vec::with_capacity(self.len());
        for (verdict, no_fit) in verdicts.into_iter().zip(no_fits) {
            are_candidates.push(verdict == Verdict::Accepted && no_fit.is_none());
        }
        are_candidates
    }

    /// The load of each node, without the pod; `None` where it is not known.
    fn present_loads(
        &self,
        policy: &ResolvedPolicy,
        prepared: Option<&Prepared>,
        group: usize,
    ) -> Vec<Option<f64>> {
        let load_of = |node: &NodeLoad| self.without(policy, node).present_load(group);
        match prepared {
            Some(prepared) => prepared.of_each(
                (&self.snapshot, self.time),
                self.nodes.places(),
                None,
                |_| None,
                |loads, node| match loads.of(node) {
                    Ok(loads) => loads.present_load(node, group),
                    Err(load) => load.and_then(load_of),
                },
            ),
            None => (0..self.len()).map(|at| load_of(&*self.load(at)?)).collect(),
        }
    }

    /// What holds of a node without the pod.
    fn without<'p, 'n>(
        &self,
        policy: &'p ResolvedPolicy,
        node: &'n NodeLoad,
    ) -> Evaluation<'p, 'n> {
        Evaluation { policy, node, pod: PodToPlace::ORDINARY, now: self.time }
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
            |position| self.zone(position),
        );
        for position in &over_limits {
            each[*position] = Verdict::Accepted;
        }
        Verdicts { each, over_limits }
    }

    fn zone(&self, position: usize) -> Option<&str> {
        let load = self.snapshot.at(self.nodes.places()[position]?).load.as_ref()?;
        load.labels.get(ZONE_LABEL).map(|zone| &**zone)
    }

    /// Why every node that would do is over a limit for the pod, by these verdicts about the load.
    pub fn over_limit_cause(&self, verdicts: &Verdicts<'_>) -> OverLimitCause {
        let (mut measured, mut all_over, mut all_too_small) = (0_usize, true, true);
        let mut over_limits = verdicts.over_limits.iter().peekable();
        for (position, verdict) in verdicts.each.iter().enumerate() {
            let passes = over_limits.next_if(|over| **over == position).is_some();
            // Nodes that are accepted otherwise have no readings, and do not keep others from being over a limit.
            let is_over = passes || matches!(verdict, Verdict::Overloaded(_));
            if !is_over || self.no_fit(position).is_some() {
                continue;
            }
            let Some(load) = self.load(position) else { continue };
            let evaluation = self.by_node_alone(self.policy(), &load);
            let Some(ratio) = evaluation.measured_limit_ratio() else { continue };
            measured += 1;
            all_over &= ratio > 1.0;
            all_too_small &= evaluation.is_exceeded_by_pod();
        }
        if measured == 0 {
            OverLimitCause::NotMeasured
        } else if all_too_small {
            OverLimitCause::NoNodeLargeEnough
        } else if self.is_about_few_nodes() && self.is_room_elsewhere() {
            OverLimitCause::FewCandidates
        } else if all_over {
            OverLimitCause::Measured
        } else {
            OverLimitCause::Estimates
        }
    }

    /// Whether one or two nodes of more would do, or fewer than 4% of the cluster: fewer than kube-scheduler's smallest
    /// sample, 5%.
    fn is_about_few_nodes(&self) -> bool {
        let fits = (0..self.len()).filter(|position| self.no_fit(*position).is_none()).count();
        fits < self.snapshot.names().len() && (fits < 3 || fits * 25 < self.snapshot.names().len())
    }

    /// Whether another node, which takes pods without a toleration, is below its limits by what is measured.
    fn is_room_elsewhere(&self) -> bool {
        let asked: HashSet<usize> =
            self.nodes.places().iter().flatten().map(|place| place.index()).collect();
        self.snapshot.names().places().iter().any(|place| {
            let Some(load) = &self.snapshot.at(*place).load else { return false };
            if load.repels_pods || asked.contains(&place.index()) {
                return false;
            }
            let ratio = self.without(self.policy(), load).measured_limit_ratio();
            ratio.is_some_and(|ratio| ratio <= 1.0)
        })
    }

    /// How near the node at a position is to its limits; infinite for an unknown node, which has no readings.
    pub(super) fn limit_ratio(&self, policy: &ResolvedPolicy, position: usize) -> f64 {
        match self.load(position) {
            Some(load) => self.by_node_alone(policy, &load).limit_ratio(),
            None => f64::INFINITY,
        }
    }

    fn prepared_verdicts(&self, prepared: &Prepared) -> Vec<Verdict<'_>> {
        let policy = self.policy();
        let adds = self.pod.adds();
        prepared.of_each(
            (&self.snapshot, self.time),
            self.nodes.places(),
            Verdict::Accepted,
            |loads| loads.all_accept(&adds).then_some(Verdict::Accepted),
            |loads, node| match loads.of(node) {
                Ok(loads) => loads.verdict(policy, node, &adds),
                Err(load) => self.verdict(policy, load),
            },
        )
    }

    fn verdict<'p>(&'p self, policy: &'p ResolvedPolicy, load: Option<&NodeLoad>) -> Verdict<'p> {
        match load {
            Some(known) => self.by_node_alone(policy, known).verdict(),
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

    /// The scale of the answer to kube-scheduler under `policy`.
    pub fn scale(&self, policy: &ResolvedPolicy) -> Scale {
        let scale = policy.policy.scoring.scale;
        if self.request.is_some() { scale.of_gpu_pods() } else { scale }
    }

    /// The score of each node under `policy`: by its load and, for a pod with a GPU request, by its cards.
    pub fn scores(&self, policy: &ResolvedPolicy, prepared: Option<&Prepared>) -> Vec<Score> {
        let by_load = match self.prepared_under(policy, prepared) {
            Some(prepared) => self.prepared_load_scores(prepared),
            None => (0..self.len())
                .map(|at| self.load_score(policy, self.load(at).as_deref()))
                .collect(),
        };
        if let Some(by_cards) = self.card_scores(prepared) {
            return zip(by_cards, by_load).map(|(cards, load)| cards.mean(load)).collect();
        }
        let Some(costs) = self.costs_to_cards(policy, prepared) else { return by_load };
        zip(by_load, costs).map(|(score, cost)| score_less_card_cost(score, cost)).collect()
    }

    fn prepared_load_scores(&self, prepared: &Prepared) -> Vec<Score> {
        let policy = self.policy();
        let adds = self.pod.adds();
        let typical = self.typical(policy, Some(prepared));
        prepared.of_each(
            (&self.snapshot, self.time),
            self.nodes.places(),
            Score::ZERO,
            |_| None,
            |loads, node| match loads.of(node) {
                Ok(loads) => loads.score(policy, node, &adds, typical),
                Err(load) => self.load_score(policy, load),
            },
        )
    }

    fn load_score(&self, policy: &ResolvedPolicy, load: Option<&NodeLoad>) -> Score {
        load.map_or(Score::ZERO, |known| self.evaluation(policy, known).score())
    }

    /// What the CPU that the pod takes costs the cards of each node, beyond the least of the nodes that accept the pod;
    /// all of it where every node is over a limit. `None` for a pod with a GPU request, or where fragmentation is not
    /// measured.
    pub fn costs_to_cards(
        &self,
        policy: &ResolvedPolicy,
        prepared: Option<&Prepared>,
    ) -> Option<Vec<Cost>> {
        if self.request.is_some() {
            return None;
        }
        let measure = self.rule.for_plain_pods()?;
        let costs: Vec<Cost> = (0..self.len()).map(|at| self.cost_to_cards(at, measure)).collect();
        // Mostly no node has a cost. What is not asked about then takes no time.
        if costs.iter().all(|cost| *cost == Cost(0)) {
            return Some(costs);
        }
        let Verdicts { each, over_limits } = self.verdicts(policy, prepared);
        if !over_limits.is_empty() {
            // Of the few that Filter lets pass over a limit, fewer would pass again in Prioritize.
            return Some(costs);
        }
        let least = zip(&costs, each)
            .filter_map(|(cost, verdict)| (verdict == Verdict::Accepted).then_some(*cost))
            .min()
            .unwrap_or(Cost(0));
        Some(costs.into_iter().map(|cost| cost.beyond(least)).collect())
    }

    /// What the CPU that the pod takes costs the cards of the node at a position; 0 for a node without cards.
    pub(super) fn cost_to_cards(&self, position: usize, measure: &Measure) -> Cost {
        let cards = self.cards(position);
        cards.map_or(Cost(0), |cards| cards.cost_of_cpu(self.pod.cpu, measure))
    }

    /// The score of each node by its cards, 0 where none fit; `None` for a pod without a GPU request.
    pub fn card_scores(&self, prepared: Option<&Prepared>) -> Option<Vec<Score>> {
        let request = self.request.as_ref()?;
        let rated = self.ratings(request, prepared);
        let ratings: Vec<_> = rated.into_iter().map(|rated| rated.and_then(Result::ok)).collect();
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

    /// Whether cards of some node do for the pod once these pods are gone from it.
    pub fn fits_without(&self, leaving: &BTreeMap<NodeName, BTreeSet<PodUid>>) -> bool {
        let Some(request) = self.request.as_ref().filter(|_| !leaving.is_empty()) else {
            return false;
        };
        (0..self.len()).any(|position| {
            let Some(gone) = leaving.get(self.name(position)) else { return false };
            let Some(cards) = self.cards(position) else { return false };
            let fits =
                cards.fit_without(|pod| gone.contains(pod), &self.pod.uid, request, &self.rule);
            fits.is_ok() && !self.is_backed_off(position)
        })
    }

    /// Whether the cards of the node at a position do for the pod; for a pod without cards, each node's do.
    pub fn has_cards_for_pod(&self, position: usize) -> bool {
        self.fault.is_none() && self.no_fit(position).is_none()
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
            typical: self.typical.clone(),
        }
    }
}

/// Why every node that would do is over a limit for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitCause {
    /// Each is over it by what is measured, without any estimate.
    Measured,
    /// Some are over it only with what this pod, or pods that no reading shows yet, will probably use.
    Estimates,
    /// The pod alone is over the limit on each.
    NoNodeLargeEnough,
    /// One or two nodes of more would do, or fewer than 4% of the cluster. What else the pod asks for leaves no
    /// others, and the cluster has room.
    FewCandidates,
    /// None is measured, and the policy rejects nodes for that.
    NotMeasured,
}

impl OverLimitCause {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Measured,
        Self::Estimates,
        Self::NoNodeLargeEnough,
        Self::FewCandidates,
        Self::NotMeasured,
    ];

    /// Its word in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimates => "estimates",
            Self::NoNodeLargeEnough => "no node large enough",
            Self::FewCandidates => "few candidates",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Whether each candidate of a decision may take the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdicts<'p> {
    /// In the order of the candidates; a node that passes although it is over a limit is accepted.
    pub each: Vec<Verdict<'p>>,
    /// Positions of the nodes that pass although they are over a limit: those near the least loaded, where every node
    /// is over one.
    pub over_limits: Vec<usize>,
}
