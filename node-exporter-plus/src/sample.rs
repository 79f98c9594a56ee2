//! Samples the node, once a slot.
//!
//! A collector that fails costs its own signals one gap; the others go on.

use daemon::{Condition, Readiness, Shutdown};

use crate::collectors::{CollectError, Collector};
use crate::series::{Clock, Interval, Moment};
use crate::{Metrics, SharedStore};

/// The collectors and where their samples go.
pub struct Sampler {
    watched: Vec<Watched>,
    store: SharedStore,
    metrics: Metrics,
}

struct Watched {
    collector: Box<dyn Collector>,
    condition: Condition,
}

impl Sampler {
    /// A sampler of `collectors`; each is a condition of the process's readiness.
    #[must_use]
    pub fn new(
        collectors: Vec<Box<dyn Collector>>,
        store: SharedStore,
        readiness: &Readiness,
        metrics: Metrics,
    ) -> Self {
        let watch = |collector: Box<dyn Collector>| {
            let condition = readiness.condition(collector.name());
            Watched { collector, condition }
        };
        Self { watched: collectors.into_iter().map(watch).collect(), store, metrics }
    }

    /// Takes one sample of everything.
    pub fn round(&mut self, now: Moment) {
        let mut store = self.store.lock();
        for Watched { collector, condition } in &mut self.watched {
            let outcome =
                collector.collect(now, &mut |signal, value| store.record(signal, now, value));
            self.metrics.sampled(collector.name(), outcome.is_ok());
            tell(condition, outcome);
        }
        store.finish(now);
    }
}

/// The condition logs each change, so that a file that is missing for a day makes one line.
fn tell(condition: &Condition, outcome: Result<(), CollectError>) {
    match outcome {
        Ok(()) => condition.set_ready(),
        Err(error) => condition.set_not_ready(error.to_string()),
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
