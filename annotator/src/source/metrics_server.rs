//! metrics-server in place of exporters: one list of all nodes every 15 seconds.
//!
//! It reports the use of the last seconds, and no longer window; means over five minutes are computed from the samples
//! since the start. Invariants: a window that is less than half full is held back; a value that a node does not report,
//! and a metric that cannot be computed, is absent, never 0.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use cluster::{Client, NodeUse, list_node_uses};
use jiff::{SignedDuration, Timestamp};
use placement::resources::Resource;
use placement::units::{MetricName, NodeName};

use super::{ClusterSource, Column, SourceInputs, SourceValue, Tables, UnavailableMetrics};
use crate::exporter::statistics::HoldReason;
use crate::metrics::call_reason;

/// Time for the API server to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The window of means.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// Half of the window: the samples must span at least this time.
const HALF: SignedDuration = SignedDuration::from_secs(150);

/// The largest number of samples of a node: metrics-server has a new one every 15 seconds, sometimes every 10.
const MAX_SAMPLES: usize = 40;

/// What a metric is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aggregation {
    /// The newest sample.
    Newest,
    /// The mean of the samples in the window.
    Mean,
}

/// The metrics that can be computed. metrics-server does not know how long CPUs waited for IO, which CPUs pods share,
/// and what best-effort pods use: all CPU is the same here.
const METRICS: [(&str, Resource, Aggregation); 10] = [
    ("cpu_busy_active", Resource::Cpu, Aggregation::Newest),
    ("cpu_busy_avg_5m", Resource::Cpu, Aggregation::Mean),
    ("cpu_shared_busy_active", Resource::Cpu, Aggregation::Newest),
    ("cpu_shared_busy_avg_5m", Resource::Cpu, Aggregation::Mean),
    ("cpu_foreground_busy_active", Resource::Cpu, Aggregation::Newest),
    ("cpu_foreground_busy_avg_5m", Resource::Cpu, Aggregation::Mean),
    ("cpu_usage_active", Resource::Cpu, Aggregation::Newest),
    ("cpu_usage_avg_5m", Resource::Cpu, Aggregation::Mean),
    ("mem_usage_active", Resource::Memory, Aggregation::Newest),
    ("mem_usage_avg_5m", Resource::Memory, Aggregation::Mean),
];

/// The samples of one node, the oldest first; no two have the same time.
type NodeSamples = VecDeque<NodeUse>;

/// Polls metrics-server in rounds.
pub(crate) struct MetricsServer {
    client: Client,
    inputs: SourceInputs,
    tables: Tables,
    samples: HashMap<NodeName, NodeSamples>,
    unavailable: UnavailableMetrics,
}

impl MetricsServer {
    /// A source that fills `tables`.
    pub(crate) fn new(client: Client, inputs: SourceInputs, tables: Tables) -> Self {
        let unavailable = UnavailableMetrics::default();
        Self { client, inputs, tables, samples: HashMap::new(), unavailable }
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

    /// One metric of all nodes.
    fn column(&self, resource: Resource, aggregation: Aggregation) -> Column {
        let mut column = Column::new();
        for (node, samples) in &self.samples {
            let value = match aggregation {
                Aggregation::Newest => newest(samples, resource),
                Aggregation::Mean => mean(samples, resource),
            };
            if let Some(value) = value {
                column.insert(node.to_string(), value);
            }
        }
        column
    }
}

impl ClusterSource for MetricsServer {
    async fn run_round(&mut self) {
        let policy = std::sync::Arc::clone(&self.inputs.policies.borrow());
        self.unavailable.report(
            &policy,
            is_computed,
            "metrics-server cannot give this metric of the policy, only those of CPU and mem_usage with _active and \
             _avg_5m: take it out of the policy, or use exporters",
        );
        let answer = list_node_uses(&self.client, TIMEOUT).await;
        let outcome = answer.as_ref().err().map_or("ok", call_reason);
        self.inputs.metrics.count_query(outcome);
        match answer {
            Ok(uses) => {
                self.record(uses, self.inputs.clock.now());
                for (name, resource, aggregation) in METRICS {
                    self.tables.set(name.into(), self.column(resource, aggregation));
                }
            }
            Err(error) => tracing::warn!(
                %error,
                "metrics-server does not answer; readings grow old. Is it installed (kubectl top nodes), and may the \
                 annotator list nodes of metrics.k8s.io?"
            ),
        }
    }
}

/// Whether a metric can be computed.
fn is_computed(metric: &MetricName) -> bool {
    METRICS.iter().any(|(name, ..)| *name == metric.as_str())
}

/// Adds a sample, unless it is known. If it is older than the newest one, the clock was set back, and the samples are
/// cleared first.
fn add(samples: &mut NodeSamples, sample: NodeUse) {
    match samples.back() {
        Some(newest) if newest.at == sample.at => return,
        Some(newest) if newest.at > sample.at => samples.clear(),
        _ => {}
    }
    while let Some(oldest) = samples.front()
        && (sample.at.duration_since(oldest.at) >= WINDOW || samples.len() >= MAX_SAMPLES)
    {
        samples.pop_front();
    }
    samples.push_back(sample);
}

fn newest(samples: &NodeSamples, resource: Resource) -> Option<SourceValue> {
    let newest = samples.back()?;
    Some(SourceValue::Amount { amount: (*newest.used.get(resource))?, resource, at: newest.at })
}

fn mean(samples: &NodeSamples, resource: Resource) -> Option<SourceValue> {
    let oldest = samples.front()?;
    let newest = samples.back()?;
    let mut sum = 0.0;
    let mut count = 0_u32;
    for amount in samples.iter().filter_map(|sample| *sample.used.get(resource)) {
        sum += amount;
        count += 1;
    }
    if count == 0 {
        return None;
    }
    let span = newest.at.duration_since(oldest.at);
    if span < HALF {
        let coverage = span.as_secs_f64() / WINDOW.as_secs_f64();
        let ready_in = Some(HALF - span);
        return Some(SourceValue::HeldBack(HoldReason::Coverage { coverage, ready_in }));
    }
    Some(SourceValue::Amount { amount: sum / f64::from(count), resource, at: newest.at })
}

#[cfg(test)]
mod tests {
    use placement::policy::ReadingSource;
    use placement::resources::PerResource;

    use super::*;
    use crate::source::names_over;

    #[test]
    fn it_gives_what_a_policy_is_checked_against() {
        let windows = ["active", "avg_5m", "avg_15m", "max_avg_1h"];
        for metric in names_over(&windows) {
            let given = ReadingSource::MetricsServer.gives(&metric);
            assert_eq!(given, is_computed(&metric), "{metric}");
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_165_200 + second).unwrap()
    }

    fn sample_at(second: i64, cores: f64) -> NodeUse {
        let used = PerResource { cpu: Some(cores), memory: None };
        NodeUse { node: "a".into(), at: at(second), used }
    }

    fn cores_at(second: i64, cores: f64) -> SourceValue {
        SourceValue::Amount { amount: cores, resource: Resource::Cpu, at: at(second) }
    }

    fn samples(all: impl IntoIterator<Item = (i64, f64)>) -> NodeSamples {
        let mut samples = NodeSamples::new();
        all.into_iter().for_each(|(second, cores)| add(&mut samples, sample_at(second, cores)));
        samples
    }

    #[test]
    fn a_mean_is_held_back_until_half_of_its_window_was_sampled() {
        let young = samples((0..10).map(|n| (15 * n, 2.0)));
        let ready_in = Some(SignedDuration::from_secs(15));
        let held = SourceValue::HeldBack(HoldReason::Coverage { coverage: 0.45, ready_in });
        assert_eq!(mean(&young, Resource::Cpu), Some(held));
        let half = samples((0..11).map(|n| (15 * n, 2.0)));
        assert_eq!(mean(&half, Resource::Cpu), Some(cores_at(150, 2.0)));
    }

    #[test]
    fn a_mean_is_of_the_last_five_minutes_and_the_newest_sample_of_now() {
        // 21 samples of 8 cores are older than five minutes at the end.
        let all =
            (0..41).map(|n| (15 * n, if n <= 20 { 8.0 } else { f64::from(n as u32 % 2) * 2.0 }));
        let samples = samples(all);
        assert_eq!(samples.len(), 20);
        assert_eq!(mean(&samples, Resource::Cpu), Some(cores_at(600, 1.0)));
        assert_eq!(newest(&samples, Resource::Cpu), Some(cores_at(600, 0.0)));
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
