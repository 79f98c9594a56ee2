//! Best fit as published: the node with the least CPU and GPU left, and there the fullest GPU with room.

use super::Policy;
use crate::openb::cluster::{Gpus, Node, NodeRoom};
use crate::openb::trace::PodKind;

/// Best fit.
#[derive(Debug, Default)]
pub struct BestFit;

/// The CPU that scores are relative to, in thousandths of a core.
const MOST_CPU: f64 = 128_000.0;
/// The GPUs that scores are relative to, in thousandths of a GPU.
const MOST_GPU: f64 = 8_000.0;

impl Policy for BestFit {
    fn place(&mut self, nodes: &[Node], _: usize, pod: &PodKind) -> Option<(usize, Gpus)> {
        let fitting = nodes.iter().enumerate().filter(|(_, node)| node.fits(pod));
        // The first of the best.
        let best = fitting.rev().max_by_key(|(_, node)| score(&node.room, pod));
        best.map(|(at, node)| (at, gpus(&node.room, pod)))
    }
}

fn score(room: &NodeRoom, pod: &PodKind) -> i64 {
    let free: u32 = room.free().iter().map(|free| u32::from(*free)).sum();
    let cpu = f64::from(room.cpu - pod.cpu) / MOST_CPU;
    let gpu = (f64::from(free) - pod.demand() as f64) / MOST_GPU;
    (100.0 * (1.0 - 0.5 * cpu - 0.5 * gpu)) as i64
}

fn gpus(room: &NodeRoom, pod: &PodKind) -> Gpus {
    let roomy = (0..usize::from(room.gpus)).filter(|at| u32::from(room.free[*at]) >= pod.milli);
    match pod.gpus {
        1 => roomy.min_by_key(|at| room.free[*at]).map_or(0, |at| 1 << at),
        _ => room.first(pod),
    }
}
