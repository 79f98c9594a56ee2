//! A Prometheus in place of exporters: one instant query for each metric, for all nodes together.
//!
//! Invariants: Prometheus is never asked for a single node; a query that fails leaves what is known of its metric, and does
//! not keep other metrics from being asked for; a value of a time far ahead is absent.

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
use self::answer::{Samples, ask, readings};
pub use self::queries::{Queries, QueriesFile};
use super::{Asker, Lacking, ROUND, Tables, Told};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// The longest time between two queries for one metric. Values of a day change little in it.
const LONGEST_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// What Prometheus is asked with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its address.
    pub url: Url,
    /// The label of its series that names the node.
    pub label: String,
    /// How it is reached.
    pub access: Current<Access>,
    /// What it is asked.
    pub queries: Current<Queries>,
    /// The policy in force, which says for which metrics.
    pub policies: Current<LoadPolicy>,
}

/// Asks Prometheus round after round.
pub struct Prometheus {
    setup: Setup,
    clock: Clock,
    metrics: Metrics,
    tables: Tables,
    asked: HashMap<MetricName, Timestamp>,
    lacking: Lacking,
}

impl Prometheus {
    /// One that fills `tables`.
    pub(crate) fn new(setup: Setup, clock: Clock, metrics: Metrics, tables: Tables) -> Self {
        let (asked, lacking) = (HashMap::new(), Lacking::default());
        Self { setup, clock, metrics, tables, asked, lacking }
    }

    /// The metrics of the policy that should be asked for at `now`. One that failed is due in each round.
    fn due(&self, queries: &Queries, now: Timestamp) -> BTreeSet<MetricName> {
        let policy = self.setup.policies.borrow();
        let is_due = |metric: &MetricName, period: SignedDuration| {
            let period = (period / 4).clamp(ROUND, LONGEST_PERIOD);
            // A clock that was set back lets a metric wait for nothing.
            let age = self.asked.get(metric).map(|at| now.duration_since(*at));
            age.is_none_or(|age| age.is_negative() || age + ROUND / 2 >= period)
        };
        let due = policy.sync.iter().filter(|rule| queries.metrics.contains_key(&rule.metric));
        due.filter(|rule| is_due(&rule.metric, rule.period))
            .map(|rule| rule.metric.clone())
            .collect()
    }

    /// The answer to one query; a failure is counted and logged.
    async fn ask(&self, metric: &str, query: &str) -> Option<Samples> {
        let Setup { url, label, access, .. } = &self.setup;
        let (access, start) = (Arc::clone(&access.borrow()), Instant::now());
        let answer = ask(&access, url, query, label).await;
        let outcome = answer.as_ref().err().map_or("ok", QueryError::reason);
        self.metrics.queried(outcome, start.elapsed());
        if let Err(error) = &answer {
            tracing::warn!(metric, query, %error, "a query of Prometheus failed; what is known of its metric grows old");
        }
        answer.ok()
    }
}

impl Asker for Prometheus {
    async fn round(&mut self) {
        let queries = Arc::clone(&self.setup.queries.borrow());
        let policy = Arc::clone(&self.setup.policies.borrow());
        self.lacking.report(
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
            Some(query) => match self.ask("time", query).await {
                // Without their times values would look newer than they are.
                None => return,
                times => times,
            },
            None => None,
        };
        for metric in due {
            let Some(query) = queries.metrics.get(&metric) else { continue };
            if let Some(values) = self.ask(metric.as_str(), query).await {
                let mut found = readings(&values, times.as_ref());
                // A node would keep such a reading, as newer than all that follow, until its time has come.
                found.retain(|_, reading| !is_far_ahead(reading.at, self.clock.now()));
                let column = found.into_iter();
                let column = column.map(|(node, reading)| (node, Told::Reading(reading))).collect();
                self.asked.insert(metric.clone(), now);
                self.tables.set(metric, column);
            }
        }
    }
}
