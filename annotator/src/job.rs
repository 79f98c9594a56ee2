//! One thing to do with a node, and what came of it.

use cluster::CallError;
use jiff::Timestamp;
use placement::gpu::NodeShare;
use placement::units::{MetricName, NodeName};

use crate::poll::{Endpoint, NoEndpoint, PollError};

/// One thing to do: ask a node's exporter, patch the node, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Never used twice.
    pub id: u64,
    /// The node.
    pub node: NodeName,
    /// Since when it has been due; `None` where the node had never been written.
    pub due: Option<Timestamp>,
    /// What to ask the exporter.
    pub ask: Option<Ask>,
    /// The node's hot value, where it is known and wanted.
    pub hot: Option<u64>,
    /// The cards' share to write, `Some(None)` to remove it.
    pub share: Option<Option<NodeShare>>,
}

/// What to ask an exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Where it answers.
    pub endpoint: Result<Endpoint, NoEndpoint>,
    /// Which metrics to write.
    pub wanted: Vec<MetricName>,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The job.
    pub job: Job,
    /// When the exporter answered, which is the time of the readings.
    pub at: Timestamp,
    /// What the exporter gave of what was wanted, where it was asked.
    pub poll: Option<Result<Vec<MetricName>, PollError>>,
    /// What became of the patch, where there was anything to write.
    pub patch: Option<Result<(), CallError>>,
}

/// A change for better or worse about one node; told once, not each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Its exporter answers again.
    Answers,
    /// Its exporter does not answer, or for another reason than before.
    Silent(PollError),
    /// It can be patched again.
    Written,
    /// It cannot be patched.
    Unwritten(CallError),
}
