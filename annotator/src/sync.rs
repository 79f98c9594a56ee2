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
use crate::job::{Ask, Heard, Job, Report, ShareWrite};
use crate::measured::Measurements;
use crate::metrics::Metrics;
use crate::poll::{PollError, Poller};
use crate::statistics::{Form, Lack, Said, Statistics};

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
        let wanted = job.ask.as_ref().map(|ask| ask.wanted.as_slice()).unwrap_or_default();
        let heard = answer.map(|answer| answer.map(|(form, said)| (form, sift(wanted, said))));
        let none = Sifted::default();
        let sifted = heard.as_ref().and_then(|heard| heard.as_ref().ok());
        let sifted = sifted.map_or(&none, |(_, sifted)| sifted);
        sifted.held_back.iter().for_each(|(_, lack)| self.metrics.held_back(lack));
        let share = job.share.as_ref().and_then(|plan| plan.write(&sifted.cards, at));
        let changes = changes(&self.settings, job.hot, &sifted.values, share.as_ref(), at);
        let patch = self.patch(&job, changes, sifted.values.len()).await;
        let poll = heard.map(|heard| heard.map(|(form, sifted)| sifted.told(form)));
        Report { job, at, poll, share, patch }
    }

    async fn ask(&self, ask: &Ask) -> Result<(Form, Statistics), PollError> {
        let endpoint = ask.endpoint.as_ref().map_err(|error| PollError::from(error.clone()))?;
        let start = std::time::Instant::now();
        let answer = self.poller.poll(endpoint, ask.form).await;
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

/// What an exporter said of what was wanted.
#[derive(Default)]
struct Sifted {
    values: Vec<(MetricName, Ratio)>,
    held_back: Vec<(MetricName, Lack)>,
    /// Nothing where there are no values: cards alone are no reason to write a Node at every poll.
    cards: Measurements,
}

impl Sifted {
    fn told(self, form: Form) -> Heard {
        let given = self.values.into_iter().map(|(metric, _)| metric).collect();
        Heard { form, given, held_back: self.held_back, cards: self.cards }
    }
}

fn sift(wanted: &[MetricName], statistics: Statistics) -> Sifted {
    let mut sifted = Sifted::default();
    for metric in wanted {
        match statistics.get(metric) {
            Some(Said::Value(value)) => sifted.values.push((metric.clone(), value)),
            Some(Said::Lacks(lack)) => sifted.held_back.push((metric.clone(), lack)),
            None => {}
        }
    }
    if !sifted.values.is_empty() {
        sifted.cards = statistics.into_cards();
    }
    sifted
}

/// The patch: the readings with the hot value, and the share.
fn changes(
    settings: &Settings,
    hot: Option<u64>,
    given: &[(MetricName, Ratio)],
    share: Option<&ShareWrite>,
    at: Timestamp,
) -> Changes {
    let Settings { names, codec, .. } = settings;
    let reading = |(metric, value): &(MetricName, _)| {
        (metric.to_string(), Some(codec.encode(&Reading::new(*value, at))))
    };
    // crane's readers honour a hot value for 5 minutes; it goes with every load patch, 0 or not.
    let hot = hot.filter(|_| !given.is_empty());
    let hot = hot.map(|count| (HOT_VALUE.to_owned(), Some(codec.encode_count(count, at))));
    let share = share.map(|share| (names.share(), share.as_ref().map(NodeShare::to_json)));
    given.iter().map(reading).chain(hot).chain(share).collect()
}
