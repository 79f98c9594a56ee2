//! What the audit finds: the kinds of contradictions, with their names in metrics and events, and findings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cluster::PodFacts;
use placement::units::{GpuId, PodUid};

use crate::pods::PodRef;

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A pod runs with a claim, and the kubelet has no record that it holds units.
    ClaimWithoutRecord,
    /// The kubelet records that a pod holds units, and the pod has no claim.
    RecordWithoutClaim,
    /// A pod is on another GPU by the kubelet's record than by its claim.
    ClaimElsewhere,
    /// The kubelet records units that are not in this program's records.
    RecordUnknown,
    /// Pods hold a GPU through this resource and through another one.
    GpuHeldTwice,
    /// Another resource offers a GPU as well.
    GpuOfferedTwice,
    /// A process is on a GPU that its container does not hold.
    ProcessElsewhere,
    /// A container's processes use more memory of a GPU than its share.
    MemoryOverShare,
    /// A process of a container that MPS limits is no client of MPS, so that nothing limits it.
    ProcessOutsideMps,
    /// By NVML, the driver does not hold a container to the limit that it was given.
    LimitNotHeld,
    /// Processes of no pod are on a GPU.
    UnmanagedProcess,
    /// Processes of a pod that no longer exists are on a GPU.
    ProcessOfGonePod,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 12] = [
        Self::ClaimWithoutRecord,
        Self::RecordWithoutClaim,
        Self::ClaimElsewhere,
        Self::RecordUnknown,
        Self::GpuHeldTwice,
        Self::GpuOfferedTwice,
        Self::ProcessElsewhere,
        Self::MemoryOverShare,
        Self::ProcessOutsideMps,
        Self::LimitNotHeld,
        Self::UnmanagedProcess,
        Self::ProcessOfGonePod,
    ];

    /// Its name in labels of metrics.
    pub(crate) fn label(self) -> &'static str {
        self.names().0
    }

    /// The reason of its events.
    pub(crate) fn reason(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ClaimWithoutRecord => ("claim_without_record", "GPUClaimWithoutRecord"),
            Self::RecordWithoutClaim => ("record_without_claim", "GPURecordWithoutClaim"),
            Self::ClaimElsewhere => ("claim_elsewhere", "GPUClaimElsewhere"),
            Self::RecordUnknown => ("record_unknown", "GPURecordUnknown"),
            Self::GpuHeldTwice => ("card_held_twice", "GPUCardHeldTwice"),
            Self::GpuOfferedTwice => ("card_offered_twice", "GPUCardOfferedTwice"),
            Self::ProcessElsewhere => ("process_elsewhere", "GPUProcessElsewhere"),
            Self::MemoryOverShare => ("memory_over_share", "GPUMemoryOverShare"),
            Self::ProcessOutsideMps => ("process_outside_mps", "GPUProcessOutsideMPS"),
            Self::LimitNotHeld => ("limit_not_held", "GPULimitNotHeld"),
            Self::UnmanagedProcess => ("unmanaged_process", "GPUUnmanagedProcess"),
            Self::ProcessOfGonePod => ("process_of_gone_pod", "GPUProcessOfGonePod"),
        }
    }

    /// Whether the audit repairs it, from the kubelet's record.
    pub(crate) fn is_repaired(self) -> bool {
        matches!(self, Self::RecordWithoutClaim | Self::ClaimElsewhere | Self::RecordUnknown)
    }
}

/// The pod of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AffectedPod {
    /// Its UID.
    pub uid: PodUid,
    /// Namespace and name; `None` if the pod no longer exists.
    pub name: Option<PodRef>,
}

/// One contradiction. Findings of two audits are the same if all fields are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The kind.
    pub kind: Kind,
    /// The pod; `None` for processes outside of pods.
    pub pod: Option<AffectedPod>,
    /// The container; `None` if the finding is not about one.
    pub container: Option<String>,
    /// The GPU; `None` if the finding is not about one.
    pub gpu: Option<GpuId>,
}

impl Finding {
    pub(super) fn of_gpu(kind: Kind, gpu: &GpuId) -> Self {
        Self { kind, pod: None, container: None, gpu: Some(gpu.clone()) }
    }

    pub(super) fn of_pod(kind: Kind, facts: &PodFacts) -> Self {
        let pod = AffectedPod { uid: facts.uid.clone(), name: Some(PodRef::of(facts)) };
        Self { kind, pod: Some(pod), container: None, gpu: None }
    }

    pub(super) fn of_container(kind: Kind, facts: &PodFacts, container: &str, gpu: &GpuId) -> Self {
        Self {
            container: Some(container.to_owned()),
            gpu: Some(gpu.clone()),
            ..Self::of_pod(kind, facts)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.label())?;
        match &self.pod {
            Some(AffectedPod { name: Some(pod), .. }) => write!(f, ", pod {pod}")?,
            Some(AffectedPod { uid, .. }) => write!(f, ", pod of UID {uid}")?,
            None => {}
        }
        if let Some(container) = &self.container {
            write!(f, ", container {container}")?;
        }
        if let Some(gpu) = &self.gpu {
            write!(f, ", GPU {gpu}")?;
        }
        Ok(())
    }
}

/// The findings of one comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Each finding with a sentence for the log and events.
    pub found: BTreeMap<Finding, String>,
    /// The kinds whose inputs were all readable.
    pub checked: BTreeSet<Kind>,
}

impl Findings {
    /// Notes that the inputs of these kinds were readable.
    pub(super) fn checks<const N: usize>(&mut self, kinds: [Kind; N]) {
        self.checked.extend(kinds);
    }

    pub(super) fn add(&mut self, finding: Finding, note: String) {
        self.found.insert(finding, note);
    }
}
