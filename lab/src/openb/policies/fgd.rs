//! Fragmentation gradient descent as published: the node and the GPU where a pod adds least to the GPU shares that the
//! typical pod cannot use, in steps of a hundredth of a sigmoid.

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Policy;
use super::by_state::{ByState, Place};
use crate::openb::cluster::{Gpus, Node, NodeRoom};
use crate::openb::trace::{PodKind, Trace, WHOLE};

/// Pods by what they ask for (but for memory), with how likely each is.
pub type Typical = Vec<(PodKind, f64)>;

/// The kinds that make up 95% of the pods, the most frequent first.
pub fn typical(trace: &Trace) -> Typical {
    let mut counts: HashMap<PodKind, usize, FixedState> = HashMap::default();
    for pod in &trace.pods {
        *counts.entry(PodKind { memory: 0, ..trace.kinds[*pod] }).or_default() += 1;
    }
    let mut counts: Vec<(PodKind, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(pod, count)| Reverse((*count, pod.milli, pod.cpu, pod.gpus, pod.models)));
    let enough = 0.95 * trace.pods.len() as f64;
    let mut sum = 0;
    let mut kept = Vec::new();
    for (pod, count) in counts {
        if sum as f64 >= enough {
            break;
        }
        sum += count;
        kept.push((pod, count));
    }
    kept.into_iter().map(|(pod, count)| (pod, count as f64 / sum as f64)).collect()
}

/// The policy.
#[derive(Debug)]
pub struct Fgd {
    typical: Typical,
    memory: ByState,
}

impl Fgd {
    /// With the typical pods of the trace's whole list.
    pub fn new(trace: &Trace) -> Self {
        Self { typical: typical(trace), memory: ByState::default() }
    }
}

impl Policy for Fgd {
    fn place(&mut self, nodes: &[Node], at: usize, pod: &PodKind) -> Option<(usize, Gpus)> {
        let typical = &self.typical;
        self.memory.best(nodes, at, pod, |room| judge(typical, room, pod))
    }
}

fn judge(typical: &Typical, room: &NodeRoom, pod: &PodKind) -> Option<Place> {
    if !room.fits(pod) {
        return None;
    }
    let before = fragments(typical, room);
    let mut best: Option<Place> = None;
    for gpus in placements(room, pod) {
        let gain = before - fragments(typical, &room.with(pod, gpus));
        let score = (100.0 / (1.0 + (-gain / 1000.0).exp())).trunc();
        if best.is_none_or(|(so_far, _)| score > so_far) {
            best = Some((score, gpus));
        }
    }
    best
}

/// The ways to place `pod`: each GPU for a share of one, the first GPUs that are idle for whole ones.
pub fn placements(room: &NodeRoom, pod: &PodKind) -> Vec<Gpus> {
    if pod.gpus != 1 || pod.milli == WHOLE {
        return vec![room.first(pod)];
    }
    let mut seen = Vec::new();
    let mut ways = Vec::new();
    for (at, free) in room.free().iter().enumerate() {
        if u32::from(*free) >= pod.milli && !seen.contains(free) {
            seen.push(*free);
            ways.push(1 << at);
        }
    }
    ways
}

/// GPU shares that the typical pod cannot use, in thousandths of a GPU.
fn fragments(typical: &Typical, room: &NodeRoom) -> f64 {
    let idle: u32 = room.free().iter().map(|free| u32::from(*free)).sum();
    typical.iter().map(|(pod, share)| share * f64::from(unusable(room, idle, pod))).sum()
}

/// Of a node's `idle` GPU shares, those that a pod of this kind cannot use.
fn unusable(room: &NodeRoom, idle: u32, pod: &PodKind) -> u32 {
    if pod.milli == 0 || !room.fits(pod) {
        return idle;
    }
    room.free().iter().map(|free| u32::from(*free)).filter(|free| *free < pod.milli).sum()
}
