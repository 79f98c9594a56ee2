//! One job: ask the exporter, then write what it said in one patch.
//!
//! Invariant: at most one write a job. Where nothing was learned nothing is written.

use std::time::Duration;

use cluster::{CallError, Client, patch_node_annotations};
use jiff::Timestamp;
use placement::gpu::NodeShare;
use placement::names::HOT_VALUE;
use placement::reading::Reading;
use placement::units::{MetricName, Ratio};

use crate::clock::Clock;
use crate::fleet::Settings;
use crate::job::{Ask, Job, Report};
use crate::metrics::Metrics;
use crate::poll::{PollError, Poller, Statistics};

/// How long the API server may take for a patch.
const PATCH: Duration = Duration::from_secs(10);

/// Annotations of a node: set, or (`None`) removed.
type Changes = Vec<(String, Option<String>)>;

/// What jobs are carried out with; clones share it.
#[derive(Clone)]
pub struct Tools {
    /// Asks exporters.
    pub poller: Poller,
    /// The API server.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// How things are written.
    pub settings: Settings,
    /// What is counted.
    pub metrics: Metrics,
}

impl Tools {
    /// Carries a job out.
    pub async fn carry_out(self, job: Job) -> Report {
        let answer = match &job.ask {
            Some(ask) => Some(self.ask(ask).await),
            None => None,
        };
        let at = self.clock.now();
        let statistics = answer.as_ref().and_then(|answer| answer.as_ref().ok());
        let given = statistics.map(|statistics| given(&job, statistics)).unwrap_or_default();
        let changes = changes(&self.settings, &job, &given, at);
        let patch = self.patch(&job, changes, given.len()).await;
        let given = given.into_iter().map(|(metric, _)| metric).collect();
        let poll = answer.map(|answer| answer.map(|_| given));
        Report { job, at, poll, patch }
    }

    async fn ask(&self, ask: &Ask) -> Result<Statistics, PollError> {
        let endpoint = ask.endpoint.as_ref().map_err(|error| PollError::from(error.clone()))?;
        let start = std::time::Instant::now();
        let answer = self.poller.poll(endpoint).await;
        self.metrics.polled(start.elapsed(), answer.as_ref().map(drop));
        answer
    }

    async fn patch(
        &self,
        job: &Job,
        changes: Changes,
        readings: usize,
    ) -> Option<Result<(), CallError>> {
        if changes.is_empty() {
            return None;
        }
        let outcome = patch_node_annotations(&self.client, &job.node, changes, PATCH).await;
        self.metrics.patched(readings, outcome.as_ref().map(drop));
        Some(outcome)
    }
}

/// What the exporter gave of what was wanted.
fn given(job: &Job, statistics: &Statistics) -> Vec<(MetricName, Ratio)> {
    let wanted = job.ask.iter().flat_map(|ask| &ask.wanted);
    wanted.filter_map(|metric| Some((metric.clone(), statistics.get(metric)?))).collect()
}

/// The patch: the readings with the hot value, and the share.
fn changes(
    settings: &Settings,
    job: &Job,
    given: &[(MetricName, Ratio)],
    at: Timestamp,
) -> Changes {
    let Settings { names, codec, .. } = settings;
    let reading = |(metric, value): &(MetricName, _)| {
        (metric.to_string(), Some(codec.encode(&Reading::new(*value, at))))
    };
    // crane's readers honour a hot value for 5 minutes; it goes with every load patch, 0 or not.
    let hot = job.hot.filter(|_| !given.is_empty());
    let hot = hot.map(|count| (HOT_VALUE.to_owned(), Some(codec.encode_count(count, at))));
    let share = job.share.as_ref();
    let share = share.map(|share| (names.share(), share.as_ref().map(NodeShare::to_json)));
    given.iter().map(reading).chain(hot).chain(share).collect()
}
