//! The dozen nodes: what they have, and what they carry besides pods.

use sim::Load;

/// MiB that one unit of the GPU resource stands for.
pub(crate) const UNIT_MIB: u64 = 1024;
/// Memory of every card.
pub(crate) const CARD_MIB: u64 = 16 * UNIT_MIB;
/// The GPU resource.
pub(crate) const GPU_MEM: &str = "aliyun.com/gpu-mem";
/// The label value of the nodes that share some of the GPU pods among them.
pub(crate) const POOL: &str = "training";
/// The node that is this machine.
pub(crate) const THIS_HOST: &str = "this-host";

/// One node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePlan {
    pub(crate) name: &'static str,
    /// Processors, for what pods request.
    pub(crate) cpus: u32,
    /// GPU cards.
    pub(crate) cards: usize,
    /// What it carries besides pods, unknown to kube-scheduler; `None` where the real `/proc` tells.
    pub(crate) load: Option<Load>,
    /// By how much the processor's part swings up and down.
    pub(crate) swing: f64,
    /// Whether it belongs to the pool.
    pub(crate) in_pool: bool,
}

const fn node(name: &'static str, cpus: u32, cards: usize, cpu: f64, swing: f64) -> NodePlan {
    NodePlan { name, cpus, cards, load: Some(Load { cpu, memory: 0.35 }), swing, in_pool: false }
}

const fn full_of_memory(plan: NodePlan) -> NodePlan {
    let Some(Load { cpu, .. }) = plan.load else { return plan };
    NodePlan { load: Some(Load { cpu, memory: 0.88 }), ..plan }
}

const fn pooled(plan: NodePlan) -> NodePlan {
    NodePlan { in_pool: true, ..plan }
}

/// Every node. The overloaded ones are the largest of their kind, so that by requests they look best, first
/// of all cpu-2; of the pool, it is gpu-1. (kube-scheduler counts in whole points, a hundred for an empty
/// node: only nodes of very different sizes look different to it.)
pub(crate) const FLEET: [NodePlan; 12] = [
    NodePlan { name: THIS_HOST, cpus: 8, cards: 0, load: None, swing: 0.0, in_pool: false },
    node("cpu-1", 32, 0, 0.22, 0.05),
    node("cpu-2", 256, 0, 0.91, 0.02),
    node("cpu-3", 32, 0, 0.38, 0.15),
    node("cpu-4", 32, 0, 0.12, 0.03),
    node("cpu-5", 32, 0, 0.47, 0.06),
    full_of_memory(node("cpu-6", 96, 0, 0.15, 0.04)),
    pooled(node("gpu-1", 128, 2, 0.28, 0.06)),
    pooled(node("gpu-2", 32, 2, 0.18, 0.04)),
    pooled(node("gpu-3", 32, 3, 0.42, 0.08)),
    node("gpu-4", 256, 2, 0.93, 0.02),
    node("gpu-5", 32, 2, 0.24, 0.05),
];

/// The UUID of a node's card: telling in its first digits, since device ids begin with them.
pub(crate) fn uuid(node: usize, card: usize) -> String {
    format!("GPU-{node:02x}{card:02x}5a1e-c0de-4000-8000-0000{node:04x}{card:04x}")
}

/// The device node of a card on its own node.
pub(crate) fn device(card: usize) -> String {
    format!("/dev/nvidia{card}")
}

/// Nodes with cards, with their places in the fleet.
pub(crate) fn gpu_nodes() -> impl Iterator<Item = (usize, &'static NodePlan)> {
    FLEET.iter().enumerate().filter(|(_, plan)| plan.cards > 0)
}
