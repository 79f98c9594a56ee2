//! The dozen nodes: their size, their GPUs, and the load that they carry besides pods.

use sim::Load;

/// MiB of one unit of the GPU resource.
pub(crate) const UNIT_MIB: u64 = 1024;
/// MiB of every GPU.
pub(crate) const GPU_MIB: u64 = 16 * UNIT_MIB;
/// Units of every GPU.
pub(crate) const GPU_UNITS: u64 = GPU_MIB / UNIT_MIB;
/// The GPU resource.
pub(crate) const GPU_RESOURCE: &str = "aliyun.com/gpu-mem";
/// Value of the label `pool` on the nodes that some GPU pods select.
pub(crate) const POOL: &str = "training";
/// The node that is this machine.
pub(crate) const THIS_HOST: &str = "this-host";

/// One node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePlan {
    pub(crate) name: &'static str,
    /// Allocatable CPUs. Memory is 2 GiB for each.
    pub(crate) cpus: u32,
    /// Number of GPUs.
    pub(crate) gpus: usize,
    /// The load besides pods, which kube-scheduler does not know; `None` where the machine's own `/proc` tells.
    pub(crate) load: Option<Load>,
    /// Amplitude of the CPU load's oscillation, as a fraction.
    pub(crate) swing: f64,
    /// Whether it has the label `pool`.
    pub(crate) in_pool: bool,
}

const fn node(name: &'static str, cpus: u32, gpus: usize, cpu: f64, swing: f64) -> NodePlan {
    NodePlan { name, cpus, gpus, load: Some(Load { cpu, memory: 0.10 }), swing, in_pool: false }
}

const fn memory_full(plan: NodePlan) -> NodePlan {
    let Some(Load { cpu, .. }) = plan.load else { return plan };
    NodePlan { load: Some(Load { cpu, memory: 0.95 }), ..plan }
}

const fn in_pool(plan: NodePlan) -> NodePlan {
    NodePlan { in_pool: true, ..plan }
}

/// Every node. By requests alone the overloaded ones look best, above all cpu-2, because they are the largest of
/// their kind; in the pool it is gpu-1. kube-scheduler scores in whole points, 100 for an empty node, so that only
/// nodes of very different sizes differ in its eyes. No load comes nearer to a limit of either policy than 0.05, so
/// that none goes over it by chance.
pub(crate) const FLEET: [NodePlan; 12] = [
    NodePlan { name: THIS_HOST, cpus: 8, gpus: 0, load: None, swing: 0.0, in_pool: false },
    node("cpu-1", 32, 0, 0.22, 0.05),
    node("cpu-2", 256, 0, 0.91, 0.02),
    node("cpu-3", 32, 0, 0.40, 0.12),
    node("cpu-4", 32, 0, 0.12, 0.03),
    node("cpu-5", 32, 0, 0.47, 0.06),
    memory_full(node("cpu-6", 96, 0, 0.15, 0.04)),
    in_pool(node("gpu-1", 128, 2, 0.28, 0.06)),
    in_pool(node("gpu-2", 32, 2, 0.18, 0.04)),
    in_pool(node("gpu-3", 32, 3, 0.42, 0.08)),
    node("gpu-4", 256, 2, 0.93, 0.02),
    node("gpu-5", 32, 2, 0.24, 0.05),
];

/// The UUID of a node's GPU, by the node's index in [`FLEET`]. Its first 8 digits differ for each GPU, since
/// device ids begin with them.
pub(crate) fn gpu_uuid(node: usize, gpu: usize) -> String {
    format!("GPU-{node:02x}{gpu:02x}5a1e-c0de-4000-8000-0000{node:04x}{gpu:04x}")
}

/// The path of a GPU's device node on its own node.
pub(crate) fn device_path(gpu: usize) -> String {
    format!("/dev/nvidia{gpu}")
}

/// A node's index in [`FLEET`], and its plan.
pub(crate) fn find(name: &str) -> Option<(usize, &'static NodePlan)> {
    FLEET.iter().enumerate().find(|(_, plan)| plan.name == name)
}

/// The nodes with GPUs, with their indices in [`FLEET`].
pub(crate) fn gpu_nodes() -> impl Iterator<Item = (usize, &'static NodePlan)> {
    FLEET.iter().enumerate().filter(|(_, plan)| plan.gpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::Policy;

    #[test]
    fn no_load_is_near_a_limit() {
        for plan in &FLEET {
            let Some(load) = plan.load else { continue };
            for limits in [Policy::Shipped, Policy::Crane].map(Policy::limits) {
                let above = load.cpu - plan.swing - limits.cpu;
                let below = limits.cpu - (load.cpu + plan.swing);
                assert!(above.max(below) >= 0.05, "{}: {limits:?}", plan.name);
                assert!((load.memory - limits.memory).abs() > 0.049, "{}: {limits:?}", plan.name);
            }
        }
    }
}
