//! What is counted in a world.

use std::collections::VecDeque;

use serde::Serialize;

use super::Spreads;
use crate::cluster::{NODE_CORES, NodeId};
use crate::time::{MINUTE, STEP_SECONDS, Step};

/// CPU use over which node-minutes are counted.
pub const LEVELS: [f64; 3] = [0.65, 0.80, 1.00];

/// How long pods waited: number of pods by steps. Runs add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waits(Vec<u64>);

impl Waits {
    /// Adds a pod that waited that long.
    pub fn add(&mut self, steps: Step) {
        let steps = steps as usize;
        if self.0.len() <= steps {
            self.0.resize(steps + 1, 0);
        }
        self.0[steps] += 1;
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(sum, pods)| *sum += pods);
    }

    fn pods(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The mean in minutes.
    pub fn mean_minutes(&self) -> f64 {
        let steps: f64 =
            self.0.iter().zip(0_u32..).map(|(pods, steps)| *pods as f64 * f64::from(steps)).sum();
        minutes(steps) / (self.pods() as f64).max(1.0)
    }

    /// The `q` quantile by nearest rank, in minutes.
    pub fn quantile_minutes(&self, q: f64) -> f64 {
        let rank = ((q * self.pods() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        minutes(
            self.0
                .iter()
                .position(|pods| {
                    seen += pods;
                    seen >= rank
                })
                .unwrap_or(0) as f64,
        )
    }
}

/// Steps in minutes.
pub fn minutes(steps: f64) -> f64 {
    steps * f64::from(STEP_SECONDS) / 60.0
}

/// The figures of one policy for one cell and one seed, over the counted time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Node-minutes in which pods ask for more than 65%, 80% and 100% of the CPU.
    pub hot_minutes: [f64; 3],
    /// Mean over time of the standard deviation across nodes of the CPU that is asked for, in percent of a node.
    pub deviation: f64,
    /// Mean CPU that is asked for, in percent of the cluster.
    pub mean_use: f64,
    /// The most pods that were bound to one node within a minute.
    pub herd_width: u32,
    /// Pods that were bound, evicted ones again.
    pub placements: u64,
    /// Mean wait of a pod in minutes, from its creation or eviction to its binding. Pods that still wait count with the
    /// time until the end.
    pub wait_mean: f64,
    /// Median wait in minutes.
    pub wait_median: f64,
    /// 99th percentile of the waits in minutes.
    pub wait_p99: f64,
    /// Pods that are pending at the end.
    pub pending: u64,
    /// Pods that were evicted.
    pub evicted: u64,
    /// Pods that were evicted again.
    pub evicted_twice: u64,
    /// How often the policy's system wrote each node's readings an hour; `None` where that is not simulated.
    pub writes_an_hour: Option<f64>,
    /// How replicas of one Deployment spread.
    pub spreads: Spreads,
    /// What the waits are computed from.
    #[serde(skip)]
    pub waits: Waits,
}

/// Counts while a world runs.
pub(super) struct Counter {
    from: Step,
    over: [u64; 3],
    deviation: f64,
    used: f64,
    capacity: f64,
    steps: u64,
    bound: Vec<u32>,
    /// Bindings of the last minute.
    latest: VecDeque<(Step, NodeId)>,
    herd_width: u32,
    placements: u64,
    waits: Waits,
    evicted: u64,
    evicted_twice: u64,
}

impl Counter {
    pub(super) fn new(from: Step, nodes: usize) -> Self {
        Self {
            from,
            over: [0; 3],
            deviation: 0.0,
            used: 0.0,
            capacity: 0.0,
            steps: 0,
            bound: vec![0; nodes],
            latest: VecDeque::new(),
            herd_width: 0,
            placements: 0,
            waits: Waits::default(),
            evicted: 0,
            evicted_twice: 0,
        }
    }

    /// Counts a step in which pods ask for so many cores of each node that is up.
    pub(super) fn step(&mut self, now: Step, demand: impl Iterator<Item = f64>) {
        if now < self.from {
            return;
        }
        let mut sum = 0.0;
        let mut squares = 0.0;
        let mut nodes = 0.0;
        for used in demand.map(|cores| cores / NODE_CORES) {
            for (over, level) in self.over.iter_mut().zip(LEVELS) {
                *over += u64::from(used > level);
            }
            sum += used;
            squares += used * used;
            nodes += 1.0;
        }
        let mean: f64 = sum / nodes;
        self.deviation += (squares / nodes - mean * mean).max(0.0).sqrt();
        self.used += sum;
        self.capacity += nodes;
        self.steps += 1;
    }

    /// Counts a binding of a pod that asked to be bound at `requested_at`.
    pub(super) fn bound(&mut self, now: Step, node: NodeId, requested_at: Step) {
        if now < self.from {
            return;
        }
        self.placements += 1;
        while let Some((at, node)) = self.latest.front().copied()
            && now - at >= MINUTE
        {
            self.bound[node] -= 1;
            self.latest.pop_front();
        }
        self.latest.push_back((now, node));
        self.bound[node] += 1;
        self.herd_width = self.herd_width.max(self.bound[node]);
        if requested_at >= self.from {
            self.waits.add(now - requested_at);
        }
    }

    pub(super) fn evicted(&mut self, again: bool) {
        self.evicted += 1;
        self.evicted_twice += u64::from(again);
    }

    /// The figures; `pending` has the times at which pods that still wait asked to be bound.
    pub(super) fn finish(mut self, now: Step, pending: impl Iterator<Item = Step>) -> Figures {
        let mut count = 0;
        for requested_at in pending {
            count += 1;
            if requested_at >= self.from {
                self.waits.add(now - requested_at);
            }
        }
        Figures {
            hot_minutes: self.over.map(|steps| minutes(steps as f64)),
            deviation: 100.0 * self.deviation / (self.steps as f64).max(1.0),
            mean_use: 100.0 * self.used / self.capacity.max(1.0),
            herd_width: self.herd_width,
            placements: self.placements,
            wait_mean: self.waits.mean_minutes(),
            wait_median: self.waits.quantile_minutes(0.5),
            wait_p99: self.waits.quantile_minutes(0.99),
            pending: count,
            evicted: self.evicted,
            evicted_twice: self.evicted_twice,
            writes_an_hour: None,
            spreads: Spreads::default(),
            waits: self.waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_by_rank() {
        let mut waits = Waits::default();
        (0..98).for_each(|_| waits.add(0));
        waits.add(6);
        waits.add(60);
        assert_eq!((waits.quantile_minutes(0.5), waits.quantile_minutes(0.99)), (0.0, 1.0));
        assert!((waits.mean_minutes() - 0.11).abs() < 1e-9);
        let mut both = waits.clone();
        both.merge(&waits);
        assert_eq!(both.quantile_minutes(1.0), 10.0);
    }

    #[test]
    fn counts_levels_deviation_and_herds() {
        let mut counter = Counter::new(1, 2);
        counter.step(0, [64.0, 64.0].into_iter());
        for now in 1..=6 {
            // 75% and 125%: a deviation of 25.
            counter.step(now, [24.0, 40.0].into_iter());
        }
        counter.bound(1, 0, 0);
        counter.bound(2, 0, 2);
        counter.bound(6, 0, 2);
        counter.bound(7, 0, 7);
        let figures = counter.finish(8, [5].into_iter());
        assert_eq!(figures.hot_minutes, [2.0, 1.0, 1.0]);
        assert!((figures.deviation - 25.0).abs() < 1e-6 && (figures.mean_use - 100.0).abs() < 1e-6);
        // The binding of step 1 is a minute before that of step 7.
        assert_eq!((figures.herd_width, figures.placements, figures.pending), (3, 4, 1));
    }
}
