//! A decision as the JSON of `POST /explain`: for each node the verdict and the score, with all their inputs.

use api::explain as out;
use placement::estimate::{Estimate, EstimateSource};
use placement::gpu::fragmentation::Cost;
use placement::gpu::{
    Account, Charge, Choice, Fit, FreeGpu, GpuFit, NodeGpus, Rating, score_less_gpu_cost,
};
use placement::load::{
    Evaluation, LimitCheck, LimitOutcome, LoadDecision, NodeCost, ReadingStatus, ResolvedMetric,
    Score, Term, Verdict,
};

use super::{Decision, Evaluator};

/// Explains a decision for the nodes at the positions `shown`, in this order. The decision is always made among all of
/// its nodes.
///
/// # Panics
///
/// If a position is out of range.
pub fn explain(
    decision: &Decision,
    basis: out::DecisionBasis,
    shown: impl IntoIterator<Item = usize>,
) -> out::Explanation {
    let evaluator = &Evaluator::new(decision);
    let this = Explainer { decision, evaluator, cached: basis == out::DecisionBasis::Decision };
    let verdicts = evaluator.verdicts();
    let scores = evaluator.gpu_scores();
    let costs = evaluator.costs_to_gpus();
    let mut nodes = Vec::new();
    for at in shown {
        let by_gpus = match &scores {
            Some(scores) => ByGpus::Score(scores[at]),
            None => ByGpus::Cost(costs.as_ref().map_or(Cost(0), |costs| costs[at])),
        };
        let passes_over_limit = verdicts.over_limits.contains(&at);
        let by_load = ByLoad { verdict: verdicts.each[at], passes_over_limit };
        nodes.push(this.node(at, by_load, by_gpus));
    }
    let pod = &decision.pod;
    out::Explanation {
        pod: out::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
        },
        time: decision.time,
        basis,
        node: pod.node().map(ToString::to_string),
        estimate: pod.estimates.in_force.as_ref().map(estimate),
        fault: decision.fault.as_ref().map(ToString::to_string),
        ignored: pod.declared.faults.clone(),
        nodes,
    }
}

/// Whether a node may take the pod by its load.
#[derive(Clone, Copy)]
struct ByLoad<'a> {
    verdict: Verdict<'a>,
    passes_over_limit: bool,
}

/// What a node's GPUs contribute to its score.
#[derive(Clone, Copy)]
enum ByGpus {
    /// For a pod that requests GPUs: the score by GPUs.
    Score(Score),
    /// For another pod: what its CPU costs the GPUs, beyond the cheapest node; 0 if fragmentation does not count.
    Cost(Cost),
}

impl ByGpus {
    /// The node's score, from this and the score by load.
    fn with(self, by_load: Score) -> Score {
        match self {
            Self::Score(score) => score.mean(by_load),
            Self::Cost(cost) => score_less_gpu_cost(by_load, cost),
        }
    }

    fn score(self) -> Score {
        match self {
            Self::Score(score) => score,
            Self::Cost(_) => Score::ZERO,
        }
    }

    /// The cost in millionths of a GPU; `None` if it is 0.
    fn cost(self) -> Option<i64> {
        match self {
            Self::Cost(cost) if cost.0 != 0 => Some(cost.0),
            Self::Score(_) | Self::Cost(_) => None,
        }
    }
}

struct Explainer<'a> {
    decision: &'a Decision,
    evaluator: &'a Evaluator<'a>,
    /// Whether readings are those of a recorded decision; otherwise they are the current ones.
    cached: bool,
}

impl Explainer<'_> {
    fn node(
        &self,
        position: usize,
        ByLoad { verdict, passes_over_limit }: ByLoad<'_>,
        by_gpus: ByGpus,
    ) -> out::Node {
        let Decision { request, fault, pod, rule, .. } = self.decision;
        let load = self.decision.load(position);
        let evaluation = load.as_deref().map(|node| self.evaluator.evaluation(node));
        let decision = evaluation.map(|evaluation| evaluation.decide());
        let none = NodeGpus::default();
        let gpus = self.decision.gpus(position).unwrap_or(&none);
        let fit = request.as_ref().map(|request| gpus.explain(&pod.uid, request, rule));
        let mut reasons: Vec<String> = Vec::new();
        match &decision {
            Some(decision) => reasons.extend(decision.reasons().map(str::to_owned)),
            None => reasons.extend(verdict.reason().map(str::to_owned)),
        }
        reasons.extend(fault.as_ref().map(|fault| fault.reason().to_owned()));
        let no_fit = self.decision.no_fit(position);
        reasons.extend(no_fit.as_ref().map(|why| why.reason().to_owned()));
        let load_score = decision.as_ref().map_or(Score::ZERO, |decision| decision.score);
        let score = by_gpus.with(load_score);
        out::Node {
            name: self.decision.name(position).to_string(),
            known: decision.is_some(),
            accepted: verdict == Verdict::Accepted && no_fit.is_none() && fault.is_none(),
            passes_over_limit,
            reasons,
            score: score.get(),
            extender_score: score.on(self.evaluator.scale()),
            load: evaluation
                .zip(decision)
                .map(|(evaluation, decision)| self.load(&evaluation, &decision)),
            cost_to_gpus: by_gpus.cost(),
            gpus: fit.as_ref().map(|fit| out::ExplainedGpus {
                in_mib: self.decision.by_claims.is_some(),
                // kube-scheduler chooses the GPUs of claims.
                linked: fit.is_linked().filter(|_| self.decision.by_claims.is_none()),
                ..explain_gpus(gpus, fit, by_gpus.score())
            }),
        }
    }

    fn load(&self, evaluation: &Evaluation<'_, '_>, decision: &LoadDecision<'_>) -> out::Load {
        out::Load {
            limits: decision.limits.iter().map(|check| self.limit(check)).collect(),
            terms: decision.terms.iter().map(|term| self.term(evaluation, term)).collect(),
            costs: decision.costs.iter().map(node_cost).collect(),
            score: decision.score.get(),
        }
    }

    fn limit(&self, check: &LimitCheck<'_>) -> out::Limit {
        out::Limit {
            metric: check.limit.metric.name.to_string(),
            max: check.limit.max,
            outcome: match check.outcome {
                LimitOutcome::Met => out::LimitOutcome::Met,
                LimitOutcome::MetWithoutPod => out::LimitOutcome::MetWithoutPod,
                LimitOutcome::Exceeded => out::LimitOutcome::Exceeded,
                LimitOutcome::Unknown => out::LimitOutcome::Unknown,
                LimitOutcome::UnknownRejected => out::LimitOutcome::UnknownRejected,
                LimitOutcome::Exempt => out::LimitOutcome::Exempt,
            },
            reading: self.reading(&check.limit.metric, check.load.reading),
            in_flight: self.added(&check.limit.metric, check.load.in_flight),
            pod: self.added(&check.limit.metric, check.load.pod),
        }
    }

    fn term(&self, evaluation: &Evaluation<'_, '_>, term: &Term<'_>) -> out::Term {
        out::Term {
            metric: term.weight.metric.name.to_string(),
            share: term.weight.share,
            points: evaluation.points(term).filter(|points| points.is_finite()),
            typical: evaluation.pod.typical.get(term.weight.group).copied(),
            reading: self.reading(&term.weight.metric, term.load.reading),
            in_flight: self.added(&term.weight.metric, term.load.in_flight),
            pod: self.added(&term.weight.metric, term.load.pod),
        }
    }

    /// What pods add to a reading; `None` for a metric to which they add nothing, since estimates do not count in the
    /// policy.
    fn added(&self, metric: &ResolvedMetric, added: f64) -> Option<f64> {
        let estimates = self.decision.policy().policy.estimates.is_some();
        (estimates || metric.demand.is_some()).then_some(added)
    }

    fn reading(&self, metric: &ResolvedMetric, reading: ReadingStatus) -> out::Reading {
        let (status, reading) = match reading {
            ReadingStatus::Fresh(reading) => (out::ReadingStatus::Fresh, Some(reading)),
            ReadingStatus::Stale(reading) => (out::ReadingStatus::Stale, Some(reading)),
            ReadingStatus::Missing | ReadingStatus::NotYet => (out::ReadingStatus::Missing, None),
            ReadingStatus::NotFetched => (out::ReadingStatus::NotFetched, None),
        };
        let time = self.decision.time;
        out::Reading {
            status,
            value: reading.map(|reading| reading.value.get()).filter(|value| value.is_finite()),
            time: reading.map(|reading| reading.at),
            age_seconds: reading.map(|reading| time.duration_since(reading.at).as_secs()),
            window_seconds: metric.meaning.window.map(|window| window.as_secs()),
            cached: self.cached,
        }
    }
}

fn estimate(estimate: &Estimate) -> out::Estimate {
    let Estimate { amounts, sources } = estimate;
    out::Estimate {
        cpu: estimated_amount(amounts.cpu, sources.cpu),
        memory: estimated_amount(amounts.memory, sources.memory),
    }
}

fn estimated_amount(amount: f64, source: EstimateSource) -> out::EstimatedAmount {
    let source = match source {
        EstimateSource::Annotation => out::EstimateSource::Annotation,
        EstimateSource::Learned => out::EstimateSource::Learned,
        EstimateSource::Namespace => out::EstimateSource::Namespace,
        EstimateSource::Request => out::EstimateSource::Request,
        EstimateSource::Fallback => out::EstimateSource::Fallback,
    };
    out::EstimatedAmount { amount, source }
}

fn node_cost(cost: &NodeCost) -> out::NodeCost {
    let NodeCost { name, value, points, text } = *cost;
    out::NodeCost { name: name.to_owned(), value, points, text: text.to_owned() }
}

fn explain_gpus(gpus: &NodeGpus, fit: &Fit, score: Score) -> out::ExplainedGpus {
    let mut explained = Vec::with_capacity(fit.gpus.len());
    for (account, (gpu, fit)) in gpus.accounts().iter().zip(&fit.gpus) {
        explained.push(explain_gpu(account, gpu, fit));
    }
    out::ExplainedGpus {
        asked: fit.largest_share.units.0,
        in_mib: false,
        asked_cores: fit.largest_share.cores.0,
        exclusive: fit.largest_share.exclusive,
        count: u32::try_from(fit.count).unwrap_or(u32::MAX),
        chosen: fit.outcome.as_ref().map_or_else(|_| Vec::new(), indexes),
        linked: None,
        gpus: explained,
        score: score.get(),
        cost: match fit.rating {
            Some(Rating::Cost(cost)) => Some(cost.0),
            Some(Rating::Score(_)) | None => None,
        },
        free_cpu: gpus.cpu().map(|thousandths| thousandths as f64 / 1_000.0),
    }
}

fn explain_gpu(account: &Account, gpu: &FreeGpu, fit: &GpuFit) -> out::ExplainedGpu {
    out::ExplainedGpu {
        index: gpu.index,
        uuid: gpu.uuid.to_string(),
        units: gpu.units.0,
        free: gpu.free.0,
        model: gpu.model.to_string(),
        free_cores: gpu.free_cores.0,
        outcome: match fit {
            GpuFit::Fits { .. } => out::GpuOutcome::Fits,
            GpuFit::TooLittleFree { .. } => out::GpuOutcome::TooLittleFree,
            GpuFit::Unhealthy => out::GpuOutcome::Unhealthy,
            GpuFit::Closed(_) => out::GpuOutcome::Closed,
            GpuFit::WeakIsolation => out::GpuOutcome::WeakIsolation,
            GpuFit::NotAccepted => out::GpuOutcome::NotAccepted,
            GpuFit::TooFewCores { .. } => out::GpuOutcome::TooFewCores,
            GpuFit::InUse => out::GpuOutcome::InUse,
            GpuFit::BeyondUnits(_) => out::GpuOutcome::BeyondUnits,
            GpuFit::OtherSharing => out::GpuOutcome::OtherSharing,
            GpuFit::TooManyClients { .. } => out::GpuOutcome::TooManyClients,
        },
        closed: gpu.closed,
        charges: account.charges.iter().map(explain_charge).collect(),
    }
}

fn indexes(choice: &Choice) -> Vec<u32> {
    choice.gpus.iter().map(|gpu| gpu.index).collect()
}

fn explain_charge(charge: &Charge) -> out::ExplainedCharge {
    out::ExplainedCharge {
        pod: charge.pod.to_string(),
        resource_claim: charge.claim.as_ref().map(|it| format!("{}/{}", it.namespace, it.name)),
        units: charge.units.0,
        cores: charge.cores.0,
        basis: charge.basis,
    }
}
