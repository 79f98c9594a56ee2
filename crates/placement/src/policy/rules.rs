//! Missing and stale readings, node pools, and namespaces with nodes of their own.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::exported::is_of_some_nodes;
use super::{Limit, Weight};
use crate::selector::LabelSelector;
use crate::units::MetricName;

/// What happens if a metric has no fresh reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// In the order of strictness.
pub enum Unknown {
    /// A limit does not apply; the score is computed from the other metrics.
    Ignore,
    /// A limit does not apply; in the score the metric counts as fully loaded.
    Penalise,
    /// A limit rejects the node; in the score the metric counts as fully loaded.
    Reject,
}

impl Unknown {
    /// What happens by default if a node has no reading of `metric`. A node that cannot have the metric is not loaded
    /// by it, and what it lacks must not draw pods to nodes that have it: pods without GPUs to nodes with GPUs.
    pub(super) fn default_of_missing(metric: &MetricName) -> Self {
        if is_of_some_nodes(metric) { Self::Ignore } else { Self::Penalise }
    }

    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Penalise => "penalise",
            Self::Reject => "reject",
        }
    }
}

/// Nodes with limits and weights of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePool {
    /// Its name, for people.
    pub name: Arc<str>,
    /// Selects its nodes by their labels.
    pub selector: LabelSelector,
    /// All its limits: its own, and those of the policy that it does not replace.
    pub limits: Vec<Limit>,
    /// All its weights, likewise.
    pub weights: Vec<Weight>,
}

/// Pods of these namespaces go to these nodes only.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceRule {
    /// The namespaces, by name.
    pub namespaces: Vec<Arc<str>>,
    /// Their nodes, by labels.
    pub nodes: LabelSelector,
}
