//! The cluster's state as its API shows it.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sim::NODES;

use super::Cluster;
use crate::model::nodes::{GPU_RESOURCE, gpu_nodes};
use crate::model::objects::{
    annotated_load, annotated_overload, claimed_pods, cpu_reading, hot_value, name, recorded_pods,
    text,
};

/// Age from which a reading counts as old in the log. Readings are renewed every two seconds.
const OLD: SignedDuration = SignedDuration::from_secs(7);

impl Cluster {
    /// The CPU load in a node's annotation, as a fraction.
    pub(crate) fn annotated_cpu(&self, node: &str) -> Option<f64> {
        annotated_load(&self.sim.node(node)?).0
    }

    /// Whether a node's annotations show it over a limit.
    pub(crate) fn is_annotated_overloaded(&self, node: &str) -> bool {
        let limits = self.loads.policy().limits();
        self.sim.node(node).is_some_and(|node| annotated_overload(&node, limits).is_any())
    }

    /// The node with the highest hot value, and that; `None` while all are 0.
    pub(crate) fn hottest_node(&self) -> Option<(String, u64)> {
        let nodes = self.sim.list(NODES);
        let hot = nodes.iter().filter_map(|node| Some((name(node).to_owned(), hot_value(node)?)));
        hot.filter(|(_, value)| *value > 0).max_by_key(|(_, value)| *value)
    }

    /// Allocatable units of GPU memory on a node.
    pub(crate) fn gpu_units(&self, node: &str) -> u64 {
        self.sim.node(node).as_ref().map_or(0, gpu_units)
    }

    /// Whether a node's plugin reports exactly the pods whose claims are on the node's GPUs.
    pub(crate) fn records_match_claims(&self, node: &str) -> bool {
        let object = self.sim.node(node);
        object.is_some_and(|object| recorded_pods(&object) == claimed_pods(&self.pods(), node))
    }

    /// Whether every node has its readings, and every GPU node its GPUs.
    pub(crate) fn is_annotated(&self) -> bool {
        let nodes = self.sim.list(NODES);
        let with_gpus = nodes
            .iter()
            .filter(|node| has_annotation(node, "plimsoll.dev/gpu-cards") && gpu_units(node) > 0);
        nodes.iter().all(|node| matches!(annotated_load(node), (Some(_), Some(_))))
            && with_gpus.count() == gpu_nodes().count()
    }
}

fn has_annotation(node: &Value, key: &str) -> bool {
    node["metadata"]["annotations"][key].is_string()
}

/// Whether a node's CPU reading is old at this time.
pub(crate) fn is_reading_old(node: &Value, now: Timestamp) -> bool {
    cpu_reading(node).is_some_and(|reading| now.duration_since(reading.at) > OLD)
}

/// Allocatable units of GPU memory of a Node object.
pub(crate) fn gpu_units(node: &Value) -> u64 {
    text(&node["status"]["allocatable"][GPU_RESOURCE]).parse().unwrap_or(0)
}
