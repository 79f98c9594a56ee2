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
    /// How much a node's surplus counts, 0 to 1, so that pods that use much of their requests and pods that use little
    /// share nodes ([`crate::load::Pairing`]).
    pub pairing: f64,
    /// The part of the nodes, 0 to 1, that is kept for pods that use much of a node ([`crate::load::KeptNodes`]).
    pub keep_for_large: f64,
}

impl Scoring {
    /// crane-scheduler's scoring, on the scale of 10 that kube-scheduler specifies for extenders.
    pub fn crane() -> Self {
        Self {
            model: Model::CraneLinear,
            direction: Direction::Spread,
            scale: Scale::Ten,
            pairing: 0.0,
            keep_for_large: 0.0,
        }
    }

    /// Whether the surplus of nodes counts.
    #[must_use]
    pub fn pairs(&self) -> bool {
        self.compares() && self.pairing > 0.0
    }

    /// Whether nodes are kept for large pods.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.compares() && self.keep_for_large > 0.0
    }

    /// Whether all nodes together can count: only if the model compares loads of resources, and less load is better.
    pub(super) fn compares(&self) -> bool {
        let compares = matches!(self.model, Model::DominantResource | Model::Learned);
        compares && self.direction == Direction::Spread
    }
}

/// A scoring formula. A metric's load is its reading and, if estimates count, the use of pods that it does not show yet
/// and of the pod to be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Model {
    /// The weighted mean of 1 − load over all metrics: crane-scheduler's.
    CraneLinear,
    /// Best where the load is at the target, worse on both sides: Trimaran's TargetLoadPacking.
    TargetLoadPacking {
        /// The best load, above 0 and below 1.
        target: f64,
    },
    /// 1 − (mean + margin · deviation^(1 ÷ sensitivity)) ÷ 2 of the worst resource: Trimaran's
    /// LoadVariationRiskBalancing. Deviations are the metrics `*_stddev_*`.
    VariationRisk {
        /// How much the deviation counts; not negative.
        margin: f64,
        /// Above 0. Deviations below 1 count more with a higher one.
        sensitivity: f64,
    },
    /// 1 − load of the most loaded resource, each the weighted mean of its metrics.
    DominantResource,
    /// As [`Model::DominantResource`], with estimates learned of pods' workloads.
    Learned,
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

/// The highest score that Prioritize returns. kube-scheduler adds score × weight × 10 to its own score, and does not
/// limit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// 10, as kube-scheduler specifies for extenders.
    Ten,
    /// 100: one point is 10 points of kube-scheduler, at weight 1.
    Hundred,
}

impl Model {
    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CraneLinear => "craneLinear",
            Self::TargetLoadPacking { .. } => "targetLoadPacking",
            Self::VariationRisk { .. } => "variationRisk",
            Self::DominantResource => "dominantResource",
            Self::Learned => "learned",
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

impl Scale {
    /// The highest score.
    #[must_use]
    pub fn highest(self) -> u8 {
        match self {
            Self::Ten => 10,
            Self::Hundred => 100,
        }
    }
}
