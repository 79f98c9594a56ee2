//! How a node's metrics become a score.

use schemars::JsonSchema;
use serde::Deserialize;

/// How a node's score, 0 (worst) to 100, is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// The formula.
    pub model: Model,
    /// Whether pods are spread or packed.
    pub direction: Direction,
    /// The scale of the answer to kube-scheduler.
    pub scale: Scale,
}

impl Scoring {
    /// crane-scheduler's scoring, on the scale of 10 that kube-scheduler specifies for extenders.
    pub fn crane() -> Self {
        Self { model: Model::CraneLinear, direction: Direction::Spread, scale: Scale::TEN }
    }
}

/// A scoring formula. A metric's load is its reading and, if estimates count, the use of pods that it does not show yet
/// and of the pod to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Model {
    /// The weighted mean of 1 − load over all metrics, as crane-scheduler.
    CraneLinear,
    /// 1 − what the load with the pod is above the load that is typical of the nodes that the pod could go to, of the
    /// resource where that is most.
    AboveTypical,
}

/// Whether pods are spread or packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// Less loaded nodes are better.
    Spread,
    /// More loaded nodes are better, up to their limits.
    Pack,
}

/// The highest score that Prioritize returns, 1 to 100. kube-scheduler adds score × weight × 10 to its own
/// score, and does not limit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale(u8);

impl Scale {
    /// 10, as kube-scheduler specifies for extenders.
    pub const TEN: Self = Self(10);
    /// The highest.
    pub const HUNDRED: Self = Self(100);

    /// As [`Scale::new`], for constants: at least 1 and at most 100.
    pub(super) const fn of(highest: u8) -> Self {
        assert!(highest >= 1 && highest <= 100, "a scale is from 1 to 100");
        Self(highest)
    }

    /// `None` unless `highest` is from 1 to 100.
    #[must_use]
    pub fn new(highest: u8) -> Option<Self> {
        (1..=100).contains(&highest).then_some(Self(highest))
    }

    /// The scale for pods that request GPUs, whose nodes are chosen by their GPUs too: it must decide beside what
    /// kube-scheduler's own plugins say of replicas and resources.
    #[must_use]
    pub fn of_gpu_pods(self) -> Self {
        if self.0 <= Self::TEN.0 { Self::TEN } else { Self::HUNDRED }
    }

    /// The highest score.
    #[must_use]
    pub fn highest(self) -> u8 {
        self.0
    }
}

impl Model {
    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CraneLinear => "craneLinear",
            Self::AboveTypical => "aboveTypical",
        }
    }
}

impl Direction {
    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
        }
    }
}
