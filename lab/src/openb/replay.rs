//! One run: pods arrive until the cluster is full.

use super::arrivals::{arrivals, node_order};
use super::cluster::Node;
use super::policies::Policy;
use super::trace::Trace;

/// What of the GPUs is given out, in percent, by the percentage of them that has been asked for so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    sums: Vec<(f64, u32)>,
    /// Of the GPUs, in percent, that had been asked for when the first pod found no node.
    pub first_failure: Option<f64>,
}

impl Curve {
    /// The mean over the arrivals at which `percent` had been asked for, rounded to whole percent.
    pub fn at(&self, percent: usize) -> Option<f64> {
        let (sum, count) = self.sums.get(percent)?;
        (*count > 0).then(|| sum / f64::from(*count))
    }

    fn add(&mut self, arrived: f64, allocated: f64) {
        let percent = arrived.round() as usize;
        if self.sums.len() <= percent {
            self.sums.resize(percent + 1, (0.0, 0));
        }
        self.sums[percent].0 += allocated;
        self.sums[percent].1 += 1;
    }
}

/// Fills the cluster of `trace` with the pods of `seed`.
pub fn fill(trace: &Trace, seed: u64, policy: &mut dyn Policy) -> Curve {
    let mut nodes: Vec<Node> =
        node_order(trace, seed).iter().map(|at| Node::new(&trace.nodes[*at])).collect();
    let capacity = trace.capacity() as f64;
    let mut curve = Curve::default();
    let mut arrived = 0;
    let mut allocated = 0;
    for at in arrivals(trace, seed) {
        let pod = &trace.kinds[at];
        arrived += pod.demand();
        let percent = 100.0 * arrived as f64 / capacity;
        match policy.place(&nodes, at, pod) {
            Some((node, gpus)) => {
                nodes[node].put(pod, gpus);
                allocated += pod.demand();
            }
            None => {
                curve.first_failure.get_or_insert(percent);
            }
        }
        curve.add(percent, 100.0 * allocated as f64 / capacity);
    }
    curve
}
