//! The sampling loop: every collector once in each slot.
//!
//! A failed collector leaves a gap in its own signals; the others continue.

use daemon::{Condition, Readiness, Shutdown};

use crate::collectors::{CollectError, Collector};
use crate::series::{Clock, Interval, Moment, Signal};
use crate::{Metrics, SharedStore};

/// The collectors and the store of their samples.
pub struct Sampler {
    collectors: Vec<Watched>,
    store: SharedStore,
    metrics: Metrics,
}

/// A collector and the outcome of its last sample.
struct Watched {
    collector: Box<dyn Collector>,
    /// A condition of readiness; `None` for a collector that is not essential.
    condition: Option<Condition>,
    /// The error of the last sample, if it failed.
    error: Option<String>,
}

impl Sampler {
    /// A sampler of `collectors`. The essential ones are conditions of the process's readiness.
    #[must_use]
    pub fn new(
        collectors: Vec<Box<dyn Collector>>,
        store: SharedStore,
        readiness: &Readiness,
        metrics: Metrics,
    ) -> Self {
        Self {
            collectors: collectors
                .into_iter()
                .map(|collector| {
                    let essential = collector.is_essential();
                    let condition = essential.then(|| readiness.condition(collector.name()));
                    Watched { collector, condition, error: None }
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
    /// Sets the condition, or logs the error if it differs from the last one, so that a file that is unreadable for a
    /// day is logged once. (A condition logs its own changes.)
    fn report(&mut self, outcome: Result<(), CollectError>) {
        let error = outcome.err().map(|error| error.to_string());
        match (&self.condition, &error) {
            (Some(condition), None) => condition.set_ready(),
            (Some(condition), Some(error)) => condition.set_not_ready(error.clone()),
            (None, Some(error)) if self.error.as_ref() != Some(error) => {
                tracing::warn!(collector = self.collector.name(), error, "cannot sample");
            }
            (None, _) => {}
        }
        self.error = error;
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
