//! The order in which pods arrive.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::trace::{Trace, WHOLE};

/// Demand that arrives, by the capacity of the cluster.
const UNTIL: f64 = 1.3;

/// The kinds of pods that arrive, in order: the whole list shuffled, then draws from it until 130% of the GPUs are
/// asked for.
pub fn arrivals(trace: &Trace, seed: u64) -> Vec<usize> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut pods = trace.pods.clone();
    pods.shuffle(&mut random);
    let most = UNTIL * trace.capacity() as f64;
    let mut demand: f64 = pods.iter().map(|pod| trace.kinds[*pod].demand() as f64).sum();
    while !trace.pods.is_empty() {
        let pod = trace.pods[random.random_range(0..trace.pods.len())];
        // A draw that would pass the limit is the last one, and counts one GPU, as in the simulator.
        let one_gpu = f64::from(trace.kinds[pod].milli.min(WHOLE));
        if demand + one_gpu > most {
            break;
        }
        demand += trace.kinds[pod].demand() as f64;
        pods.push(pod);
        if pods.len() > 100 * trace.pods.len() {
            break; // a list that asks for no GPUs
        }
    }
    pods
}

/// The order of nodes: that of names with a random prefix.
pub fn node_order(trace: &Trace, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..trace.nodes.len()).collect();
    order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6e6f_6465));
    order
}
