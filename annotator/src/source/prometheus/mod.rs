//! A Prometheus in place of exporters: one instant query for each metric, for all nodes together.
//!
//! Invariants: no query is for a single node; a failed query keeps the metric's last values, and does not stop the
//! queries of other metrics; a value with a time far ahead is dropped.

mod access;
mod answer;
mod queries;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use daemon::follow::Current;
use jiff::{SignedDuration, Timestamp};
use placement::policy::SyncRule;
use placement::reading::is_far_ahead;
use placement::units::MetricName;
use reqwest::Url;

pub(crate) use self::access::{Access, AccessFiles};
pub(crate) use self::answer::QueryError;
use self::answer::{Samples, readings, send_query};
pub(crate) use self::queries::{Queries, QueriesFile};
use super::{ClusterSource, Column, ROUND, SourceInputs, SourceValue, Tables, UnavailableMetrics};

/// The longest time between two queries for one metric. Values of a day change little in it.
const LONGEST_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// The settings of queries to Prometheus.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub url: Url,
    /// The label of its series that names the node.
    pub label: String,
    pub access: Current<Access>,
    pub queries: Current<Queries>,
}

/// Polls Prometheus in rounds.
pub(crate) struct Prometheus {
    setup: Setup,
    inputs: SourceInputs,
    tables: Tables,
    queried_at: HashMap<MetricName, Timestamp>,
    unavailable: UnavailableMetrics,
}

impl Prometheus {
    /// A source that fills `tables`.
    pub(crate) fn new(setup: Setup, inputs: SourceInputs, tables: Tables) -> Self {
        let unavailable = UnavailableMetrics::default();
        Self { setup, inputs, tables, queried_at: HashMap::new(), unavailable }
    }

    /// The metrics of the policy that are due at `now`. A metric whose last query failed is due in each round.
    fn due(&self, queries: &Queries, now: Timestamp) -> BTreeSet<MetricName> {
        let mut due = BTreeSet::new();
        for SyncRule { metric, period } in &self.inputs.policies.borrow().sync {
            if queries.metrics.contains_key(metric) && self.is_due(metric, *period, now) {
                due.insert(metric.clone());
            }
        }
        due
    }

    /// Whether a metric with this period in the policy is due at `now`.
    fn is_due(&self, metric: &MetricName, period: SignedDuration, now: Timestamp) -> bool {
        let Some(queried_at) = self.queried_at.get(metric) else { return true };
        let age = now.duration_since(*queried_at);
        let pause = (period / 4).clamp(ROUND, LONGEST_PERIOD);
        // If the clock was set back, the metric is due.
        age.is_negative() || age + ROUND / 2 >= pause
    }

    /// The answer to one query; a failure is counted and logged.
    async fn query(&self, metric: &str, query: &str) -> Option<Samples> {
        let Setup { url, label, access, .. } = &self.setup;
        let access = Arc::clone(&access.borrow());
        let answer = send_query(&access, url, query, label).await;
        let outcome = answer.as_ref().err().map_or("ok", QueryError::reason);
        self.inputs.metrics.count_query(outcome);
        if let Err(error) = &answer {
            tracing::warn!(
                metric, query, %error,
                "a query to Prometheus failed; the metric's known values are kept and become stale"
            );
        }
        answer.ok()
    }
}

impl ClusterSource for Prometheus {
    async fn run_round(&mut self) {
        let queries = Arc::clone(&self.setup.queries.borrow());
        let policy = Arc::clone(&self.inputs.policies.borrow());
        self.unavailable.report(
            &policy,
            |metric| queries.metrics.contains_key(metric),
            "no query gives this metric of the policy: add one to --prometheus-queries-file, or take it out of the \
             policy",
        );
        let now = self.inputs.clock.now();
        let due = self.due(&queries, now);
        if due.is_empty() {
            return;
        }
        let mut times = None;
        if let Some(query) = &queries.time {
            times = self.query("time", query).await;
            if times.is_none() {
                // Without the times of their samples, values would look newer than they are.
                return;
            }
        }
        for metric in due {
            let Some(query) = queries.metrics.get(&metric) else { continue };
            let Some(values) = self.query(metric.as_str(), query).await else { continue };
            let mut column = Column::new();
            for (node, reading) in readings(&values, times.as_ref()) {
                // A node would keep a reading from the future as the newest one until its time has come.
                if !is_far_ahead(reading.at, self.inputs.clock.now()) {
                    column.insert(node, SourceValue::Reading(reading));
                }
            }
            self.queried_at.insert(metric.clone(), now);
            self.tables.set(metric, column);
        }
    }
}
