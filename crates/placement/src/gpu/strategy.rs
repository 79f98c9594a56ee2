//! The strategies by which a GPU is chosen among those that fit a request.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

/// Which of several GPUs, or nodes, that fit a pod it goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The one where the least free room becomes useless for future pods. As `pack` until enough pods were seen.
    #[default]
    LeastFragmentation,
    /// The one with the least free memory: others stay free for large requests.
    Pack,
    /// The one with the most free memory: pods on one GPU affect each other least.
    Spread,
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
