//! The sampling loop: every collector once in each slot.
//!
//! A failed collector leaves a gap in its own signals; the others continue.

use daemon::{Condition, Health, Shutdown, Status};

use crate::collectors::{CollectError, Collector};
use crate::series::{Clock, Interval, Moment, Signal};
use crate::{Metrics, SharedStore};

/// The collectors and the store of their samples.
pub struct Sampler {
    collectors: Vec<Watched>,
    store: SharedStore,
    metrics: Metrics,
}

/// A collector and the condition with the outcome of its last sample.
struct Watched {
    collector: Box<dyn Collector>,
    condition: Condition,
}

impl Sampler {
    /// A sampler of `collectors`. Each is a condition; the process is not ready without the essential ones.
    #[must_use]
    pub fn new(
        collectors: Vec<Box<dyn Collector>>,
        store: SharedStore,
        health: &Health,
        metrics: Metrics,
    ) -> Self {
        Self {
            collectors: collectors
                .into_iter()
                .map(|collector| {
                    let declare =
                        if collector.is_essential() { Health::gate } else { Health::condition };
                    Watched { condition: declare(health, collector.name()), collector }
                })
                .collect(),
            store,
            metrics,
        }
    }

    /// Takes one sample with every collector.
    pub fn round(&mut self, now: Moment) {
        // A file can take the kernel long. The store is locked after all were read, so that no answer waits for them.
        let mut values: Vec<(Signal, f64)> = Vec::new();
        for watched in &mut self.collectors {
            let outcome = watched
                .collector
                .collect(now, &mut |signal: &Signal, value| values.push((signal.clone(), value)));
            self.metrics.sampled(watched.collector.name(), outcome.is_ok());
            watched.report(outcome);
        }
        let mut store = self.store.lock();
        values.iter().for_each(|(signal, value)| store.record(signal, now, *value));
        store.finish(now);
    }
}

impl Watched {
    /// Sets the condition, which logs its changes: a file that is unreadable for a day is logged once.
    fn report(&mut self, outcome: Result<(), CollectError>) {
        match outcome {
            Ok(()) => self.condition.set_ready(),
            Err(error) if self.collector.is_essential() => {
                self.condition.set_not_ready(error.to_string());
            }
            Err(error) => self.condition.set(Status::warning(
                format!("cannot be sampled: {error}"),
                "its signals are missing on this node (docs/readings.md)",
            )),
        }
    }
}

/// Takes a sample at the start of each slot, until the shutdown.
pub(crate) async fn forever(
    mut sampler: Sampler,
    interval: Interval,
    clock: Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut last = clock().boot;
    while shutdown
        .run_until_cancelled(tokio::time::sleep(interval.until_next(clock().boot)))
        .await
        .is_some()
    {
        let now = clock().boot;
        // A timer that fires a little early must not take a second sample in the same slot.
        if interval.separates(last, now) {
            sampler.round(now);
            last = now;
        }
    }
    Ok(())
}
