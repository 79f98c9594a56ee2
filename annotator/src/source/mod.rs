//! One source of readings for the whole cluster, in place of an exporter on each node.
//!
//! A source is polled for all nodes at once and fills a [`Table`]; a node's poll looks its readings up there without a
//! request. Invariants: a value that the source does not have is absent, never 0; a reading has the time of its sample,
//! so in an outage of the source the known readings grow old and none is removed.

pub(crate) mod metrics_server;
pub(crate) mod prometheus;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use daemon::follow::Current;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::resources::{PerResource, Resource};
use placement::units::{MetricName, NodeName, Ratio};
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::exporter::statistics::HoldReason;
use crate::metrics::Metrics;

/// The time from the end of one round to the next.
const ROUND: SignedDuration = SignedDuration::from_secs(15);

/// A source's value of a metric of one node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SourceValue {
    Reading(Reading),
    /// An amount in cores or bytes, from which a reading is made with the node's capacity.
    Amount {
        /// Finite and not negative.
        amount: f64,
        resource: Resource,
        /// The time of the sample.
        at: Timestamp,
    },
    /// The value is held back.
    HeldBack(HoldReason),
}

/// One metric of all nodes, by the node's name or its host.
pub(crate) type Column = HashMap<String, SourceValue>;

/// The last values of a source, by metric.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table(BTreeMap<MetricName, Arc<Column>>);

/// The node that is looked up in a [`Table`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeKey<'a> {
    pub node: &'a NodeName,
    /// The host of its address, an alternative key in a column.
    pub host: Option<&'a str>,
    /// Cores and bytes; `None` if the Node does not report it.
    pub capacity: PerResource<Option<f64>>,
}

/// A table's values of one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TableRow {
    /// Readings that may be written.
    pub usable: Vec<(MetricName, Reading)>,
    /// The metrics that are held back.
    pub held_back: Vec<(MetricName, HoldReason)>,
}

impl Table {
    /// Replaces a metric of all nodes. A node that is not in `column` no longer has the metric.
    pub(crate) fn set(&mut self, metric: MetricName, column: Column) {
        self.0.insert(metric, Arc::new(column));
    }

    /// The `wanted` metrics of a node: by its name, otherwise by its host.
    pub(crate) fn find(&self, key: NodeKey<'_>, wanted: &[MetricName]) -> TableRow {
        let mut row = TableRow::default();
        for metric in wanted {
            let Some(column) = self.0.get(metric) else { continue };
            let by_name = column.get(key.node.as_str());
            match by_name.or_else(|| column.get(key.host?)) {
                Some(SourceValue::HeldBack(reason)) => {
                    row.held_back.push((metric.clone(), *reason))
                }
                Some(value) => {
                    let reading = value.reading(key.capacity);
                    row.usable.extend(reading.map(|reading| (metric.clone(), reading)));
                }
                None => {}
            }
        }
        row
    }
}

impl SourceValue {
    fn reading(self, capacity: PerResource<Option<f64>>) -> Option<Reading> {
        match self {
            Self::Reading(reading) => Some(reading),
            Self::Amount { amount, resource, at } => {
                let value = Ratio::new(amount / (*capacity.get(resource))?)?;
                Some(Reading::new(value, at))
            }
            Self::HeldBack(_) => None,
        }
    }
}

/// The source's side of its table, through which it sets columns.
pub(crate) struct Tables(watch::Sender<Arc<Table>>);

impl Tables {
    /// An empty table, and a receiver of its changes.
    pub(crate) fn new() -> (Self, Current<Table>) {
        let (sender, receiver) = watch::channel(Arc::default());
        (Self(sender), receiver)
    }

    fn set(&self, metric: MetricName, column: Column) {
        self.0.send_modify(|table| Arc::make_mut(table).set(metric, column));
    }
}

/// What each source gets beside its own settings.
pub(crate) struct SourceInputs {
    /// The policy in force, which has the metrics.
    pub(crate) policies: Current<LoadPolicy>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

/// A source that is polled in rounds.
pub(crate) trait ClusterSource: Send {
    /// Makes the queries that are due.
    fn run_round(&mut self) -> impl Future<Output = ()> + Send;
}

/// Polls in a loop that never ends. `ready` gets a message after the first round, even if the source did not answer.
pub(crate) async fn poll_source(
    mut source: impl ClusterSource,
    clock: Clock,
    ready: oneshot::Sender<()>,
) {
    source.run_round().await;
    // The receiver may be gone in a shutdown.
    let _ = ready.send(());
    loop {
        clock.wait(clock.now().checked_add(ROUND).ok()).await;
        source.run_round().await;
    }
}

/// The metrics of the policy that a source cannot provide; each is logged once.
#[derive(Debug, Default)]
struct UnavailableMetrics(BTreeSet<MetricName>);

impl UnavailableMetrics {
    /// Logs the metrics of the policy that the source newly does not give, with the message `fix`.
    fn report(&mut self, policy: &LoadPolicy, gives: impl Fn(&MetricName) -> bool, fix: &str) {
        let mut unavailable = BTreeSet::new();
        for rule in &policy.sync {
            if !gives(&rule.metric) {
                unavailable.insert(rule.metric.clone());
            }
        }
        for metric in unavailable.difference(&self.0) {
            tracing::warn!(metric = metric.as_str(), "{fix}");
        }
        self.0 = unavailable;
    }
}

/// A host without its port, and an IPv6 address without its brackets.
pub(crate) fn host(address: &str) -> &str {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    // A bare IPv6 address has more colons.
    let host = if is_port && (!host.contains(':') || host.ends_with(']')) { host } else { address };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Names of what a source could be asked for: each signal over each window.
#[cfg(test)]
pub(crate) fn names_over(windows: &[&str]) -> Vec<MetricName> {
    let signals = [
        "cpu_busy",
        "cpu_shared_busy",
        "cpu_foreground_busy",
        "cpu_usage",
        "mem_usage",
        "load_usage",
    ];
    signals
        .into_iter()
        .flat_map(|signal| windows.iter().map(move |window| format!("{signal}_{window}").into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: PerResource<Option<f64>> = PerResource { cpu: None, memory: None };

    fn reading(value: f64) -> Reading {
        Reading::new(Ratio::new(value).unwrap(), Timestamp::UNIX_EPOCH)
    }

    fn found(
        table: &Table,
        node: &str,
        host: Option<&str>,
        capacity: PerResource<Option<f64>>,
    ) -> TableRow {
        table.find(NodeKey { node: &node.into(), host, capacity }, &["cpu".into(), "mem".into()])
    }

    #[test]
    fn a_node_is_found_by_its_name_before_its_host() {
        let column = [("a", 0.5), ("10.0.0.1", 0.1), ("fd00::3", 0.3)];
        let column =
            column.map(|(key, value)| (key.to_owned(), SourceValue::Reading(reading(value))));
        let mut table = Table::default();
        table.set("cpu".into(), Column::from(column));
        for (node, host, value) in [
            ("a", Some("10.0.0.1"), Some(0.5)),
            ("b", Some("10.0.0.1"), Some(0.1)),
            ("c", Some("fd00::3"), Some(0.3)),
            ("d", Some("10.0.0.9"), None),
            ("d", None, None),
        ] {
            let expected: Vec<_> =
                value.map(|value| ("cpu".into(), reading(value))).into_iter().collect();
            assert_eq!(found(&table, node, host, UNKNOWN).usable, expected);
        }
    }

    #[test]
    fn an_amount_is_a_part_of_the_capacity_and_nothing_where_that_is_not_known() {
        let at = Timestamp::UNIX_EPOCH;
        let amount = SourceValue::Amount { amount: 2.0, resource: Resource::Cpu, at };
        let mut table = Table::default();
        table.set("cpu".into(), Column::from([("a".to_owned(), amount)]));
        for (cpu, expected) in [
            (Some(8.0), vec![("cpu".into(), reading(0.25))]),
            (None, Vec::new()),
            (Some(0.0), Vec::new()),
        ] {
            let capacity = PerResource { cpu, memory: Some(9.0) };
            assert_eq!(found(&table, "a", None, capacity).usable, expected);
        }
    }

    #[test]
    fn a_host_has_neither_port_nor_brackets() {
        for (address, expected) in [
            ("node-1", "node-1"),
            ("node-1:9100", "node-1"),
            ("10.0.0.1:9100", "10.0.0.1"),
            ("[fd00::3]:9100", "fd00::3"),
            ("fd00::3", "fd00::3"),
            ("a:b", "a:b"),
            ("", ""),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
