//! How GPUs are chosen for a request: by its own strategy or else by the policy's.

use std::sync::Arc;

use super::fragmentation::Measure;
use super::{GpuRequest, Strategy};

/// How GPUs and nodes are chosen.
#[derive(Debug, Clone, Default)]
pub struct ChoiceRule {
    /// The strategy for pods that do not name one.
    pub strategy: Strategy,
    /// The measure of fragmentation; `None` until enough pods were seen.
    pub measure: Option<Arc<Measure>>,
}

/// How GPUs are compared for one request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Preference<'r> {
    Cheapest(&'r Measure),
    Fullest,
    Emptiest,
}

impl ChoiceRule {
    /// Best fit for all pods that do not name another strategy.
    pub const BEST_FIT: Self = Self { strategy: Strategy::Pack, measure: None };

    /// The measure for pods without GPUs, whose CPU can make GPUs useless; `None` if fragmentation does not count.
    pub fn for_plain_pods(&self) -> Option<&Measure> {
        if self.strategy != Strategy::LeastFragmentation {
            return None;
        }
        self.measure.as_deref()
    }

    pub(super) fn preference(&self, request: &GpuRequest) -> Preference<'_> {
        match (request.strategy().unwrap_or(self.strategy), &self.measure) {
            (Strategy::LeastFragmentation, Some(measure)) => Preference::Cheapest(measure),
            (Strategy::LeastFragmentation, None) | (Strategy::Pack, _) => Preference::Fullest,
            (Strategy::Spread, _) => Preference::Emptiest,
        }
    }
}
