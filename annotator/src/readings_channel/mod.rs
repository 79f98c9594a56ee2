//! The last readings of all nodes, for the extender: what each poll gave, whether or not it was worth a write.
//!
//! Invariants: an answer has the nodes that were polled since the version that the client names, with what the last
//! poll of each gave; a client that has read each answer has what one has that asks for everything. A node that was
//! not polled since this process leads for the first time is in no answer.

pub(crate) mod serve;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::readings::PolledReadings;
use jiff::Timestamp;
use placement::reading::Reading;
use placement::units::{MetricName, NodeName};

/// The table, which the fleet fills and the server reads; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedReadings(Arc<Mutex<PolledTable>>);

impl SharedReadings {
    /// The table, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PolledTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the last poll of each node gave.
#[derive(Debug)]
pub(crate) struct PolledTable {
    /// Differs between processes, so that a version of another process is not understood.
    process: u64,
    /// The number of the last change of a node.
    number: u64,
    nodes: HashMap<NodeName, PolledNode>,
}

#[derive(Debug)]
struct PolledNode {
    /// The number of its last change.
    number: u64,
    /// As they are written: the value with five decimals.
    readings: Vec<(MetricName, Reading)>,
}

impl Default for PolledTable {
    fn default() -> Self {
        // The standard library's hashers have random keys.
        let process = RandomState::new().hash_one(0);
        Self { process, number: 0, nodes: HashMap::new() }
    }
}

impl PolledTable {
    /// A poll of the node gave these readings. One that gave none changes nothing.
    pub(crate) fn record(&mut self, node: &NodeName, polled: &[(MetricName, Reading)]) {
        let written =
            |(metric, reading): &(MetricName, Reading)| (metric.clone(), reading.as_written());
        let readings: Vec<_> = polled.iter().map(written).collect();
        let known = self.nodes.get(node).is_some_and(|known| known.readings == readings);
        if !known && !readings.is_empty() {
            self.number += 1;
            self.nodes.insert(node.clone(), PolledNode { number: self.number, readings });
        }
    }

    /// What the last poll of a node gave.
    pub(crate) fn of(&self, node: &NodeName) -> Option<&[(MetricName, Reading)]> {
        self.nodes.get(node).map(|polled| polled.readings.as_slice())
    }

    /// The node was deleted, or is not selected any more.
    pub(crate) fn remove(&mut self, node: &NodeName) {
        self.nodes.remove(node);
    }

    /// The clock was set back: the times of all readings may be ahead. Each node is in the answers again once it was
    /// polled.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// The answer at `now` to a client that has the answer of the version `since`; all nodes for another version. What
    /// does not fit into one answer is in the next.
    fn answer(&self, since: Option<&str>, now: Timestamp) -> PolledReadings {
        let known = since.and_then(|version| self.parse_version(version)).unwrap_or(0);
        let mut changed = Vec::new();
        for (name, node) in &self.nodes {
            if node.number > known {
                changed.push((node.number, name, &node.readings));
            }
        }
        changed.sort_unstable_by_key(|(number, ..)| *number);
        let mut answer = PolledReadings::new(self.version(self.number), now);
        let mut last = known;
        for (number, name, readings) in changed {
            if !answer.push(name.clone(), readings) {
                answer.version = self.version(last);
                break;
            }
            last = number;
        }
        answer
    }

    fn version(&self, number: u64) -> String {
        format!("{:x}-{number:x}", self.process)
    }

    /// The number of a version; `None` for one of another process.
    fn parse_version(&self, version: &str) -> Option<u64> {
        let (process, number) = version.split_once('-')?;
        let is_own = u64::from_str_radix(process, 16) == Ok(self.process);
        let number = u64::from_str_radix(number, 16).ok()?;
        (is_own && number <= self.number).then_some(number)
    }
}

#[cfg(test)]
mod tests;
