//! One thing to do with a node, and what came of it.

use cluster::CallError;
use jiff::Timestamp;
use placement::gpu::{CardShare, NodeShare};
use placement::units::{MetricName, NodeName};

use crate::endpoint::{Endpoint, NoEndpoint};
use crate::measured::Measurements;
use crate::poll::PollError;
use crate::statistics::{Form, Lack};

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
    /// The cards' share, where it is known.
    pub share: Option<SharePlan>,
}

/// The `gpu-share` annotation: its text, or (`None`) that there is to be none any more.
pub type ShareWrite = Option<NodeShare>;

/// What a job should write of a node's cards.
#[derive(Debug, Clone, PartialEq)]
pub struct SharePlan {
    /// Each card with what pods hold of it and what was measured last, if that is still worth telling.
    pub cards: Vec<CardShare>,
    /// Whether it has to be written even if nothing new is measured.
    pub needed: bool,
}

impl SharePlan {
    /// What to write at `at`, with what was just measured; `None` where nothing.
    #[must_use]
    pub fn write(&self, measured: &Measurements, at: Timestamp) -> Option<ShareWrite> {
        if !self.needed && (self.cards.is_empty() || measured.is_empty()) {
            return None;
        }
        let cards: Vec<CardShare> =
            self.cards.iter().map(|card| measured.add_to(card.clone())).collect();
        Some((!cards.is_empty()).then_some(NodeShare { time: at, cards }))
    }
}

/// What to ask an exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Where it answers.
    pub endpoint: Result<Endpoint, NoEndpoint>,
    /// In which form to ask.
    pub form: Form,
    /// Which metrics to write.
    pub wanted: Vec<MetricName>,
}

/// What an exporter gave of what was wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// In which form it answered.
    pub form: Form,
    /// What was written, or would have been but for a failed patch.
    pub given: Vec<MetricName>,
    /// What was held back, and why.
    pub held_back: Vec<(MetricName, Lack)>,
    /// What was measured of the node's cards.
    pub cards: Measurements,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The job.
    pub job: Job,
    /// When the exporter answered, which is the time of the readings.
    pub at: Timestamp,
    /// What the exporter gave, where it was asked.
    pub poll: Option<Result<Heard, PollError>>,
    /// What the patch says of the cards, where it says anything of them.
    pub share: Option<ShareWrite>,
    /// What became of the patch, where there was anything to write.
    pub patch: Option<Result<(), CallError>>,
}

/// A change for better or worse about one node; told once, not each time.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Its exporter answers again.
    Answers,
    /// Its exporter does not answer, or for another reason than before.
    Silent(PollError),
    /// It answers in another form than before, or in the older one from the first.
    Speaks(Form),
    /// A metric is held back, or for another reason than before.
    HeldBack(MetricName, Lack),
    /// A metric that was held back is written again.
    Released(MetricName),
    /// It can be patched again.
    Written,
    /// It cannot be patched.
    Unwritten(CallError),
}
