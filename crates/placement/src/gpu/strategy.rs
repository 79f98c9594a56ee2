//! How a card is chosen among those that fit a request.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::GpuRequest;
use super::fragmentation::Measure;

/// Which of several cards, or nodes, that fit a pod it goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The one where the least free room becomes useless for future pods. As `pack` until enough pods were seen.
    #[default]
    LeastFragmentation,
    /// The one with the least free memory: others stay free for large requests.
    Pack,
    /// The one with the most free memory: pods on one card affect each other least.
    Spread,
}

/// How cards and nodes are chosen.
#[derive(Debug, Clone, Default)]
pub struct ChoiceRule {
    /// The strategy for pods that do not name one.
    pub strategy: Strategy,
    /// The measure of fragmentation; `None` until enough pods were seen.
    pub measure: Option<Arc<Measure>>,
}

/// How cards are compared for one request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Preference<'r> {
    Cheapest(&'r Measure),
    Fullest,
    Emptiest,
}

impl ChoiceRule {
    /// Best fit for all pods that do not name another strategy.
    pub const BEST_FIT: Self = Self { strategy: Strategy::Pack, measure: None };

    /// The measure for pods without cards, whose CPU can make cards useless; `None` if fragmentation does not count.
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

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LeastFragmentation, Self::Pack, Self::Spread];

    /// Its name in annotations and policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeastFragmentation => "least-fragmentation",
            Self::Pack => "pack",
            Self::Spread => "spread",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("none of `least-fragmentation`, `pack` and `spread`")]
pub struct UnknownStrategy;

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == text).ok_or(UnknownStrategy)
    }
}
