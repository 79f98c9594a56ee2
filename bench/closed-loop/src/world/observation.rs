//! What can be measured at a step, as policies see it.

use super::{NOWHERE, Place, view};
use crate::cluster::{NODE_CORES, NodeId};
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
    /// Memory in use, 0 to 1.
    pub memory: f64,
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
    /// Cores asked for of each node.
    pub(super) demand: &'a [f64],
}

impl Measured<'_> {
    fn in_slot(&self, slot: usize) -> Option<(PodView, NodeId, PodUse)> {
        let place = self.places.get(slot)?;
        if place.node == NOWHERE || place.boost == 0.0 {
            return None;
        }
        let pod = self.pod_in_slot[slot] as PodId;
        let node = usize::from(place.node);
        let used = PodUse { cpu: self.cpu(slot), memory: self.workload.pods[pod].memory_used };
        Some((view(self.workload, pod), node, used))
    }
}

impl Measured<'_> {
    /// The slot of a pod that runs.
    fn running(&self, pod: PodId) -> Option<usize> {
        let slot = self.slot_of[pod] as usize;
        let place = self.places.get(slot)?;
        let runs = place.node != NOWHERE && place.boost != 0.0;
        (runs && self.pod_in_slot[slot] as PodId == pod).then_some(slot)
    }

    fn cpu(&self, slot: usize) -> f64 {
        let place = self.places[slot];
        let share = (NODE_CORES / self.demand[usize::from(place.node)]).min(1.0);
        f64::from(self.uses[slot] * place.boost) * share
    }
}

impl<'a> Observation<'a> {
    pub(super) fn new(now: Step, nodes: &'a [NodeSample], measured: Measured<'a>) -> Self {
        Self { now, nodes, pods: Pods::Measured(measured) }
    }

    /// The sample of a pod; `None` where it does not run (yet).
    pub fn pod(&self, pod: PodId) -> Option<PodUse> {
        match &self.pods {
            Pods::Measured(measured) => measured.running(pod).map(|slot| PodUse {
                cpu: measured.cpu(slot),
                memory: measured.workload.pods[pod].memory_used,
            }),
            Pods::Listed(pods) => {
                pods.iter().find(|(found, ..)| found.id == pod).map(|(_, _, used)| *used)
            }
        }
    }

    /// The cores that a pod uses, as [`Observation::pod`] has them, at less cost.
    pub fn pod_cpu(&self, pod: PodId) -> Option<f64> {
        match &self.pods {
            Pods::Measured(measured) => measured.running(pod).map(|slot| measured.cpu(slot)),
            Pods::Listed(_) => self.pod(pod).map(|used| used.cpu),
        }
    }

    /// All running pods with their nodes and samples.
    pub fn pods(&self) -> impl Iterator<Item = (PodView, NodeId, PodUse)> {
        let (measured, listed) = match &self.pods {
            Pods::Measured(measured) => (Some(*measured), None),
            Pods::Listed(pods) => (None, Some(*pods)),
        };
        let measured = measured.into_iter();
        let measured =
            measured.flat_map(|all| (0..all.places.len()).filter_map(move |s| all.in_slot(s)));
        measured.chain(listed.into_iter().flatten().copied())
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
