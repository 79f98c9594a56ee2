//! What is counted in a world.

use crate::cluster::NODE_CORES;
use crate::time::{STEP_SECONDS, Step};

/// CPU use over which node-minutes are counted.
const HOT: f64 = 0.80;

/// Steps in minutes.
fn minutes(steps: f64) -> f64 {
    steps * f64::from(STEP_SECONDS) / 60.0
}

/// The figures of one policy for one cell and one seed, over the counted time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Node-minutes in which pods ask for more than 80% of the CPU.
    pub hot_minutes: f64,
    /// Mean CPU that is asked for, in percent of the cluster.
    pub mean_use: f64,
    /// Sum of the minutes that pods waited, from creation or eviction to binding. Pods that still wait count with the
    /// time until the end.
    pub wait_minutes: f64,
    /// Waits that are in the sum.
    pub waited: u64,
    /// Pods that are pending at the end.
    pub pending: u64,
    /// Pods that were evicted.
    pub evicted: u64,
}

/// Counts while a world runs.
pub(super) struct Counter {
    from: Step,
    over: u64,
    used: f64,
    capacity: f64,
    wait: u64,
    waited: u64,
    evicted: u64,
}

impl Counter {
    pub(super) fn new(from: Step) -> Self {
        Self { from, over: 0, used: 0.0, capacity: 0.0, wait: 0, waited: 0, evicted: 0 }
    }

    /// Counts a step in which pods ask for so many cores of each node that is up.
    pub(super) fn step(&mut self, now: Step, demand: impl Iterator<Item = f64>) {
        if now < self.from {
            return;
        }
        for cores in demand {
            let used = cores / NODE_CORES;
            self.over += u64::from(used > HOT);
            self.used += used;
            self.capacity += 1.0;
        }
    }

    /// Counts the wait of a pod that asked to be bound at `requested_at`, until `now`.
    pub(super) fn waited(&mut self, now: Step, requested_at: Step) {
        if requested_at >= self.from {
            self.wait += u64::from(now - requested_at);
            self.waited += 1;
        }
    }

    pub(super) fn evicted(&mut self) {
        self.evicted += 1;
    }

    /// The figures; `pending` has the times at which pods that still wait asked to be bound.
    pub(super) fn finish(mut self, now: Step, pending: impl Iterator<Item = Step>) -> Figures {
        let mut count = 0;
        for requested_at in pending {
            count += 1;
            self.waited(now, requested_at);
        }
        Figures {
            hot_minutes: minutes(self.over as f64),
            mean_use: 100.0 * self.used / self.capacity.max(1.0),
            wait_minutes: minutes(self.wait as f64),
            waited: self.waited,
            pending: count,
            evicted: self.evicted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_hot_minutes_and_waits_of_the_counted_time() {
        let mut counter = Counter::new(1);
        counter.step(0, [64.0, 64.0].into_iter());
        for now in 1..=6 {
            // 75% and 125%.
            counter.step(now, [24.0, 40.0].into_iter());
        }
        counter.waited(1, 0);
        counter.waited(2, 2);
        counter.waited(7, 1);
        let figures = counter.finish(8, [5].into_iter());
        assert_eq!((figures.hot_minutes, figures.pending), (1.0, 1));
        assert_eq!((figures.wait_minutes, figures.waited), (1.5, 3));
        assert!((figures.mean_use - 100.0).abs() < 1e-6);
    }
}
