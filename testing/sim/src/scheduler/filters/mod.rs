//! kube-scheduler's own filters and scores: what a node allows ([`node`]), and what is free on it ([`resources`]).

mod node;
mod resources;

pub(super) use self::node::{check_node, node_rules};
pub(super) use self::resources::{NodeResources, requests};
