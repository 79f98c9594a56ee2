//! One job on one node (a poll, a patch, or a poll and a patch), and its result.

use std::time::Duration;

use api::pods::NodePods;
use cluster::CallError;
use jiff::{SignedDuration, Timestamp};
use placement::reading::Reading;
use placement::resources::PerResource;
use placement::units::{MetricName, NodeName};

use super::lanes::Lane;
use super::node_annotations::Changes;
use super::write_plan::{Write, WritePlan};
use crate::exporter::cards::CardMeasurements;
use crate::exporter::endpoint::{Endpoint, NoEndpoint};
use crate::exporter::error::PollError;
use crate::exporter::statistics::{Format, HoldReason};
use crate::pods::share::{ShareAnnotation, SharePlan};

/// What to do with a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Unique within the process.
    pub id: u64,
    /// The node.
    pub node: NodeName,
    /// The Node's UID.
    pub uid: String,
    /// The lane whose slot the job takes.
    pub lane: Lane,
    /// When it became due; `None` where the node was never written.
    pub due: Option<Timestamp>,
    /// What to ask the exporter; `None` where it is not polled.
    pub poll: Option<PollRequest>,
    /// What to write of the node's readings.
    pub write: WritePlan,
    /// The node's hot value; `None` where it is not known or the policy has no rule for it.
    pub hot_value: Option<u64>,
    /// The share of each card; `None` where it is not known or not to be written.
    pub share: Option<SharePlan>,
    /// Other annotations of the Node to set or remove. Empty while readings are annotations.
    pub on_node: Changes,
    /// Where to ask what the node's pods use; `None` where that is not asked.
    pub pods: Option<Endpoint>,
}

impl Job {
    /// Whether the job has to decide what to write of the readings: it polls, or a write is due.
    #[must_use]
    pub fn decides(&self) -> bool {
        self.poll.is_some() || self.write.due.is_some()
    }
}

/// What to ask an exporter.
#[derive(Debug, Clone, PartialEq)]
pub struct PollRequest {
    /// The exporter's address.
    pub endpoint: Result<Endpoint, NoEndpoint>,
    /// When the Node object was created, by the API server's clock.
    pub created_at: Option<Timestamp>,
    /// What the Node has in all: cores and bytes; `None` where it does not say.
    pub capacity: PerResource<Option<f64>>,
    /// The format to ask for.
    pub format: Format,
    /// The metrics of the policy.
    pub wanted: Vec<MetricName>,
}

/// What a successful poll gave of the wanted metrics. A wanted metric in neither list was not in the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PollResult {
    /// The format of the answer.
    pub format: Format,
    /// The metrics with a value that may be written. It is of the time of the poll, or of a sample before.
    pub usable: Vec<(MetricName, Reading)>,
    /// The metrics whose value is held back.
    pub held_back: Vec<(MetricName, HoldReason)>,
    /// The time since the node booted, where the exporter tells it.
    pub uptime: Option<SignedDuration>,
    /// What was measured of the node's cards.
    pub cards: CardMeasurements,
    /// The time from the request to the whole answer.
    pub took: Duration,
}

impl PollResult {
    /// Whether a metric's value may be written.
    pub(super) fn is_usable(&self, metric: &MetricName) -> bool {
        self.usable.iter().any(|(other, _)| other == metric)
    }

    /// The shortest time until a metric's value can be usable, where it is held back and that time is known.
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
pub struct Report {
    /// The job.
    pub job: Job,
    /// When the poll ended.
    pub at: Timestamp,
    /// The poll's result; `None` where the job had no poll.
    pub poll: Option<Result<PollResult, PollError>>,
    /// What the patch contained of the node's readings; `None` where it contained none.
    pub write: Option<Write>,
    /// The share that the patch contained; `None` where it contained none.
    pub share: Option<ShareAnnotation>,
    /// The patch's result; `None` where there was nothing to write, or another replica leads by now.
    pub patch: Option<Result<(), CallError>>,
    /// What the node's pods use; `None` where the job did not ask, or the exporter did not answer the poll before.
    pub pods: Option<Result<NodePods, PollError>>,
}

impl Report {
    /// Whether it was written, or may have been, that the node, which was over a limit, is not any more.
    pub(super) fn has_cooled(&self) -> bool {
        let cools = self.write.as_ref().is_some_and(|write| write.cools);
        let may_be_written = match &self.patch {
            Some(Ok(()) | Err(CallError::Unknown(_))) => true,
            // The NodeLoad is written first: the refusal may be of what goes on the Node.
            Some(Err(_)) => !self.job.on_node.is_empty() || self.share.is_some(),
            None => false,
        };
        cools && may_be_written
    }
}

/// A change of a node's state that a job revealed. It is returned once, not with each job.
#[derive(Debug, Clone, PartialEq)]
pub enum Transition {
    /// A silent exporter answers again.
    ExporterAnswers,
    /// The exporter is silent, or silent for another reason than before.
    ExporterSilent(PollError),
    /// The exporter answers in another format than before, or in the flat one from the first.
    FormatChanged(Format),
    /// A metric is held back, or held back for another reason than before.
    HeldBack(MetricName, HoldReason),
    /// A metric that was held back is usable.
    Released(MetricName),
    /// Patches of the node succeed again.
    PatchSucceeds,
    /// Patches of the node fail.
    PatchFails(CallError),
}
