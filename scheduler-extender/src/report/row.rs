//! One node's row of the state.

use std::sync::Arc;

use jiff::Timestamp;
use placement::gpu::NodeGpus;
use placement::load::{
    Evaluation, MetricLoad, NodeLoad, PodToPlace, ReadingStatus, ResolvedPolicy,
};
use placement::names::ZONE_LABEL;
use placement::selector::Labels;
use placement::units::{MetricName, NodeName};

use super::gpus::with_memory;
use crate::view::{GpuMemory, NodeState, Snapshot, View};

/// The largest thousandths of a limit or of a node that are written: 1,000 times it.
const MOST: f64 = 1e6;

/// One node's row. Loads are in thousandths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Row {
    pub(super) limit_ratio: Option<u32>,
    /// The position of its metric.
    pub(super) limit: Option<u32>,
    pub(super) score: u8,
    /// By metric: the reading, and what is added for pods that it does not show.
    pub(super) loads: Box<[(Option<u32>, i32)]>,
    pub(super) read_at: Option<i64>,
    pub(super) missing: u32,
    pub(super) zone: Option<Arc<str>>,
    /// The position of its pool in the policy.
    pub(super) pool: Option<u32>,
    pub(super) unplaced: u32,
    pub(super) backed_off: bool,
    pub(super) gpus: Box<[GpuRow]>,
}

/// One GPU's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GpuRow {
    pub(super) index: u32,
    pub(super) model: Arc<str>,
    pub(super) units: u32,
    pub(super) held: u32,
    pub(super) held_cores: u32,
    pub(super) pods: u32,
    pub(super) memory: u64,
    /// Percent of the memory.
    pub(super) used: Option<u8>,
    pub(super) healthy: bool,
    pub(super) closed: bool,
}

/// What rows are made from.
pub(super) struct Rows<'a> {
    pub(super) view: &'a View,
    pub(super) snapshot: &'a Snapshot,
    /// The metrics of the columns.
    pub(super) metrics: &'a [MetricName],
    pub(super) now: Timestamp,
}

impl Rows<'_> {
    /// The row of a node.
    pub(super) fn row(&self, name: &NodeName, state: &NodeState) -> Row {
        let mut row = Row {
            loads: vec![(None, 0); self.metrics.len()].into(),
            backed_off: self.is_backed_off(name),
            ..Row::default()
        };
        if let Some(load) = &state.load {
            self.set_load(&mut row, load);
        }
        if let Some(gpus) = &state.gpus {
            let unplaced: u64 = gpus.unplaced().iter().map(|(_, units)| u64::from(units.0)).sum();
            row.unplaced = u32::try_from(unplaced).unwrap_or(u32::MAX);
            row.gpus = self.gpus(name, gpus);
        }
        row
    }

    fn is_backed_off(&self, name: &NodeName) -> bool {
        let back_off = self.snapshot.back_offs.get(name);
        back_off.is_some_and(|back_off| back_off.is_on(self.now))
    }

    fn set_load(&self, row: &mut Row, node: &NodeLoad) {
        let policy: &ResolvedPolicy = &self.snapshot.policy;
        let evaluation = Evaluation { policy, node, pod: PodToPlace::ORDINARY, now: self.now };
        row.score = evaluation.score().get();
        row.zone = node.labels.get(ZONE_LABEL).map(|zone| Arc::from(zone.as_str()));
        let pool = pool_of(policy, &node.labels);
        row.pool = pool.and_then(|pool| u32::try_from(pool).ok());
        let mut known = vec![false; self.metrics.len()];
        for check in evaluation.limits() {
            let at = self.position(&check.limit.metric.name);
            add_load(row, &mut known, at, check.load);
            let Some(load) = check.load.value() else { continue };
            let ratio = limit_ratio(load, check.limit.max);
            if row.limit_ratio.is_none_or(|highest| ratio > highest) {
                row.limit_ratio = Some(ratio);
                row.limit = at.and_then(|at| u32::try_from(at).ok());
            }
        }
        for term in evaluation.terms() {
            add_load(row, &mut known, self.position(&term.weight.metric.name), term.load);
        }
    }

    fn position(&self, metric: &MetricName) -> Option<usize> {
        self.metrics.iter().position(|other| other == metric)
    }

    fn gpus(&self, name: &NodeName, gpus: &NodeGpus) -> Box<[GpuRow]> {
        let mut rows = Vec::with_capacity(gpus.accounts().len());
        for (account, memory) in with_memory(self.view, name, gpus, self.now) {
            let gpu = &account.gpu;
            rows.push(GpuRow {
                index: gpu.index,
                model: Arc::from(&*gpu.model.to_string()),
                units: gpu.units.0,
                held: gpu.units.0.saturating_sub(gpu.free.0),
                held_cores: 100_u32.saturating_sub(gpu.free_cores.0),
                pods: u32::try_from(account.charges.len()).unwrap_or(u32::MAX),
                memory: memory.as_ref().map_or(0, |memory| memory.memory.0),
                used: memory.as_ref().and_then(used_percent),
                healthy: gpu.healthy,
                closed: gpu.closed.is_some(),
            });
        }
        rows.into()
    }
}

/// The position of a node's pool in the policy; `None` for a node of none.
pub(super) fn pool_of(policy: &ResolvedPolicy, labels: &Labels) -> Option<usize> {
    policy.policy.pools.iter().position(|pool| pool.selector.matches(labels))
}

/// Adds the load by the metric of the column `at`, unless it is there already: a metric can have a limit and a weight.
fn add_load(row: &mut Row, known: &mut [bool], at: Option<usize>, load: MetricLoad) {
    let Some(at) = at.filter(|at| !known[*at]) else { return };
    known[at] = true;
    let reading = load.reading.fresh();
    row.missing += u32::from(reading.is_none() && load.reading != ReadingStatus::NotFetched);
    row.loads[at] =
        (reading.map(|reading| thousandths(reading.value.get())), signed(load.in_flight));
    let read_at = reading.map(|reading| reading.at.as_second());
    row.read_at = row.read_at.into_iter().chain(read_at).min();
}

/// Percent of a GPU's memory that is in use; `None` if that is not known.
fn used_percent(memory: &GpuMemory) -> Option<u8> {
    let share = memory.used?.0 as f64 / memory.memory.0.max(1) as f64;
    // Even numbers: a measurement, and 40,000 of them take a fifth of the answer.
    Some(2 * (share * 50.0).round().min(50.0) as u8)
}

/// A load in thousandths of its limit. One that is over by less than a thousandth is over too.
fn limit_ratio(load: f64, max: f64) -> u32 {
    let ratio = thousandths(load / max);
    if load > max { ratio.max(1_001) } else { ratio.min(1_000) }
}

/// A fraction in thousandths; a negative or unknown one is 0.
fn thousandths(fraction: f64) -> u32 {
    // The cast saturates, and NaN becomes 0.
    (fraction * 1e3).clamp(0.0, MOST).round() as u32
}

fn signed(fraction: f64) -> i32 {
    (fraction * 1e3).clamp(-MOST, MOST).round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_over_its_limit_by_little_is_over_in_thousandths_too() {
        assert_eq!(limit_ratio(0.650_1, 0.65), 1_001);
        assert_eq!(limit_ratio(0.65, 0.65), 1_000);
        assert_eq!(limit_ratio(0.649_9, 0.65), 1_000);
        assert_eq!(limit_ratio(1.3, 0.65), 2_000);
        // A limit of 0 is met by an idle node alone.
        assert_eq!((limit_ratio(0.0, 0.0), limit_ratio(0.1, 0.0)), (0, 1_000_000));
    }
}
