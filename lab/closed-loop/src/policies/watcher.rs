//! Readings as paypal/load-watcher takes them for Trimaran: mean and standard deviation of 15 minutes from Prometheus,
//! polled every 30 s. A node's reboot leaves a gap in Prometheus's samples; earlier ones still count.

use crate::readings::Samples;
use crate::time::{MINUTE, Step};
use crate::world::NodeSample;

/// The window of the means.
const WINDOW: Step = 15 * MINUTE;
/// Time between two polls of the plugin's collector.
const POLL: Step = MINUTE / 2;

/// Readings of all nodes, as of the last poll.
#[derive(Clone, Default)]
pub(super) struct Watcher {
    nodes: Vec<Node>,
    /// When the last poll was; it is the end of the window for pods in flight.
    pub(super) polled_at: Step,
}

#[derive(Clone)]
struct Node {
    samples: [Samples; 2],
    readings: Option<[Reading; 2]>,
}

/// Mean and standard deviation as fractions of capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Watcher {
    pub(super) fn observe(&mut self, now: Step, samples: &[NodeSample]) {
        self.nodes.resize_with(samples.len(), || Node {
            samples: [Samples::new(WINDOW), Samples::new(WINDOW)],
            readings: None,
        });
        let is_poll = now.is_multiple_of(POLL);
        for (node, sample) in self.nodes.iter_mut().zip(samples) {
            for (kept, value) in node.samples.iter_mut().zip([sample.cpu, sample.memory]) {
                if sample.up {
                    kept.push(now, value);
                } else {
                    kept.forget(now);
                }
            }
            if is_poll {
                node.readings = node.poll();
            }
        }
        if is_poll {
            self.polled_at = now;
        }
    }

    /// CPU and memory of a node.
    pub(super) fn readings(&self, node: usize) -> Option<[Reading; 2]> {
        self.nodes[node].readings
    }
}

impl Node {
    fn poll(&self) -> Option<[Reading; 2]> {
        Some([reading_of(&self.samples[0])?, reading_of(&self.samples[1])?])
    }
}

fn reading_of(samples: &Samples) -> Option<Reading> {
    let (mean, deviation) = samples.mean_and_deviation()?;
    Some(Reading { mean, deviation })
}
