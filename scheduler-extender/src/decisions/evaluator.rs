//! Evaluates a decision under one policy: for each node the verdict, the score and the rating of its GPUs.
//!
//! Invariant: Filter, Prioritize, Preempt, explain and the shadow policy use it. What is [ready](Ready) for the verbs
//! is how it computes, and changes no result.

use std::cell::OnceCell;
use std::iter::zip;

use placement::gpu::fragmentation::Cost;
use placement::gpu::{ChoiceRule, GivenOut, GpuRequest, NoFit, score_less_gpu_cost, scores};
use placement::load::{
    Evaluation, NodeLoad, PodKind, PodToPlace, PreparedNodes, ResolvedPolicy, Score, Verdict,
    pass_over_limits, typical_load,
};
use placement::policy::{Model, Scale};
use placement::selector::Labels;

use super::Decision;
use super::rating_cache::{Rated, RatingCache};
use crate::view::Prepared;

/// What is computed before a call: the rows that are prepared of the decision's snapshot, and the ratings of calls
/// before.
#[derive(Clone, Copy)]
struct Ready<'d> {
    prepared: &'d Prepared,
    ratings: &'d RatingCache,
}

/// A decision under a policy.
pub struct Evaluator<'d> {
    pub(super) decision: &'d Decision,
    policy: &'d ResolvedPolicy,
    /// Under the policy in force, in a call of a verb.
    ready: Option<Ready<'d>>,
    /// [`Evaluator::typical`], once computed.
    typical: OnceCell<Box<[f64]>>,
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

impl<'d> Evaluator<'d> {
    /// Under the policy in force.
    #[must_use]
    pub fn new(decision: &'d Decision) -> Self {
        Self::under(decision, decision.policy())
    }

    /// Under the policy in force or the shadow policy.
    #[must_use]
    pub fn under(decision: &'d Decision, policy: &'d ResolvedPolicy) -> Self {
        Self { decision, policy, ready: None, typical: OnceCell::new() }
    }

    /// Under the policy in force, with the rows that are `prepared` of the decision's snapshot.
    #[must_use]
    pub fn prepared(
        decision: &'d Decision,
        prepared: &'d Prepared,
        ratings: &'d RatingCache,
    ) -> Self {
        Self { ready: Some(Ready { prepared, ratings }), ..Self::new(decision) }
    }

    /// The inputs of the load decision about a node.
    pub fn evaluation<'s, 'n>(&'s self, node: &'n NodeLoad) -> Evaluation<'s, 'n> {
        let evaluation = self.by_node_alone(node);
        let pod = PodToPlace { typical: self.typical(), ..evaluation.pod };
        Evaluation { pod, ..evaluation }
    }

    /// As [`Evaluator::evaluation`], for what other nodes do not affect: verdicts and limits.
    pub fn by_node_alone<'n>(&self, node: &'n NodeLoad) -> Evaluation<'d, 'n> {
        let (decision, policy) = (self.decision, self.policy);
        let is_in_force = std::ptr::eq(policy, &**decision.policy());
        let pod = &decision.pod;
        let pod = if is_in_force { pod.to_place() } else { pod.to_place_by_shadow() };
        Evaluation { policy, node, pod, now: decision.time }
    }

    /// What holds of a node without the pod.
    pub(super) fn without_pod<'n>(&self, node: &'n NodeLoad) -> Evaluation<'d, 'n> {
        let pod = PodToPlace::ORDINARY;
        Evaluation { policy: self.policy, node, pod, now: self.decision.time }
    }

    /// How near the node at a position is to its limits; infinite for an unknown node, which has no readings.
    pub fn limit_ratio(&self, position: usize) -> f64 {
        match self.decision.load(position) {
            Some(load) => self.by_node_alone(&load).limit_ratio(),
            None => f64::INFINITY,
        }
    }

    /// A value for each node: `of_row` by its prepared row, `of_load` where that is not valid or nothing is ready, and
    /// `unknown` without a load. `of_rows` may return one value for all rows of a chunk.
    fn of_each<T: Copy + PartialEq>(
        &self,
        ready: Option<Ready<'_>>,
        unknown: T,
        of_rows: impl Fn(&PreparedNodes) -> Option<T>,
        of_row: impl Fn(&PreparedNodes, usize) -> T,
        of_load: impl Fn(&NodeLoad) -> T,
    ) -> Vec<T> {
        let decision = self.decision;
        let Some(Ready { prepared, .. }) = ready else {
            let mut each = Vec::with_capacity(decision.len());
            for position in 0..decision.len() {
                each.push(decision.load(position).map_or(unknown, |load| of_load(&load)));
            }
            return each;
        };
        let at = (&**decision.snapshot(), decision.time);
        prepared.of_each(at, decision.nodes().places(), unknown, of_rows, |rows, node| {
            match rows.of(node) {
                Ok(rows) => of_row(rows, node),
                Err(load) => load.map_or(unknown, &of_load),
            }
        })
    }

    /// Whether each node may take the pod by its load. An unknown node may, unless the pod's namespace has nodes of its
    /// own.
    pub fn verdicts(&self) -> Verdicts<'d> {
        let (decision, policy) = (self.decision, self.policy);
        let adds = decision.pod.adds();
        // Rows know no more of a pod than its use: of no exemption, and no nodes of its namespace.
        let depends_on_pod =
            policy.exempts(&decision.pod.to_place()) || policy.confines(&decision.pod.namespace);
        let mut each = self.of_each(
            self.ready.filter(|_| !depends_on_pod),
            self.unknown_node_verdict(),
            |rows| rows.all_accept(&adds).then_some(Verdict::Accepted),
            |rows, node| rows.verdict(policy, node, &adds),
            |load| self.by_node_alone(load).verdict(),
        );
        let over_limits = pass_over_limits(
            &policy.policy.overload,
            decision.pod.waited,
            &each,
            |position| decision.no_fit(position).is_none(),
            |position| self.limit_ratio(position),
            |position| decision.zone(position),
        );
        for position in &over_limits {
            each[*position] = Verdict::Accepted;
        }
        Verdicts { each, over_limits }
    }

    fn unknown_node_verdict(&self) -> Verdict<'d> {
        let pod = &self.decision.pod;
        if pod.kind != PodKind::Ordinary {
            return Verdict::Accepted;
        }
        let broken = self.policy.broken_namespace_rule(&pod.namespace, &Labels::default());
        broken.map_or(Verdict::Accepted, Verdict::OtherNamespace)
    }

    /// The [`typical_load`] of each group of weights: of the nodes that the pod could go to, without it. What
    /// Prioritize is asked about are the nodes that Filter accepted.
    pub fn typical(&self) -> &[f64] {
        self.typical.get_or_init(|| {
            if self.policy.policy.scoring.model != Model::AboveTypical {
                return Box::default();
            }
            let verdicts = self.verdicts().each;
            let no_fits = self.no_fits();
            let mut typical = Vec::with_capacity(self.policy.groups());
            for group in 0..self.policy.groups() {
                let present = self.of_each(
                    self.ready,
                    None,
                    |_| None,
                    |rows, node| rows.present_load(node, group),
                    |load| self.without_pod(load).present_load(group),
                );
                let mut loads = Vec::with_capacity(present.len());
                for (position, load) in present.into_iter().enumerate() {
                    if verdicts[position] == Verdict::Accepted && no_fits[position].is_none() {
                        loads.extend(load);
                    }
                }
                typical.push(typical_load(&mut loads));
            }
            typical.into()
        })
    }

    /// The scale of the answer to kube-scheduler.
    pub fn scale(&self) -> Scale {
        let scale = self.policy.policy.scoring.scale;
        if self.decision.request.is_some() { scale.of_gpu_pods() } else { scale }
    }

    /// The score of each node: by its load and, for a pod with a GPU request, by its GPUs.
    pub fn scores(&self) -> Vec<Score> {
        let adds = self.decision.pod.adds();
        let typical = self.typical();
        let by_load = self.of_each(
            self.ready,
            Score::ZERO,
            |_| None,
            |rows, node| rows.score(self.policy, node, &adds, typical),
            |load| self.evaluation(load).score(),
        );
        if let Some(by_gpus) = self.gpu_scores() {
            return zip(by_gpus, by_load).map(|(gpus, load)| gpus.mean(load)).collect();
        }
        let Some(costs) = self.costs_to_gpus() else { return by_load };
        zip(by_load, costs).map(|(score, cost)| score_less_gpu_cost(score, cost)).collect()
    }

    /// The score of each node by its GPUs, 0 where none fit; `None` for a pod without a GPU request.
    pub fn gpu_scores(&self) -> Option<Vec<Score>> {
        let rated = self.ratings(self.decision.request.as_ref()?);
        let ratings: Vec<_> = rated.into_iter().map(|rated| rated.and_then(Result::ok)).collect();
        Some(scores(&ratings, |one, other| self.decision.compare_names(one, other)))
    }

    /// What the CPU that the pod takes costs the GPUs of each node, beyond the least of the nodes that accept the pod;
    /// all of it where every node is over a limit. `None` for a pod with a GPU request, or where fragmentation is not
    /// measured.
    pub fn costs_to_gpus(&self) -> Option<Vec<Cost>> {
        let decision = self.decision;
        if decision.request.is_some() {
            return None;
        }
        let rules = GivenOut::BOTH.map(|way| decision.snapshot().choice_rule_of(way));
        let measures = rules.each_ref().map(ChoiceRule::for_plain_pods);
        if measures == [None, None] {
            return None;
        }
        let mut costs = Vec::with_capacity(decision.len());
        for position in 0..decision.len() {
            costs.push(decision.cost_to_gpus(position, measures));
        }
        // Mostly no node has a cost. What is not asked about then takes no time.
        if costs.iter().all(|cost| *cost == Cost(0)) {
            return Some(costs);
        }
        let Verdicts { each, over_limits } = self.verdicts();
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

    /// The rating of each node by its GPUs, or why none fit; `None` for a node without GPUs.
    fn ratings(&self, request: &GpuRequest) -> Vec<Option<Rated>> {
        let Decision { pod, rule, .. } = self.decision;
        if let Some(Ready { prepared, ratings }) = self.ready {
            let at = (&**self.decision.snapshot(), prepared);
            return ratings.rate(at, &pod.uid, (request, rule), self.decision.nodes().places());
        }
        let mut ratings = Vec::with_capacity(self.decision.len());
        for position in 0..self.decision.len() {
            let gpus = self.decision.gpus(position);
            ratings.push(gpus.map(|gpus| gpus.rate(&pod.uid, request, rule)));
        }
        ratings
    }

    /// [`Decision::no_fit`] of each node.
    pub fn no_fits(&self) -> Vec<Option<NoFit>> {
        let decision = self.decision;
        let Some(request) = &decision.request else { return vec![None; decision.len()] };
        // Checking is faster than rating, and slower than reading what was rated.
        let is_rated = self.ready.is_some_and(|ready| ready.ratings.has(request, &decision.rule));
        if !is_rated {
            return (0..decision.len()).map(|position| decision.no_fit(position)).collect();
        }
        let mut no_fits = Vec::with_capacity(decision.len());
        for (position, rating) in self.ratings(request).into_iter().enumerate() {
            no_fits.push(if decision.is_backed_off(position) {
                Some(NoFit::BackedOff)
            } else {
                decision.counted(position, rating.map(Result::err))
            });
        }
        no_fits
    }
}
