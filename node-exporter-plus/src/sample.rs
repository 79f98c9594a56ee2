//! Samples the node, once a slot.
//!
//! A collector that fails costs its own signals one gap; the others go on.

use daemon::{Condition, Readiness, Shutdown};

use crate::collectors::{CollectError, Collector};
use crate::series::{Clock, Interval, Moment, Signal};
use crate::{Metrics, SharedStore};

/// The collectors and where their samples go.
pub struct Sampler {
    watched: Vec<Watched>,
    store: SharedStore,
    metrics: Metrics,
}

struct Watched {
    collector: Box<dyn Collector>,
    /// Only for what every node has.
    condition: Option<Condition>,
    failure: Option<String>,
}

impl Sampler {
    /// A sampler of `collectors`; the essential ones are conditions of the process's readiness.
    #[must_use]
    pub fn new(
        collectors: Vec<Box<dyn Collector>>,
        store: SharedStore,
        readiness: &Readiness,
        metrics: Metrics,
    ) -> Self {
        let watch = |collector: Box<dyn Collector>| {
            let condition = collector.is_essential();
            let condition = condition.then(|| readiness.condition(collector.name()));
            Watched { collector, condition, failure: None }
        };
        Self { watched: collectors.into_iter().map(watch).collect(), store, metrics }
    }

    /// Takes one sample of everything.
    pub fn round(&mut self, now: Moment) {
        let mut store = self.store.lock();
        for watched in &mut self.watched {
            let mut record = |signal: &Signal, value| store.record(signal, now, value);
            let outcome = watched.collector.collect(now, &mut record);
            self.metrics.sampled(watched.collector.name(), outcome.is_ok());
            watched.tell(outcome);
        }
        store.finish(now);
    }
}

impl Watched {
    /// Each change is logged once, so that a file that cannot be read for a day makes one line.
    fn tell(&mut self, outcome: Result<(), CollectError>) {
        let failure = outcome.err().map(|error| error.to_string());
        match (&self.condition, &failure) {
            (Some(condition), None) => condition.set_ready(),
            (Some(condition), Some(why)) => condition.set_not_ready(why.clone()),
            (None, Some(why)) if self.failure.as_ref() != Some(why) => {
                tracing::warn!(collector = self.collector.name(), why, "cannot sample");
            }
            (None, _) => {}
        }
        self.failure = failure;
    }
}

/// Runs rounds at the start of each slot until the shutdown.
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
        // A timer that fires a little early must not make a second, tiny sample of the same slot.
        if interval.separates(last, now) {
            sampler.round(now);
            last = now;
        }
    }
    Ok(())
}
