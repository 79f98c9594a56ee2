//! Whether a request fits a node's GPUs, and which GPUs it gets. Filter, Prioritize, preempt, explain, Bind and the
//! benchmarks use this one rule.
//!
//! [`choose()`] chooses the GPUs, [`NoFit`] says why there are none.

mod assign;
mod choose;
mod no_fit;

use super::choice_rule::Preference;
use super::fragmentation::Cost;
use super::{ChoiceRule, ChosenGpu, FreeGpu, GpuFit, GpuRequest, GpuShare, Rating};
use crate::load::Score;
use crate::units::{GpuId, Units};

use choose::are_linked;
pub use choose::choose;
pub(super) use choose::{FreeNear, check, free_near};
pub use no_fit::NoFit;
pub(super) use no_fit::why_no_fit;

/// The GPUs that were chosen for a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Choice {
    /// One for each share of the request, in their order; never empty.
    pub gpus: Vec<ChosenGpu>,
    /// The cost of the placement; `None` if the GPUs were not chosen by cost.
    pub cost: Option<Cost>,
}

/// The whole decision about a node's GPUs for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The largest share of the request.
    pub largest_share: GpuShare,
    /// How many GPUs are requested.
    pub count: usize,
    /// Each GPU, by index, and whether the largest share fits it.
    pub gpus: Vec<(FreeGpu, GpuFit)>,
    /// The GPUs that were chosen, or why none fit.
    pub outcome: Result<Choice, NoFit>,
    /// The node's rating, as [`NodeGpus::rate`](super::NodeGpus::rate); `None` if the request does not fit.
    pub rating: Option<Rating>,
}

impl Fit {
    /// Whether NVLink connects all chosen GPUs with each other; `None` for fewer than two, and where the node reports
    /// no NVLink.
    pub fn is_linked(&self) -> Option<bool> {
        let chosen = &self.outcome.as_ref().ok()?.gpus;
        let mut gpus = Vec::with_capacity(chosen.len());
        for (gpu, _) in self.gpus.iter().filter(|(gpu, _)| !gpu.topology.linked.is_empty()) {
            gpus.push(gpu);
        }
        if chosen.len() < 2 || gpus.is_empty() {
            return None;
        }
        gpus.retain(|gpu| chosen.iter().any(|chosen| chosen.uuid == gpu.uuid));
        Some(gpus.len() == chosen.len() && are_linked(&gpus))
    }
}

impl Choice {
    /// How good the choice is for a request under a rule: its cost where placements have one. Otherwise a score: under
    /// packing 100 where the GPUs are full and less the more stays free on them, under spreading the reverse.
    pub fn rate(&self, request: &GpuRequest, rule: &ChoiceRule) -> Rating {
        let left = self.gpus.iter().map(|gpu| gpu.left).sum();
        let units = self.gpus.iter().map(|gpu| gpu.units).sum();
        match (rule.preference(request), self.cost) {
            (Preference::Cheapest(_), Some(cost)) => Rating::Cost(cost),
            // Chosen before there was a measure: the pod keeps these GPUs, so this is the best rating.
            (Preference::Cheapest(_), None) => Rating::Cost(Cost(i64::MIN)),
            (Preference::Fullest, _) => Rating::Score(packing_score(left, units)),
            (Preference::Emptiest, _) => Rating::Score(spread_score(left, units)),
        }
    }

    /// The GPUs.
    pub fn gpu_ids(&self) -> Vec<GpuId> {
        self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    }

    /// Their indices.
    pub fn indices(&self) -> Vec<u32> {
        self.gpus.iter().map(|gpu| gpu.index).collect()
    }

    /// The lowest index.
    pub fn first_index(&self) -> u32 {
        self.gpus.iter().map(|gpu| gpu.index).min().unwrap_or_default()
    }
}

/// The score under packing where `left` of `units` stay free.
pub(super) fn packing_score(left: Units, units: Units) -> Score {
    Score::truncated(100.0 * (1.0 - f64::from(left.0) / f64::from(units.0.max(1))))
}

/// The score under spreading where `left` of `units` stay free.
pub(super) fn spread_score(left: Units, units: Units) -> Score {
    Score::truncated(100.0 - f64::from(packing_score(left, units).get()))
}
