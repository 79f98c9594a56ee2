//! Executes jobs: polls the exporter, then writes in one patch if there is a reason.
//!
//! Invariants: a job makes at most one patch of the Node, and at most one of the NodeLoad if readings are in NodeLoads; a patch with
//! readings has all known readings of the node; no patch starts or is awaited while another replica may lead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::pods::NodePods;
use api::share::NodeShare;
use cluster::{
    CallError, Client, Leadership, apply_node_load, patch_node_annotations, patch_node_taint,
};
use daemon::follow::Current;
use jiff::{SignedDuration, Timestamp};
use placement::names::HOT_VALUE;
use placement::reading::{HotValueNote, Reading};
use placement::units::{MetricName, NodeName};
use settings::ReadingsIn;
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::exporter::cards::CardMeasurements;
use crate::exporter::endpoint::Endpoint;
use crate::exporter::error::PollError;
use crate::exporter::poll::Poller;
use crate::exporter::statistics::{Format, HoldReason, MetricValue, Statistics, Wanted};
use crate::fleet::Settings;
use crate::fleet::job::{Job, PollRequest, PollResult, Report};
use crate::fleet::lanes::Lane;
use crate::fleet::node_annotations::Changes;
use crate::fleet::write_plan::Write;
use crate::metrics::Metrics;
use crate::pods::share::ShareAnnotation;
use crate::source::{NodeKey, Table, TableRow, host};
use crate::taints::Change;

/// Time for the API server to answer a patch.
const PATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a prompt exporter to answer about pods' use: its job holds a slot of the prompt lane.
const PODS_TIMEOUT: Duration = Duration::from_secs(1);

/// Executes jobs; clones share the state.
#[derive(Clone)]
pub struct JobRunner {
    /// Polls exporters.
    pub poller: Poller,
    /// The table of the source in place of exporters; `None` if exporters are polled.
    pub table: Option<Current<Table>>,
    /// The API server.
    pub client: Client,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// The clock for readings.
    pub clock: Clock,
    /// Annotation keys and text forms.
    pub settings: Settings,
    /// Counts polls and patches.
    pub metrics: Metrics,
    /// Bounds the number of patches in flight.
    pub patches: Arc<Semaphore>,
}

impl JobRunner {
    /// Executes a job.
    pub async fn run(self, job: Job) -> Report {
        let start = Instant::now();
        let answer = match &job.poll {
            Some(poll) => Some(self.poll(&job.node, poll).await),
            None => None,
        };
        let (at, took) = (self.clock.now(), start.elapsed());
        let nothing = Selection::default();
        let selection = match &answer {
            Some(Ok((_, selection))) => selection,
            _ => &nothing,
        };
        selection.held_back.iter().for_each(|(_, reason)| self.metrics.held_back(reason));
        let write = job.decides().then(|| job.write.decide(&selection.usable, job.hot_value, at));
        let write = write.flatten();
        let share = job.share.as_ref();
        let has_patch = match self.settings.readings_in {
            ReadingsIn::Annotations => write.is_some(),
            ReadingsIn::NodeLoads => !job.on_node.is_empty(),
        };
        let share = share.and_then(|plan| plan.annotation(&selection.cards, has_patch, at));
        let silent = matches!(answer, Some(Err(_)));
        // Concurrently, so that a poll of pods' use never delays the write of readings.
        let (patch, pods) = tokio::join!(
            self.write(&job, write.as_ref(), share.as_ref()),
            self.pods(job.pods.as_ref().filter(|_| !silent), job.lane),
        );
        let poll = answer.map(|answer| answer.map(|(format, all)| all.into_result(format, took)));
        Report { job, at, poll, write, share, patch, pods }
    }

    /// Polls the exporter, or looks the node up in the table of the source in its place.
    async fn poll(
        &self,
        node: &NodeName,
        request: &PollRequest,
    ) -> Result<(Format, Selection), PollError> {
        if let Some(table) = &self.table {
            let endpoint = request.endpoint.as_ref().ok();
            let host = endpoint.map(|endpoint| host(endpoint.address()));
            let key = NodeKey { node, host, capacity: request.capacity };
            let TableRow { usable, held_back } = table.borrow().find(key, &request.wanted);
            let selection = Selection { usable, held_back, ..Selection::default() };
            return Ok((Format::Detailed, selection));
        }
        let start = Instant::now();
        let answer = self.poll_exporter(request).await;
        self.metrics.polled(start.elapsed(), answer.as_ref().map(drop));
        let at = self.clock.now();
        answer.map(|(format, all)| (format, Selection::of(&request.wanted, all, at)))
    }

    async fn poll_exporter(
        &self,
        request: &PollRequest,
    ) -> Result<(Format, Statistics), PollError> {
        let endpoint = request.endpoint.as_ref().map_err(|error| PollError::from(error.clone()))?;
        let since_creation = request.created_at.map(|at| self.clock.now().duration_since(at));
        let wanted = Wanted::Only(&request.wanted);
        self.poller.poll(endpoint, request.format, since_creation, wanted).await
    }

    /// Polls the use of the node's pods.
    async fn pods(
        &self,
        endpoint: Option<&Endpoint>,
        lane: Lane,
    ) -> Option<Result<NodePods, PollError>> {
        let endpoint = endpoint?;
        let timeout = if lane == Lane::Slow { Duration::MAX } else { PODS_TIMEOUT };
        let answer = self.poller.pods(endpoint, timeout).await;
        self.metrics.pod_use_polled(answer.as_ref().map(drop));
        Some(answer)
    }

    /// Writes readings and annotations. `None` if there is nothing to write, or this replica no longer leads.
    async fn write(
        &self,
        job: &Job,
        write: Option<&Write>,
        share: Option<&ShareAnnotation>,
    ) -> Option<Result<(), CallError>> {
        let in_node_loads = self.settings.readings_in == ReadingsIn::NodeLoads;
        let load = write.filter(|_| in_node_loads);
        let mut changes = job.on_node.clone();
        changes.extend(annotations(&self.settings, write.filter(|_| !in_node_loads), share));
        if load.is_none() && changes.is_empty() {
            return None;
        }
        // The semaphore is never closed, so the result is always a permit.
        let _permit = self.patches.acquire().await;
        if let Some(load) = load {
            let outcome = self.apply(job, load).await?;
            if outcome.is_err() || changes.is_empty() {
                return Some(outcome);
            }
        }
        let reason = match (write.filter(|_| !in_node_loads), share) {
            (Some(write), _) => write.reason.label(),
            (None, Some(_)) => "share",
            (None, None) if changes.iter().any(|(_, text)| text.is_some()) => "cooled",
            (None, None) => "leftovers",
        };
        let limit = self.leadership.remaining()?.min(PATCH_TIMEOUT);
        let outcome = self.patch(job, changes, limit).await;
        let readings =
            if in_node_loads { 0 } else { write.map_or(0, |write| write.readings.len()) };
        self.metrics.patched(reason, readings, outcome.as_ref().map(drop));
        Some(outcome)
    }

    /// Readings belong to the machine that was measured, not to another Node of its name.
    async fn patch(
        &self,
        job: &Job,
        changes: Vec<(String, Option<String>)>,
        limit: Duration,
    ) -> Result<(), CallError> {
        let uid = Some(job.uid.as_str());
        patch_node_annotations(&self.client, &job.node, uid, changes, limit).await
    }

    async fn apply(&self, job: &Job, write: &Write) -> Option<Result<(), CallError>> {
        let limit = self.leadership.remaining()?.min(PATCH_TIMEOUT);
        let (node, readings) = (&job.node, &write.readings);
        let outcome = apply_node_load(&self.client, node, &job.uid, readings, limit).await;
        let reason = write.reason.label();
        self.metrics.patched(reason, readings.len(), outcome.as_ref().map(drop));
        Some(outcome)
    }
}

impl JobRunner {
    /// Writes a taint of ours, or clears it; `None` if this replica no longer leads.
    pub async fn write_taint(self, change: Change) -> (Change, Option<Result<(), CallError>>) {
        let Some(limit) = self.leadership.remaining() else { return (change, None) };
        let Change { node, taints, wanted } = &change;
        let limit = limit.min(PATCH_TIMEOUT);
        let outcome = patch_node_taint(&self.client, node, taints, wanted.as_ref(), limit).await;
        let effect = wanted.as_ref().map(|taint| taint.effect);
        self.metrics.taint_written(effect, outcome.as_ref().map(drop));
        (change, Some(outcome))
    }
}

/// The values of an answer that a job requested.
#[derive(Default)]
struct Selection {
    usable: Vec<(MetricName, Reading)>,
    held_back: Vec<(MetricName, HoldReason)>,
    uptime: Option<SignedDuration>,
    /// Empty where `usable` is: measurements of cards alone are no reason to write a Node at every poll.
    cards: CardMeasurements,
}

impl Selection {
    /// Selects the wanted metrics. Readings get the time `at`.
    fn of(wanted: &[MetricName], statistics: Statistics, at: Timestamp) -> Self {
        let mut selection = Self { uptime: statistics.uptime(), ..Self::default() };
        for metric in wanted {
            match statistics.get(metric) {
                Some(MetricValue::Usable(value)) => {
                    selection.usable.push((metric.clone(), Reading::new(value, at)));
                }
                Some(MetricValue::HeldBack(reason)) => {
                    selection.held_back.push((metric.clone(), reason));
                }
                None => {}
            }
        }
        if !selection.usable.is_empty() {
            selection.cards = statistics.into_cards();
        }
        selection
    }

    fn into_result(self, format: Format, took: Duration) -> PollResult {
        let Self { usable, held_back, uptime, cards } = self;
        PollResult { format, usable, held_back, uptime, cards, took }
    }
}

/// The annotations to write: the readings with the hot value, and the share.
fn annotations(
    settings: &Settings,
    write: Option<&Write>,
    share: Option<&ShareAnnotation>,
) -> Changes {
    let Settings { names, codec, .. } = settings;
    let reading = |(metric, reading): &(MetricName, Reading)| {
        (metric.to_string(), Some(codec.encode(reading)))
    };
    let readings = write.into_iter().flat_map(|write| &write.readings).map(reading);
    // crane's readers honour a hot value for 5 minutes, so every patch with readings contains it, 0 or not.
    let hot_value = write.and_then(|write| write.hot_value);
    let count = |note: HotValueNote| codec.encode_count(note.value as u64, note.at);
    let hot_value = hot_value.map(|note| (HOT_VALUE.to_owned(), Some(count(note))));
    let share = share.map(|share| (names.share(), share.as_ref().map(NodeShare::to_json)));
    readings.chain(hot_value).chain(share).collect()
}
