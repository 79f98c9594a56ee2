//! Changes of a node that the log reports once.

use cluster::CallError;
use placement::units::MetricName;

use crate::exporter::error::PollError;
use crate::exporter::statistics::{Format, HoldReason};

/// A change of a node's state. It is returned once, not with each job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
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
