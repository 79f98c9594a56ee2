//! One job on one node (a poll, a patch, or a poll and a patch), and its result.

use std::time::Duration;

use api::pods::NodePods;
use cluster::CallError;
use jiff::{SignedDuration, Timestamp};
use placement::reading::Reading;
use placement::resources::PerResource;
use placement::units::{MetricName, NodeName};

use super::lanes::Lane;
use super::writes::plan::WritePlan;
use crate::exporter::endpoint::{Endpoint, NoEndpoint};
use crate::exporter::error::PollError;
use crate::exporter::gpus::GpuMeasurements;
use crate::exporter::statistics::{Format, HoldReason};
use crate::node_write::NodeWrite;

/// One job on one node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    /// Unique within the process.
    pub id: u64,
    pub node: NodeName,
    /// The Node's UID.
    pub uid: String,
    /// The lane whose slot the job takes.
    pub lane: Lane,
    /// When it became due; `None` if the node was never written.
    pub due: Option<Timestamp>,
    /// The poll; `None` if the exporter is not polled.
    pub poll: Option<PollRequest>,
    /// The inputs of the decision what to write.
    pub write: WritePlan,
    /// The exporter to poll for pods' use; `None` if it is not polled for it.
    pub pods: Option<Endpoint>,
}

impl Job {
    /// What the job writes at `at`, after a poll with this result.
    pub(crate) fn decide(
        &self,
        poll: Option<&Result<PollResult, PollError>>,
        at: Timestamp,
    ) -> NodeWrite {
        match poll {
            Some(Ok(result)) => self.write.decide(&result.usable, &result.gpus, at),
            Some(Err(_)) | None => self.write.decide(&[], &GpuMeasurements::default(), at),
        }
    }
}

/// A poll of an exporter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PollRequest {
    pub endpoint: Result<Endpoint, NoEndpoint>,
    /// When the Node object was created, by the API server's clock.
    pub created_at: Option<Timestamp>,
    /// The Node's capacity in cores and bytes; `None` if the Node does not report it.
    pub capacity: PerResource<Option<f64>>,
    pub format: Format,
    /// The metrics of the policy.
    pub wanted: Vec<MetricName>,
}

/// The result of a successful poll. A wanted metric in neither list was not in the answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PollResult {
    /// The format of the answer.
    pub format: Format,
    /// The metrics with a value that may be written. Its time is that of the poll, or of an earlier sample.
    pub usable: Vec<(MetricName, Reading)>,
    /// The metrics whose value is held back.
    pub held_back: Vec<(MetricName, HoldReason)>,
    /// The time since the node booted; `None` if the exporter does not report it.
    pub uptime: Option<SignedDuration>,
    /// The measurements of the node's GPUs.
    pub gpus: GpuMeasurements,
    /// The time from the request to the whole answer.
    pub took: Duration,
}

impl PollResult {
    /// Whether a metric's value may be written.
    pub(super) fn is_usable(&self, metric: &MetricName) -> bool {
        self.usable.iter().any(|(other, _)| other == metric)
    }

    /// The shortest time until a metric that is held back can be usable, if known.
    pub(super) fn ready_in(&self, metric: &MetricName) -> Option<SignedDuration> {
        let (_, reason) = self.held_back.iter().find(|(other, _)| other == metric)?;
        match reason {
            HoldReason::Coverage { ready_in, .. } => *ready_in,
            HoldReason::Age(_) => None,
        }
    }
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    pub job: Job,
    /// When the poll ended.
    pub at: Timestamp,
    /// The poll's result; `None` if the job had no poll.
    pub poll: Option<Result<PollResult, PollError>>,
    /// What the job decided to write.
    pub write: NodeWrite,
    /// The patch's result; `None` if there was nothing to write, or this replica no longer leads.
    pub patch: Option<Result<(), CallError>>,
    /// The use of the node's pods; `None` if the job did not poll it, or the exporter did not answer the poll before.
    pub pods: Option<Result<NodePods, PollError>>,
}
