//! The audit: claims, the kubelet's records and the processes on the cards, compared again and again.
//!
//! [`compare`] finds what does not agree, [`watch`] repairs what it safely can and reports the rest.
//!
//! Invariant: what is not known is no finding. A finding counts once two audits in a row have it, since what it is made from was not read at
//! one moment.

pub mod compare;
mod report;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use placement::units::{CardId, PodUid};

use crate::pods::PodRef;

/// What does not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A pod runs with a claim, and the kubelet has no record that it holds units.
    ClaimWithoutRecord,
    /// The kubelet records that a pod holds units, and the pod has no claim.
    RecordWithoutClaim,
    /// A pod is on another card by the kubelet's record than by its claim.
    ClaimElsewhere,
    /// The kubelet records units that this program does not know of.
    RecordUnknown,
    /// A process is on a card that its container was not given.
    ProcessElsewhere,
    /// A container's processes have more memory of a card than it was given.
    MemoryOverShare,
    /// Processes of no pod are on a card.
    UnmanagedProcess,
    /// Processes of a pod that no longer exists are on a card.
    ProcessOfGonePod,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ClaimWithoutRecord,
        Self::RecordWithoutClaim,
        Self::ClaimElsewhere,
        Self::RecordUnknown,
        Self::ProcessElsewhere,
        Self::MemoryOverShare,
        Self::UnmanagedProcess,
        Self::ProcessOfGonePod,
    ];

    /// Its name in labels of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::ClaimWithoutRecord => "claim_without_record",
            Self::RecordWithoutClaim => "record_without_claim",
            Self::ClaimElsewhere => "claim_elsewhere",
            Self::RecordUnknown => "record_unknown",
            Self::ProcessElsewhere => "process_elsewhere",
            Self::MemoryOverShare => "memory_over_share",
            Self::UnmanagedProcess => "unmanaged_process",
            Self::ProcessOfGonePod => "process_of_gone_pod",
        }
    }

    /// The reason of its events.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ClaimWithoutRecord => "GPUClaimWithoutRecord",
            Self::RecordWithoutClaim => "GPURecordWithoutClaim",
            Self::ClaimElsewhere => "GPUClaimElsewhere",
            Self::RecordUnknown => "GPURecordUnknown",
            Self::ProcessElsewhere => "GPUProcessElsewhere",
            Self::MemoryOverShare => "GPUMemoryOverShare",
            Self::UnmanagedProcess => "GPUUnmanagedProcess",
            Self::ProcessOfGonePod => "GPUProcessOfGonePod",
        }
    }

    /// Whether the audit has it repaired, from the kubelet's record.
    pub fn is_repaired(self) -> bool {
        matches!(self, Self::RecordWithoutClaim | Self::ClaimElsewhere | Self::RecordUnknown)
    }
}

/// A pod that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// Its UID.
    pub uid: PodUid,
    /// Namespace and name; `None` where the pod no longer exists.
    pub pod: Option<PodRef>,
}

/// One finding. Two audits have the same one where all of this is the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What does not agree.
    pub kind: Kind,
    /// The pod; `None` for processes of none.
    pub about: Option<About>,
    /// The container, where one is at fault.
    pub container: Option<String>,
    /// The card, where one is.
    pub card: Option<CardId>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.label())?;
        match &self.about {
            Some(About { pod: Some(pod), .. }) => write!(f, ", pod {pod}")?,
            Some(About { uid, .. }) => write!(f, ", pod of UID {uid}")?,
            None => {}
        }
        if let Some(container) = &self.container {
            write!(f, ", container {container}")?;
        }
        if let Some(card) = &self.card {
            write!(f, ", card {card}")?;
        }
        Ok(())
    }
}

/// What one comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Each with a sentence for people.
    pub found: BTreeMap<Finding, String>,
    /// What could be compared at all.
    pub checked: BTreeSet<Kind>,
}
