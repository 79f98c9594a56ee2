//! What can be measured at a step, as policies see it.

use super::{NOWHERE, Place};
use crate::cluster::NodeId;
use crate::policies::PodView;
use crate::time::Step;
use crate::workload::{PodId, Workload};

/// One sample of a node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NodeSample {
    /// Whether the node answers; if not, the rest means nothing.
    pub up: bool,
    /// CPU in use, 0 to 1: what exceeds the capacity is not seen.
    pub cpu: f64,
    /// The part of it that best-effort batch uses, which gives way to everything else.
    pub best_effort: f64,
    /// Memory in use, 0 to 1.
    pub memory: f64,
}

impl NodeSample {
    /// CPU in use, with best-effort batch or without.
    pub fn cpu_with(&self, best_effort: bool) -> f64 {
        if best_effort { self.cpu } else { self.cpu - self.best_effort }
    }
}

/// One sample of a running pod, as its cgroup has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodUse {
    /// CPU in use, in cores. Pods of a node whose CPU does not suffice share it in proportion.
    pub cpu: f64,
    /// Memory in use, in MiB.
    pub memory: u32,
}

/// What can be measured at one step in one world.
pub struct Observation<'a> {
    /// The step.
    pub now: Step,
    /// The nodes that have joined.
    pub nodes: &'a [NodeSample],
    pods: Pods<'a>,
}

enum Pods<'a> {
    Measured(Measured<'a>),
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests of policies"))]
    Listed(&'a [(PodView, NodeId, PodUse)]),
}

/// The state of a world that samples of pods are computed from when they are asked for.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) workload: &'a Workload,
    /// By slot.
    pub(super) places: &'a [Place],
    pub(super) uses: &'a [f32],
    pub(super) pod_in_slot: &'a [u32],
    /// By pod.
    pub(super) slot_of: &'a [u32],
    /// By node, the part of what its pods ask for that they get.
    pub(super) shares: &'a [f64],
}

impl Measured<'_> {
    /// The slot of a pod that runs.
    fn running(&self, pod: PodId) -> Option<usize> {
        let slot = self.slot_of[pod] as usize;
        let place = self.places.get(slot)?;
        let runs = place.node != NOWHERE && place.boost != 0.0;
        (runs && self.pod_in_slot[slot] as PodId == pod).then_some(slot)
    }

    /// The cores that the pod in a slot uses; `None` where none runs in it.
    fn cpu(&self, slot: usize) -> Option<f64> {
        let Place { node, boost } = self.places[slot];
        let runs = node != NOWHERE && boost != 0.0;
        runs.then(|| f64::from(self.uses[slot] * boost) * self.shares[usize::from(node)])
    }
}

impl<'a> Observation<'a> {
    pub(super) fn new(now: Step, nodes: &'a [NodeSample], measured: Measured<'a>) -> Self {
        Self { now, nodes, pods: Pods::Measured(measured) }
    }

    /// The sample of a pod; `None` where it does not run (yet).
    pub fn pod(&self, pod: PodId) -> Option<PodUse> {
        match &self.pods {
            Pods::Measured(measured) => {
                let cpu = measured.cpu(measured.running(pod)?)?;
                Some(PodUse { cpu, memory: measured.workload.pods[pod].memory_used })
            }
            Pods::Listed(pods) => {
                pods.iter().find(|(found, ..)| found.id == pod).map(|(_, _, used)| *used)
            }
        }
    }

    /// The slot of a pod that runs, and the memory that it uses in MiB. A pod keeps its slot while it runs.
    pub fn running(&self, pod: PodId) -> Option<(usize, u32)> {
        match &self.pods {
            Pods::Measured(measured) => {
                let slot = measured.running(pod)?;
                Some((slot, measured.workload.pods[pod].memory_used))
            }
            Pods::Listed(_) => self.pod(pod).map(|used| (pod, used.memory)),
        }
    }

    /// The cores that the pod in each slot uses; `None` for a slot in which none runs.
    pub fn for_each_slot(&self, mut slot_uses: impl FnMut(usize, Option<f64>)) {
        match &self.pods {
            Pods::Measured(measured) => {
                (0..measured.places.len()).for_each(|slot| slot_uses(slot, measured.cpu(slot)));
            }
            Pods::Listed(pods) => {
                pods.iter().for_each(|(pod, _, used)| slot_uses(pod.id, Some(used.cpu)));
            }
        }
    }
}

#[cfg(test)]
impl<'a> Observation<'a> {
    /// Samples of nodes on which no pod runs.
    pub(crate) fn of_nodes(now: Step, nodes: &'a [NodeSample]) -> Self {
        Self { now, nodes, pods: Pods::Listed(&[]) }
    }

    /// Samples of nodes and pods.
    pub(crate) fn of_nodes_and_pods(
        now: Step,
        nodes: &'a [NodeSample],
        pods: &'a [(PodView, NodeId, PodUse)],
    ) -> Self {
        Self { now, nodes, pods: Pods::Listed(pods) }
    }
}
