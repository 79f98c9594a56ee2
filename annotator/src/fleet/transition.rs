//! Changes of a node that the log reports once.

use cluster::CallError;
use jiff::SignedDuration;
use placement::units::MetricName;

use crate::exporter::error::PollError;
use crate::exporter::statistics::{Format, HoldReason};

/// A change of a node's state. It is returned once, not with each job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// A silent exporter answers again, after a silence of so long where
    /// [`ExporterSilentForLong`](Transition::ExporterSilentForLong) was told of it.
    ExporterAnswers { after: Option<SignedDuration> },
    /// The exporter is silent, or silent for another reason than before.
    ExporterSilent(PollError),
    /// The exporter has been silent for minutes. `moved_from` is its address before that of the node changed.
    ExporterSilentForLong { lasts: SignedDuration, error: PollError, moved_from: Option<String> },
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
