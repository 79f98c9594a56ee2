//! metrics-server in place of exporters: one list of all nodes every 15 seconds.
//!
//! It reports the use of the last seconds, and no longer window; means over five minutes are computed from the samples since the
//! start. Invariants: a window that is less than half full is held back; a value that a node does not report, and a metric that
//! cannot be computed, is absent, never 0.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use cluster::{Client, NodeUse, list_node_uses};
use daemon::follow::Current;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::resources::Resource;
use placement::units::{MetricName, NodeName};

use super::{Column, ReadingSource, SourceValue, Tables, UnavailableMetrics};
use crate::clock::Clock;
use crate::exporter::statistics::HoldReason;
use crate::metrics::Metrics;

/// Time for the API server to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The window of means.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// Half of the window: the samples must span at least this time.
const HALF: SignedDuration = SignedDuration::from_secs(150);

/// The largest number of samples of a node: metrics-server has a new one every 15 seconds, sometimes every 10.
const MAX_SAMPLES: usize = 40;

/// The metrics that can be computed: the newest sample, and the mean of the samples in the window. metrics-server does not know
/// how long CPUs waited for IO, so `cpu_usage` is the same as `cpu_busy` here.
const METRICS: [(&str, Resource, bool); 6] = [
    ("cpu_busy_active", Resource::Cpu, false),
    ("cpu_busy_avg_5m", Resource::Cpu, true),
    ("cpu_usage_active", Resource::Cpu, false),
    ("cpu_usage_avg_5m", Resource::Cpu, true),
    ("mem_usage_active", Resource::Memory, false),
    ("mem_usage_avg_5m", Resource::Memory, true),
];

/// The samples of one node, the oldest first; no two have the same time.
type Samples = VecDeque<NodeUse>;

/// Polls metrics-server in rounds.
pub struct MetricsServer {
    client: Client,
    policies: Current<LoadPolicy>,
    clock: Clock,
    metrics: Metrics,
    tables: Tables,
    samples: HashMap<NodeName, Samples>,
    unavailable: UnavailableMetrics,
}

impl MetricsServer {
    /// A source that fills `tables`.
    pub(crate) fn new(
        client: Client,
        policies: Current<LoadPolicy>,
        clock: Clock,
        metrics: Metrics,
        tables: Tables,
    ) -> Self {
        let (samples, unavailable) = (HashMap::new(), UnavailableMetrics::default());
        Self { client, policies, clock, metrics, tables, samples, unavailable }
    }

    /// Records a complete list. A node that is not in it is dropped.
    fn record(&mut self, uses: Vec<NodeUse>, now: Timestamp) {
        let mut before = std::mem::take(&mut self.samples);
        for mut sample in uses {
            // A node's clock may be ahead.
            sample.at = sample.at.min(now);
            let mut samples = before.remove(&sample.node).unwrap_or_default();
            add(&mut samples, sample);
            if let Some(newest) = samples.back() {
                self.samples.insert(newest.node.clone(), samples);
            }
        }
    }

    fn column(&self, resource: Resource, is_mean: bool) -> Column {
        let entry = |(node, samples): (&NodeName, &Samples)| {
            let value = if is_mean { mean(samples, resource) } else { newest(samples, resource) };
            Some((node.to_string(), value?))
        };
        self.samples.iter().filter_map(entry).collect()
    }
}

impl ReadingSource for MetricsServer {
    async fn round(&mut self) {
        let policy = std::sync::Arc::clone(&self.policies.borrow());
        let gives = |metric: &MetricName| METRICS.iter().any(|(name, ..)| *name == metric.as_str());
        self.unavailable.report(
            &policy,
            gives,
            "metrics-server cannot give this metric of the policy, only cpu_busy, cpu_usage and mem_usage with _active and _avg_5m: take it \
             out of the policy, or use exporters",
        );
        let start = Instant::now();
        let answer = list_node_uses(&self.client, TIMEOUT).await;
        self.metrics.queried(
            answer.as_ref().err().map_or("ok", crate::metrics::call_reason),
            start.elapsed(),
        );
        match answer {
            Ok(uses) => {
                self.record(uses, self.clock.now());
                for (name, resource, is_mean) in METRICS {
                    self.tables.set(name.into(), self.column(resource, is_mean));
                }
            }
            Err(error) => tracing::warn!(
                %error,
                "metrics-server does not answer; readings grow old. Is it installed (kubectl top nodes), and may the annotator list \
                 nodes of metrics.k8s.io?"
            ),
        }
    }
}

/// Adds a sample, unless it is known. If it is older than the newest one, the clock was set back, and the samples are cleared first.
fn add(samples: &mut Samples, sample: NodeUse) {
    match samples.back() {
        Some(newest) if newest.at == sample.at => return,
        Some(newest) if newest.at > sample.at => samples.clear(),
        _ => {}
    }
    let is_old = |old: &NodeUse| sample.at.duration_since(old.at) >= WINDOW;
    while samples.front().is_some_and(is_old) || samples.len() >= MAX_SAMPLES {
        samples.pop_front();
    }
    samples.push_back(sample);
}

fn newest(samples: &Samples, resource: Resource) -> Option<SourceValue> {
    let newest = samples.back()?;
    Some(SourceValue::Amount { amount: (*newest.used.get(resource))?, resource, at: newest.at })
}

fn mean(samples: &Samples, resource: Resource) -> Option<SourceValue> {
    let (oldest, newest) = (samples.front()?, samples.back()?);
    let amounts = samples.iter().filter_map(|sample| *sample.used.get(resource));
    let (sum, count) = amounts.fold((0.0, 0_u32), |(sum, count), amount| (sum + amount, count + 1));
    if count == 0 {
        return None;
    }
    let span = newest.at.duration_since(oldest.at);
    if span < HALF {
        let coverage = span.as_secs_f64() / WINDOW.as_secs_f64();
        return Some(SourceValue::HeldBack(HoldReason::Coverage {
            coverage,
            ready_in: Some(HALF - span),
        }));
    }
    Some(SourceValue::Amount { amount: sum / f64::from(count), resource, at: newest.at })
}

#[cfg(test)]
mod tests {
    use placement::policy::ReadingSource;
    use placement::resources::PerResource;

    use super::*;

    #[test]
    fn it_gives_what_a_policy_is_checked_against() {
        let windows = ["active", "avg_5m", "avg_15m", "max_avg_1h"];
        let signals = ["cpu_busy", "cpu_usage", "mem_usage", "load_usage"];
        let names = signals.map(|signal| windows.map(|of| format!("{signal}_{of}")));
        for name in names.as_flattened() {
            let given = METRICS.iter().any(|(other, ..)| other == name);
            assert_eq!(ReadingSource::MetricsServer.gives(&name.as_str().into()), given, "{name}");
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_165_200 + second).unwrap()
    }

    fn told(second: i64, cores: f64) -> NodeUse {
        let used = PerResource { cpu: Some(cores), memory: None };
        NodeUse { node: "a".into(), at: at(second), used }
    }

    fn samples(all: impl IntoIterator<Item = (i64, f64)>) -> Samples {
        let mut samples = Samples::new();
        all.into_iter().for_each(|(second, cores)| add(&mut samples, told(second, cores)));
        samples
    }

    #[test]
    fn a_mean_is_held_back_until_half_of_its_window_was_sampled() {
        let young = samples((0..10).map(|n| (15 * n, 2.0)));
        let ready_in = Some(SignedDuration::from_secs(15));
        let held = SourceValue::HeldBack(HoldReason::Coverage { coverage: 0.45, ready_in });
        assert_eq!(mean(&young, Resource::Cpu), Some(held));
        let amount = SourceValue::Amount { amount: 2.0, resource: Resource::Cpu, at: at(150) };
        assert_eq!(mean(&samples((0..11).map(|n| (15 * n, 2.0))), Resource::Cpu), Some(amount));
    }

    #[test]
    fn a_mean_is_of_the_last_five_minutes_and_the_newest_sample_of_now() {
        // 21 samples of 8 cores are older than five minutes at the end.
        let all =
            (0..41).map(|n| (15 * n, if n <= 20 { 8.0 } else { f64::from(n as u32 % 2) * 2.0 }));
        let samples = samples(all);
        assert_eq!(samples.len(), 20);
        let amount =
            |amount| Some(SourceValue::Amount { amount, resource: Resource::Cpu, at: at(600) });
        assert_eq!(mean(&samples, Resource::Cpu), amount(1.0));
        assert_eq!(newest(&samples, Resource::Cpu), amount(0.0));
        assert_eq!(
            (mean(&samples, Resource::Memory), newest(&samples, Resource::Memory)),
            (None, None)
        );
    }

    #[test]
    fn a_sample_counts_once_and_a_clock_that_is_set_back_begins_anew() {
        assert_eq!(samples([(0, 1.0), (0, 1.0), (15, 1.0)]).len(), 2);
        assert_eq!(samples([(0, 1.0), (15, 1.0), (5, 1.0)]).len(), 1);
        assert_eq!(samples((0..999).map(|n| (n, 1.0))).len(), MAX_SAMPLES);
    }
}
