//! What can be seen of the cluster in its API.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sim::NODES;

use crate::evidence::{claimed, reading, recorded, text};
use crate::fleet::{GPU_MEM, gpu_nodes};
use crate::world::World;

/// Readings come every two seconds.
const OLD: SignedDuration = SignedDuration::from_secs(7);

impl World {
    /// What a node's annotation says of its processors.
    pub(crate) fn measured_cpu(&self, node: &str) -> Option<f64> {
        reading(&self.sim.node(node)?, "cpu_usage_active")
    }

    /// Units of GPU memory that a node has for pods now.
    pub(crate) fn offers(&self, node: &str) -> u64 {
        self.sim.node(node).as_ref().map_or(0, units)
    }

    /// Whether nothing was heard of a node of late.
    pub(crate) fn is_silent(&self, node: &str) -> bool {
        self.sim.node(node).is_some_and(|node| is_old(&node, Timestamp::now()))
    }

    /// Whether a node's plugin tells of exactly the pods whose claims are on its cards.
    pub(crate) fn is_recorded(&self, node: &str) -> bool {
        let object = self.sim.node(node);
        object.is_some_and(|object| recorded(&object) == claimed(&self.pods(), node))
    }

    /// Whether every node tells its load, and every GPU node its cards.
    pub(crate) fn is_known(&self) -> bool {
        let nodes = self.sim.list(NODES);
        let annotation = |node: &Value, key| node["metadata"]["annotations"][key].is_string();
        let cards = nodes
            .iter()
            .filter(|node| annotation(node, "plimsoll.dev/gpu-cards") && units(node) > 0)
            .count();
        nodes.iter().all(|node| annotation(node, "cpu_usage_active"))
            && nodes.iter().all(|node| annotation(node, "mem_usage_active"))
            && cards == gpu_nodes().count()
    }
}

/// Whether a node's reading is older than its exporter's silence explains.
pub(crate) fn is_old(node: &Value, now: Timestamp) -> bool {
    let annotation = text(&node["metadata"]["annotations"]["cpu_usage_active"]);
    let at = annotation.split(',').nth(1).and_then(|at| at.parse::<Timestamp>().ok());
    at.is_some_and(|at| now.duration_since(at) > OLD)
}

/// Allocatable units of GPU memory.
pub(crate) fn units(node: &Value) -> u64 {
    text(&node["status"]["allocatable"][GPU_MEM]).parse().unwrap_or(0)
}
