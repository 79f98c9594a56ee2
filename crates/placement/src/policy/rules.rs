//! What is done without a reading, node pools, and namespaces with nodes of their own.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Limit, Weight};
use crate::selector::LabelSelector;

/// What is done where a metric has no reading that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// In the order of strictness.
pub enum Unknown {
    /// A limit does not apply; the score is made of the other metrics alone.
    Ignore,
    /// A limit does not apply; in the score the metric counts as fully loaded.
    Penalise,
    /// The node is rejected as one over the limit; in the score as `penalise`.
    Reject,
}

impl Unknown {
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
    /// Which nodes are of it, by their labels.
    pub selector: LabelSelector,
    /// All its limits: the policy's, with those that the pool sets itself.
    pub limits: Vec<Limit>,
    /// All its weights, likewise.
    pub weights: Vec<Weight>,
}

/// Pods of these namespaces go to these nodes alone.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceRule {
    /// The namespaces, by name.
    pub namespaces: Vec<Arc<str>>,
    /// Their nodes, by labels.
    pub nodes: LabelSelector,
}
