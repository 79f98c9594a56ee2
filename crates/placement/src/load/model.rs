//! The scoring models: from the terms of a policy's weights to a score.
//!
//! - crane linear: trunc(Σ of 100·w·(1−load) ÷ Σ w), as crane-scheduler's `getNodeScore`.
//! - above typical: 100·(1 − excess), where the excess of a resource is what its load with the pod is above the load
//!   that is typical of the candidates without the pod ([`super::typical_load`]), and the largest excess of a resource
//!   counts. Nodes below what is typical are alike, so that kube-scheduler's own scores, such as those that spread
//!   replicas, choose among them.
//!
//! What costs a node points whatever the pod is, is taken from that ([`super::costs`]).

use super::{KnownLoad, ResolvedWeight, Score};
use crate::policy::{Direction, Model, Scoring, Unknown, WindowStatistic};

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

/// The score of a node. `terms` can be called several times, so that terms need not be stored. `typical` has the
/// typical load of each group; where it has none, the node is judged for itself. `cost`: whole points.
pub(super) fn score_of<'a, I>(
    scoring: &Scoring,
    terms: impl Fn() -> I,
    groups: usize,
    typical: &[f64],
    cost: f64,
) -> Score
where
    I: Iterator<Item = Weighed<'a>>,
{
    if terms().all(|term| term.value().is_none()) {
        return Score::ZERO;
    }
    let points = match scoring.model {
        Model::CraneLinear => sum(scoring, terms()),
        Model::AboveTypical => {
            let mut excess: Option<f64> = None;
            for group in 0..groups {
                if let Some(load) = group_load(terms(), group, 1.0) {
                    let above = (load - typical.get(group).unwrap_or(&0.0)).max(0.0);
                    excess = Some(excess.map_or(above, |excess| excess.max(above)));
                }
            }
            excess.map_or(0.0, |excess| 100.0 * (1.0 - excess))
        }
    };
    Score::truncated((points + ROUNDING_ERROR).trunc() - cost)
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
    if scoring.model == Model::AboveTypical {
        return None;
    }
    let share = term.weight.share;
    // A weight of 0 adds nothing, whatever the value: 0 times infinity is no number.
    let known = if share > 0.0 { term.value() } else { None };
    let Some(load) = known else { return Some(0.0) };
    Some(match scoring.direction {
        Direction::Spread => 100.0 * share * (1.0 - load),
        Direction::Pack if load > 1.0 => 0.0,
        Direction::Pack => 100.0 * share * load,
    })
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

fn is_deviation(term: Weighed<'_>) -> bool {
    term.weight.metric.meaning.statistic == WindowStatistic::Deviation
}
