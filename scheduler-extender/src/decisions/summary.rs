//! A decision in short: the JSON of `/v1/decisions` and of `/v1/pending`.
//!
//! Invariant: it is computed from the decision alone, by the functions that the verbs call.

use std::cmp::Reverse;
use std::collections::HashMap;

use api::decisions as out;
use cluster::GpuRequestError;
use placement::gpu::{Account, FreeGpu, GpuFit, GpuRequest, NoFit};
use placement::load::{Score, Verdict};

use super::{Decision, Evaluator, Verdicts};

/// The best nodes in a summary.
const BEST: usize = 3;

/// A decision in short. `gpus` are left empty: they are no part of it.
pub(super) fn summary(decision: &Decision) -> out::Decided {
    let evaluator = &Evaluator::new(decision);
    let verdicts = evaluator.verdicts();
    let mut accepted = Vec::new();
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for position in 0..decision.len() {
        match first_reason(decision, &verdicts, position) {
            Some(reason) => *counts.entry(reason).or_default() += 1,
            None => accepted.push(position),
        }
    }
    let mut reasons: Vec<out::Reason> = Vec::new();
    for (reason, nodes) in counts {
        reasons.push(out::Reason { reason: reason.to_owned(), nodes });
    }
    reasons.sort_by(|one, other| {
        other.nodes.cmp(&one.nodes).then_with(|| one.reason.cmp(&other.reason))
    });
    let pod = &decision.pod;
    let ranking = Ranking::new(evaluator, &accepted);
    out::Decided {
        pod: api::explain::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
        },
        workload: pod.controller.clone(),
        time: decision.time,
        waited_seconds: pod.waited.as_secs(),
        node: pod.node().map(ToString::to_string),
        gpus: Vec::new(),
        asks: asks(decision),
        fault: decision.fault.as_ref().map(ToString::to_string),
        nodes: number(decision.len()),
        accepted: number(accepted.len()),
        reasons,
        score: ranking.own.map(Score::get),
        better: ranking.own.map(|own| number(ranking.better_than(own))),
        best: ranking.best(decision),
        nearest: if accepted.is_empty() { nearest(evaluator, &verdicts) } else { None },
        fits_if: None,
    }
}

/// Why the node at a position may not take the pod; `None` if it may.
fn first_reason<'d>(
    decision: &'d Decision,
    verdicts: &Verdicts<'d>,
    position: usize,
) -> Option<&'d str> {
    let by_load = verdicts.each[position].reason();
    by_load
        .or_else(|| decision.fault.as_ref().map(GpuRequestError::reason))
        .or_else(|| decision.no_fit(position).map(NoFit::reason))
}

fn asks(decision: &Decision) -> Option<out::Asks> {
    let request = decision.request.as_ref()?;
    let share = request.largest();
    Some(out::Asks {
        units: share.units.0,
        in_mib: decision.by_claims.is_some(),
        count: number(request.shares().len()),
        cores: share.cores.0,
        exclusive: share.exclusive,
    })
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The scores of the accepted nodes.
struct Ranking {
    /// The score of the pod's own node, if it was accepted.
    own: Option<Score>,
    /// The others by position, the best first; nodes of one score by name.
    others: Vec<(usize, Score)>,
}

impl Ranking {
    fn new(evaluator: &Evaluator<'_>, accepted: &[usize]) -> Self {
        if accepted.is_empty() {
            return Self { own: None, others: Vec::new() };
        }
        let (decision, scores) = (evaluator.decision, evaluator.scores());
        let node = decision.pod.node();
        let mut own = None;
        let mut others = Vec::with_capacity(accepted.len());
        for position in accepted {
            if node == Some(decision.name(*position)) {
                own = Some(scores[*position]);
            } else {
                others.push((*position, scores[*position]));
            }
        }
        others.sort_by_key(|(position, score)| (Reverse(*score), decision.name(*position)));
        Self { own, others }
    }

    fn better_than(&self, own: Score) -> usize {
        self.others.iter().filter(|(_, score)| *score > own).count()
    }

    fn best(&self, decision: &Decision) -> Vec<out::ScoredNode> {
        let mut best = Vec::new();
        for (position, score) in self.others.iter().take(BEST) {
            let node = decision.name(*position).to_string();
            best.push(out::ScoredNode { node, score: score.get() });
        }
        best
    }
}

/// What is nearest to accepting the pod: the node with the most room on its GPUs, of those that its load does not
/// reject; otherwise the node that is least over its limits.
fn nearest(evaluator: &Evaluator<'_>, verdicts: &Verdicts<'_>) -> Option<out::Nearest> {
    let decision = evaluator.decision;
    if decision.fault.is_some() {
        return None;
    }
    let by_gpus = decision.request.as_ref().and_then(|request| {
        let is_accepted = |position: &usize| verdicts.each[*position] == Verdict::Accepted;
        nearest_gpu(decision, (0..decision.len()).filter(is_accepted), request)
    });
    by_gpus.or_else(|| nearest_limit(evaluator, verdicts))
}

fn nearest_gpu(
    decision: &Decision,
    positions: impl Iterator<Item = usize>,
    request: &GpuRequest,
) -> Option<out::Nearest> {
    let (share, wanted) = (request.largest(), request.shares().len());
    // By how many GPUs fit, then by the most free units of one.
    let mut most: Option<(usize, (u32, u32), usize, out::Lack)> = None;
    for position in positions {
        let no_fit = decision.no_fit(position);
        let lacks_room = matches!(
            no_fit,
            Some(
                NoFit::NoRoom
                    | NoFit::TooFewGpus
                    | NoFit::TooLarge
                    | NoFit::InUse
                    | NoFit::NeededByUnplaced
            )
        );
        let Some(gpus) = decision.gpus(position).filter(|_| lacks_room) else { continue };
        let mut fit = 0;
        let mut freest: Option<&FreeGpu> = None;
        for Account { gpu, .. } in gpus.accounts() {
            match gpu.fit(share, request) {
                GpuFit::Fits { .. } => fit += 1,
                GpuFit::TooLittleFree { .. } | GpuFit::InUse => {}
                _ => continue,
            }
            if freest.is_none_or(|freest| gpu.free > freest.free) {
                freest = Some(gpu);
            }
        }
        let Some(gpu) = freest else { continue };
        let lack = if no_fit == Some(NoFit::NeededByUnplaced) && fit >= wanted {
            out::Lack::Unplaced
        } else if share.exclusive {
            out::Lack::Empty
        } else {
            out::Lack::Units
        };
        let this = (fit, (gpu.free.0, gpu.index), position, lack);
        if most.is_none_or(|(best, (free, _), ..)| (fit, gpu.free.0) > (best, free)) {
            most = Some(this);
        }
    }
    let (fit, (free, index), position, lack) = most?;
    let node = decision.name(position).to_string();
    Some(if wanted > 1 {
        out::Nearest::Gpus { node, fit: number(fit), lack }
    } else {
        out::Nearest::Gpu { node, index, free, lack }
    })
}

fn nearest_limit(evaluator: &Evaluator<'_>, verdicts: &Verdicts<'_>) -> Option<out::Nearest> {
    let decision = evaluator.decision;
    // A node whose GPUs do not fit would not take the pod either.
    let (_, position) = (0..decision.len())
        .filter(|position| {
            matches!(verdicts.each[*position], Verdict::Overloaded(_))
                && decision.no_fit(*position).is_none()
        })
        .map(|position| (evaluator.limit_ratio(position), position))
        .min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let load = decision.load(position)?;
    let evaluation = evaluator.evaluation(&load);
    let (_, load, limit) = evaluation
        .limits()
        .filter_map(|check| {
            let load = check.load.value().filter(|load| load.is_finite())?;
            Some((load / check.limit.max, load, check.limit))
        })
        .max_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
    Some(out::Nearest::Limit {
        node: decision.name(position).to_string(),
        metric: limit.metric.name.to_string(),
        load,
        max: limit.max,
    })
}
