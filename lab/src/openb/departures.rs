//! A run in which pods end: kinds and lives drawn from the list.
//!
//! There is no published figure for it: policies compare with each other alone. The times of the trace cannot be
//! replayed as they are: at most 66 of its 6,212 GPUs are in use at once. So pods arrive by chance at a rate that asks
//! for a given part of the GPUs, each with the life that one of its list had, two hours at most (nine in ten live
//! less). A pod that fits nowhere is refused.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::arrivals::node_order;
use super::cluster::{Gpus, Node};
use super::policies::Policy;
use super::trace::Trace;

/// The longest life, in seconds. As long passes before the figures begin, and then until the end.
const LONGEST: u64 = 7_200;

/// Percent of the GPUs that pods ask for on average over time.
pub const ASKED: f64 = 110.0;

/// Where a pod is: its node, its kind in the trace, and its GPUs.
struct Place {
    node: usize,
    kind: usize,
    gpus: Gpus,
}

/// How a run went, once the cluster was full.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Of the GPUs, in percent, what was given out on average over time.
    pub allocated: f64,
    /// Of the GPU time asked for, in percent, what was refused.
    pub refused: f64,
}

/// Runs the pods of `seed`; `None` where the list has no times, or asks for no GPU time.
pub fn run(trace: &Trace, seed: u64, policy: &mut dyn Policy) -> Option<Outcome> {
    if trace.lives.len() != trace.pods.len() {
        return None;
    }
    let capacity = trace.capacity() as f64;
    let mean = (0..trace.pods.len())
        .map(|at| trace.kinds[trace.pods[at]].demand() as f64 * life(trace, at) as f64)
        .sum::<f64>()
        / trace.pods.len() as f64;
    let between = mean / (ASKED / 100.0 * capacity);
    if !(between > 0.0 && between.is_finite()) {
        return None;
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let order = node_order(trace, seed);
    let mut nodes: Vec<Node> = order.iter().map(|at| Node::new(&trace.nodes[*at])).collect();
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut places: HashMap<usize, Place> = HashMap::new();
    let mut arrived = 0_usize;
    let mut time = 0.0_f64;
    let mut given = 0.0;
    let mut asked = 0.0;
    let mut refused = 0.0;
    loop {
        time += -between * (1.0 - random.random::<f64>()).ln();
        if time >= (2 * LONGEST) as f64 {
            break;
        }
        let now = time as u64;
        while let Some(Reverse((_, pod))) = running.peek().copied().filter(|pod| pod.0.0 <= now) {
            running.pop();
            if let Some(Place { node, kind, gpus }) = places.remove(&pod) {
                nodes[node].take_off(&trace.kinds[kind], gpus);
                policy.ended(kind);
            }
        }
        let at = random.random_range(0..trace.pods.len());
        let kind = trace.pods[at];
        let life = life(trace, at);
        let pod = &trace.kinds[kind];
        // Of its GPU time, what lies in the second half of the run.
        let counted = (now + life).clamp(LONGEST, 2 * LONGEST) - now.clamp(LONGEST, 2 * LONGEST);
        let counted = pod.demand() as f64 * counted as f64;
        asked += counted;
        arrived += 1;
        match policy.place(&nodes, kind, pod) {
            Some((node, gpus)) => {
                nodes[node].put(pod, gpus);
                given += counted;
                running.push(Reverse((now + life, arrived)));
                places.insert(arrived, Place { node, kind, gpus });
            }
            None => refused += counted,
        }
    }
    let whole = capacity * LONGEST as f64;
    Some(Outcome { allocated: 100.0 * given / whole, refused: 100.0 * refused / asked })
}

/// In seconds, 1 at least.
fn life(trace: &Trace, at: usize) -> u64 {
    let life = &trace.lives[at];
    (life.to - life.from).clamp(1, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openb::policies::best_fit::BestFit;
    use crate::openb::tables::default_trace;

    const NODES: &str = "cpu_milli,memory_mib,gpu,model\n64000,1000000,4,A\n64000,1000000,4,A\n";
    const PODS: &str = "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n\
        1000,1000,1,500,0,600\n1000,1000,1,1000,100,300\n";

    #[test]
    fn what_is_given_out_and_refused_is_what_is_asked_for() {
        let trace = Trace::read(("n", NODES), ("p", PODS)).unwrap();
        let outcome = run(&trace, 1, &mut BestFit).unwrap();
        assert!(outcome.allocated > 70.0 && outcome.allocated < 100.0, "{outcome:?}");
        let asked = outcome.allocated / (1.0 - outcome.refused / 100.0);
        assert!((asked - 110.0).abs() < 15.0, "{outcome:?}");
        assert_eq!(run(&trace, 1, &mut BestFit), Some(outcome));
    }

    #[test]
    fn a_list_without_times_has_no_such_run() {
        assert_eq!(run(&default_trace().unwrap(), 1, &mut BestFit), None);
    }
}
