//! Executes jobs: polls the exporter, then writes what the job's plan decides.
//!
//! Invariants: a job makes at most one patch; a patch with readings has all known readings of the node; no patch starts
//! or is awaited while another replica may lead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::pods::NodePods;
use cluster::{
    CallError, Client, Leadership, patch_node_annotations, patch_node_labels, patch_node_taint,
};
use daemon::follow::Current;
use jiff::Timestamp;
use placement::reading::Reading;
use placement::units::NodeName;
use tokio::sync::Semaphore;

use crate::bands::BandChange;
use crate::clock::Clock;
use crate::exporter::endpoint::Endpoint;
use crate::exporter::error::PollError;
use crate::exporter::gpus::GpuMeasurements;
use crate::exporter::poll::Poller;
use crate::exporter::statistics::{Format, MetricValue, Statistics, Wanted};
use crate::fleet::Settings;
use crate::fleet::job::{Job, PollRequest, PollResult, Report};
use crate::fleet::lanes::Lane;
use crate::metrics::Metrics;
use crate::node_write::NodeWrite;
use crate::source::{NodeKey, Table, host};
use crate::taints::TaintChange;

/// Time for the API server to answer a patch.
const PATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a prompt exporter to answer about pods' use: its job holds a slot of the prompt lane.
const PODS_TIMEOUT: Duration = Duration::from_secs(1);

/// Executes jobs; clones share the state.
#[derive(Clone)]
pub(crate) struct JobRunner {
    pub poller: Poller,
    /// The table of the source in place of exporters; `None` if exporters are polled.
    pub table: Option<Current<Table>>,
    pub client: Client,
    /// Whether this process may write.
    pub leadership: Leadership,
    pub clock: Clock,
    /// Annotation keys, and the text form of readings.
    pub settings: Settings,
    pub metrics: Metrics,
    /// Bounds the number of patches in flight.
    pub patches: Arc<Semaphore>,
}

impl JobRunner {
    pub(crate) async fn run(self, job: Job) -> Report {
        let mut poll = None;
        if let Some(request) = &job.poll {
            poll = Some(self.poll(&job.node, request).await);
        }
        let at = self.clock.now();
        let write = job.decide(poll.as_ref(), at);
        let mut pods_endpoint = job.pods.as_ref();
        if matches!(poll, Some(Err(_))) {
            pods_endpoint = None;
        }
        // Concurrently, so that a poll of pods' use never delays the write of readings.
        let (patch, pods) =
            tokio::join!(self.write(&job, &write), self.poll_pods(pods_endpoint, job.lane));
        Report { job, at, poll, write, patch, pods }
    }

    /// Polls the exporter, or looks the node up in the table of the source in its place.
    async fn poll(&self, node: &NodeName, request: &PollRequest) -> Result<PollResult, PollError> {
        let start = Instant::now();
        let mut result = match &self.table {
            Some(table) => look_up(&table.borrow(), node, request),
            None => {
                let answer = self.poll_exporter(request).await;
                self.metrics.count_poll(start.elapsed(), answer.as_ref().map(drop));
                let (format, all) = answer?;
                select(request, format, all, self.clock.now())
            }
        };
        result.took = start.elapsed();
        Ok(result)
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
    async fn poll_pods(
        &self,
        endpoint: Option<&Endpoint>,
        lane: Lane,
    ) -> Option<Result<NodePods, PollError>> {
        let endpoint = endpoint?;
        let timeout = if lane == Lane::Slow { Duration::MAX } else { PODS_TIMEOUT };
        let answer = self.poller.poll_pods(endpoint, timeout).await;
        self.metrics.count_pod_use_poll(answer.as_ref().map(drop));
        Some(answer)
    }

    /// Patches the Node. `None` if there is nothing to write, or this replica no longer leads.
    async fn write(&self, job: &Job, write: &NodeWrite) -> Option<Result<(), CallError>> {
        let reason = write.reason()?;
        let changes = write.annotations(&self.settings.names, &self.settings.codec);
        // The semaphore is never closed, so the result is always a permit.
        let _permit = self.patches.acquire().await;
        let limit = self.leadership.remaining()?.min(PATCH_TIMEOUT);
        // Readings belong to the machine that was measured: the Node with this UID, not another one of its name.
        let uid = Some(job.uid.as_str());
        let outcome = patch_node_annotations(&self.client, &job.node, uid, changes, limit).await;
        self.metrics.count_patch(reason, outcome.as_ref().map(drop));
        Some(outcome)
    }

    /// Writes a taint of ours, or clears it; `None` if this replica no longer leads.
    pub(crate) async fn write_taint(
        self,
        change: TaintChange,
    ) -> (TaintChange, Option<Result<(), CallError>>) {
        let Some(left) = self.leadership.remaining() else { return (change, None) };
        let TaintChange { node, taints, wanted } = &change;
        let limit = left.min(PATCH_TIMEOUT);
        let outcome = patch_node_taint(&self.client, node, taints, wanted.as_ref(), limit).await;
        let effect = wanted.as_ref().map(|taint| taint.effect);
        self.metrics.count_taint_write(effect, outcome.as_ref().map(drop));
        (change, Some(outcome))
    }

    /// Writes a node's bands; `None` if this replica no longer leads.
    pub(crate) async fn write_bands(
        self,
        change: BandChange,
    ) -> (BandChange, Option<Result<(), CallError>>) {
        let Some(left) = self.leadership.remaining() else { return (change, None) };
        let BandChange { node, uid, labels } = &change;
        let limit = left.min(PATCH_TIMEOUT);
        let outcome = patch_node_labels(&self.client, node, uid, labels, limit).await;
        self.metrics.count_band_write(outcome.as_ref().map(drop));
        (change, Some(outcome))
    }
}

/// The result of a poll without values.
fn no_values(format: Format) -> PollResult {
    PollResult {
        format,
        usable: Vec::new(),
        held_back: Vec::new(),
        uptime: None,
        gpus: GpuMeasurements::default(),
        took: Duration::ZERO,
    }
}

/// The node's values in the table of a source in place of exporters.
fn look_up(table: &Table, node: &NodeName, request: &PollRequest) -> PollResult {
    let endpoint = request.endpoint.as_ref().ok();
    let host = endpoint.map(|endpoint| host(endpoint.address()));
    let row = table.find(NodeKey { node, host, capacity: request.capacity }, &request.wanted);
    PollResult { usable: row.usable, held_back: row.held_back, ..no_values(Format::Detailed) }
}

/// The values of an answer that were requested. Readings get the time `at`.
fn select(
    request: &PollRequest,
    format: Format,
    statistics: Statistics,
    at: Timestamp,
) -> PollResult {
    let mut result = PollResult { uptime: statistics.uptime(), ..no_values(format) };
    for metric in &request.wanted {
        match statistics.get(metric) {
            Some(MetricValue::Usable(value)) => {
                result.usable.push((metric.clone(), Reading::new(value, at)));
            }
            Some(MetricValue::HeldBack(reason)) => result.held_back.push((metric.clone(), reason)),
            None => {}
        }
    }
    // Measurements of GPUs alone are no reason to write a Node at every poll.
    if !result.usable.is_empty() {
        result.gpus = statistics.into_gpus();
    }
    result
}
