//! A Prometheus in place of exporters: one instant query for each metric, for all nodes together.
//!
//! Invariants: no query is for a single node; a failed query keeps the metric's last values, and does not stop the queries
//! of other metrics; a value with a time far ahead is dropped.

mod access;
mod answer;
mod queries;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use daemon::follow::Current;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::reading::is_far_ahead;
use placement::units::MetricName;
use reqwest::Url;

pub use self::access::{Access, AccessFiles};
pub use self::answer::QueryError;
use self::answer::{Samples, readings, send_query};
pub use self::queries::{Queries, QueriesFile};
use super::{ROUND, ReadingSource, SourceValue, Tables, UnavailableMetrics};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// The longest time between two queries for one metric. Values of a day change little in it.
const LONGEST_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// The settings of queries to Prometheus.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its address.
    pub url: Url,
    /// The label of its series that names the node.
    pub label: String,
    /// How it is reached.
    pub access: Current<Access>,
    /// The queries.
    pub queries: Current<Queries>,
    /// The policy in force, which has the metrics.
    pub policies: Current<LoadPolicy>,
}

/// Polls Prometheus in rounds.
pub struct Prometheus {
    setup: Setup,
    clock: Clock,
    metrics: Metrics,
    tables: Tables,
    queried_at: HashMap<MetricName, Timestamp>,
    unavailable: UnavailableMetrics,
}

impl Prometheus {
    /// A source that fills `tables`.
    pub(crate) fn new(setup: Setup, clock: Clock, metrics: Metrics, tables: Tables) -> Self {
        let (queried_at, unavailable) = (HashMap::new(), UnavailableMetrics::default());
        Self { setup, clock, metrics, tables, queried_at, unavailable }
    }

    /// The metrics of the policy that are due at `now`. A metric whose last query failed is due in each round.
    fn due(&self, queries: &Queries, now: Timestamp) -> BTreeSet<MetricName> {
        let policy = self.setup.policies.borrow();
        let is_due = |metric: &MetricName, period: SignedDuration| {
            let period = (period / 4).clamp(ROUND, LONGEST_PERIOD);
            // If the clock was set back, the metric is due.
            let age = self.queried_at.get(metric).map(|at| now.duration_since(*at));
            age.is_none_or(|age| age.is_negative() || age + ROUND / 2 >= period)
        };
        let due = policy.sync.iter().filter(|rule| queries.metrics.contains_key(&rule.metric));
        due.filter(|rule| is_due(&rule.metric, rule.period))
            .map(|rule| rule.metric.clone())
            .collect()
    }

    /// The answer to one query; a failure is counted and logged.
    async fn query(&self, metric: &str, query: &str) -> Option<Samples> {
        let Setup { url, label, access, .. } = &self.setup;
        let (access, start) = (Arc::clone(&access.borrow()), Instant::now());
        let answer = send_query(&access, url, query, label).await;
        let outcome = answer.as_ref().err().map_or("ok", QueryError::reason);
        self.metrics.queried(outcome, start.elapsed());
        if let Err(error) = &answer {
            tracing::warn!(metric, query, %error, "a query of Prometheus failed; what is known of its metric grows old");
        }
        answer.ok()
    }
}

impl ReadingSource for Prometheus {
    async fn round(&mut self) {
        let queries = Arc::clone(&self.setup.queries.borrow());
        let policy = Arc::clone(&self.setup.policies.borrow());
        self.unavailable.report(
            &policy,
            |metric| queries.metrics.contains_key(metric),
            "no query gives this metric of the policy: add one to --prometheus-queries-file, or take it out of the policy",
        );
        let now = self.clock.now();
        let due = self.due(&queries, now);
        if due.is_empty() {
            return;
        }
        let times = match &queries.time {
            Some(query) => match self.query("time", query).await {
                // Without their sample times values would look newer than they are.
                None => return,
                times => times,
            },
            None => None,
        };
        for metric in due {
            let Some(query) = queries.metrics.get(&metric) else { continue };
            if let Some(values) = self.query(metric.as_str(), query).await {
                let mut found = readings(&values, times.as_ref());
                // A node would keep such a reading, as newer than all that follow, until its time has come.
                found.retain(|_, reading| !is_far_ahead(reading.at, self.clock.now()));
                let column = found.into_iter();
                let column =
                    column.map(|(node, reading)| (node, SourceValue::Reading(reading))).collect();
                self.queried_at.insert(metric.clone(), now);
                self.tables.set(metric, column);
            }
        }
    }
}
