//! The scoring models: from the terms of a policy's weights to a score.
//!
//! - crane linear: trunc(Σ of 100·w·(1−load) ÷ Σ w), as crane-scheduler's `getNodeScore`.
//! - target load packing: rises from 100·target at 0 to 100 at the target, and falls to 0 at full load, as Trimaran's
//!   `TargetLoadPacking`.
//! - variation risk: 100·(1 − (mean + margin·deviation^(1/sensitivity)) ÷ 2) of the worst resource, as Trimaran's
//!   `LoadVariationRiskBalancing`.
//! - dominant resource, learned: 100·(1 − load) of the most loaded resource, where CPU counts with a part of its
//!   surplus ([`super::pairing`]), and on a node that is kept for large pods as more loaded ([`super::large_pods`]).
//!
//! Each whole hot value costs 10 points, as in crane.

use jiff::Timestamp;

use super::other_nodes::OnCpu;
use super::pairing::{NodeCpu, Paired};
use super::{KnownLoad, NodeLoad, ResolvedRules, ResolvedWeight, Score, Surplus};
use crate::policy::{Direction, Model, Scoring, Unknown, WindowStatistic};

/// Points that each whole hot value costs: crane's 10 of 100.
const POINTS_PER_HOT_VALUE: f64 = 10.0;

/// Dividing before adding can leave a sum a little below a whole point, and truncation would then lose a point.
const ROUNDING_ERROR: f64 = 1e-9;

/// A weight and the load that it applies to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighed<'a> {
    pub(super) weight: &'a ResolvedWeight,
    pub(super) load: KnownLoad,
}

impl Weighed<'_> {
    /// The load; `None` where it is not known.
    fn value(self) -> Option<f64> {
        match self.load {
            KnownLoad::Known(load) => Some(load),
            KnownLoad::Stale | KnownLoad::Missing | KnownLoad::NotYet => None,
        }
    }

    /// The load; `penalty` where there is no reading and the policy penalises that; `None` where the metric is left
    /// out.
    fn load_or(self, penalty: f64) -> Option<f64> {
        let metric = &self.weight.metric;
        let unknown = match self.load {
            KnownLoad::Known(load) => return Some(load),
            KnownLoad::Stale => metric.when_stale,
            KnownLoad::Missing => metric.when_missing,
            KnownLoad::NotYet => Unknown::Ignore,
        };
        (unknown != Unknown::Ignore).then_some(penalty)
    }
}

/// The score of a node. `terms` can be called several times, so that terms need not be stored.
pub(super) fn score_of<'a, I>(
    scoring: &Scoring,
    groups: usize,
    terms: impl Fn() -> I,
    on_cpu: OnCpu,
    hot_value: f64,
) -> Score
where
    I: Iterator<Item = Weighed<'a>>,
{
    if terms().all(|term| term.value().is_none()) {
        return Score::ZERO;
    }
    let pack = scoring.direction == Direction::Pack;
    let points = match scoring.model {
        Model::CraneLinear | Model::TargetLoadPacking { .. } => sum(scoring, terms()),
        Model::VariationRisk { margin, sensitivity } => {
            let highest = worst(groups, |group| risk(&terms, group, margin, sensitivity));
            highest.map_or(0.0, |risk| 100.0 * (1.0 - risk))
        }
        Model::DominantResource | Model::Learned => {
            // For packing a full node is best, so an unknown load counts as more than full.
            let penalty = if pack { f64::INFINITY } else { 1.0 };
            let load = worst(groups, |group| {
                let load = group_load(terms(), group, penalty)?;
                Some(if load.is_finite() { on_cpu.load_of(group, load) } else { load })
            });
            load.map_or(0.0, |load| {
                if !pack {
                    100.0 * (1.0 - load)
                } else if load > 1.0 {
                    0.0
                } else {
                    100.0 * load
                }
            })
        }
    };
    let points = (points + ROUNDING_ERROR).trunc();
    Score::truncated(points - (POINTS_PER_HOT_VALUE * hot_value).trunc())
}

/// What all terms add; metrics that are left out leave the others their weight.
fn sum<'a>(scoring: &Scoring, terms: impl Iterator<Item = Weighed<'a>>) -> f64 {
    let mut sum = 0.0;
    let mut left_out = 0.0;
    for term in terms {
        match term.load_or(1.0) {
            Some(_) => sum += points(scoring, term).unwrap_or(0.0),
            None => left_out += term.weight.share,
        }
    }
    if left_out > 0.0 { sum / (1.0 - left_out).max(f64::MIN_POSITIVE) } else { sum }
}

/// What a term adds to 100 points; `None` under a model that adds nothing up.
pub(super) fn points(scoring: &Scoring, term: Weighed<'_>) -> Option<f64> {
    let pack = scoring.direction == Direction::Pack;
    let share = term.weight.share;
    // A weight of 0 adds nothing, whatever the value: 0 times infinity is no number.
    let known = if share > 0.0 { term.value() } else { None };
    let load = known.unwrap_or_default();
    let points = match scoring.model {
        Model::CraneLinear if pack && load > 1.0 => 0.0,
        Model::CraneLinear if pack => 100.0 * share * load,
        Model::CraneLinear => 100.0 * share * (1.0 - load),
        Model::TargetLoadPacking { target } => 100.0 * share * at_target(load, target),
        Model::VariationRisk { .. } | Model::DominantResource | Model::Learned => return None,
    };
    Some(if known.is_some() { points } else { 0.0 })
}

/// Trimaran's TargetLoadPacking, as a fraction of 100 points.
fn at_target(load: f64, target: f64) -> f64 {
    if load <= target {
        (1.0 - target) * load / target + target
    } else if load <= 1.0 {
        target * (1.0 - load) / (1.0 - target)
    } else {
        0.0
    }
}

/// The highest value of all groups that have one.
fn worst(groups: usize, value: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    (0..groups).filter_map(value).reduce(f64::max)
}

/// The weighted mean of the loads of a group; `None` where none counts. `penalty` stands for a load that is not known.
pub(super) fn group_load<'a>(
    terms: impl Iterator<Item = Weighed<'a>>,
    group: usize,
    penalty: f64,
) -> Option<f64> {
    let mut sum = 0.0;
    let mut weights = 0.0;
    for term in terms.filter(|term| term.weight.group == group && !is_deviation(*term)) {
        let share = term.weight.share_of_group;
        if let Some(load) = term.load_or(penalty)
            && share > 0.0
        {
            sum += share * load;
            weights += share;
        }
    }
    (weights > 0.0).then(|| sum / weights)
}

/// A node's used and requested CPU, where `terms` are without the pod to be placed; `None` if its load, its capacity or
/// its pods' requests are not known. Pods in flight to the node count as its own.
pub(super) fn node_cpu<'a>(
    rules: &ResolvedRules,
    terms: impl Iterator<Item = Weighed<'a>>,
    node: &NodeLoad,
    now: Timestamp,
) -> Option<NodeCpu> {
    let (group, requested) = rules.cpu_group.zip(node.requested_cpu)?;
    let requested = requested + node.recent.requested_in_flight(now);
    let capacity = node.capacity.cpu.filter(|capacity| *capacity > 0.0)?;
    // A load that is not known counts as NaN, which makes the mean NaN.
    let used = group_load(terms, group, f64::NAN)? * capacity;
    used.is_finite().then_some(NodeCpu { group, capacity, requested, used })
}

/// The surplus of a node's CPU; `None` where it does not count, or its load is not known.
pub(super) fn surplus<'a>(
    terms: impl Iterator<Item = Weighed<'a>>,
    paired: Paired,
) -> Option<Surplus> {
    let load = group_load(terms, paired.group, f64::NAN)?;
    load.is_finite().then(|| paired.surplus_at(load))
}

/// Trimaran's risk of a resource, 0 to 1; `None` where its load does not count.
fn risk<'a, I: Iterator<Item = Weighed<'a>>>(
    terms: &impl Fn() -> I,
    group: usize,
    margin: f64,
    sensitivity: f64,
) -> Option<f64> {
    let mean = group_load(terms(), group, 1.0)?;
    let deviations = terms().filter(|term| term.weight.group == group && is_deviation(*term));
    let deviation = deviations.filter_map(|term| term.load_or(1.0)).reduce(f64::max).unwrap_or(0.0);
    let deviation = deviation.clamp(0.0, 1.0).powf(1.0 / sensitivity);
    Some(((mean.clamp(0.0, 1.0) + (margin * deviation).clamp(0.0, 1.0)) / 2.0).clamp(0.0, 1.0))
}

fn is_deviation(term: Weighed<'_>) -> bool {
    term.weight.metric.meaning.statistic == WindowStatistic::Deviation
}
