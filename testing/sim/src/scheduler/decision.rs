//! What the scheduler found out about a pod and decided.

/// One attempt to place one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The pod's UID.
    pub uid: String,
    /// The pod's name.
    pub pod: String,
    /// The node's name, or the message of the pod's condition.
    pub outcome: Result<String, String>,
    /// Every node.
    pub candidates: Vec<Candidate>,
}

/// One node in an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node's name.
    pub node: String,
    /// Whether it may take the pod.
    pub verdict: Verdict,
    /// Sum of kube-scheduler's own scores, 0 to 200.
    pub score: i64,
    /// Sum of the extenders' scores, each times its weight and 10.
    pub extender_score: i64,
}

/// Whether a node may take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Fits,
    /// kube-scheduler's own filters reject it.
    Unfit {
        /// kube-scheduler's reasons.
        reasons: Vec<String>,
        /// Whether no eviction of pods could change that.
        unresolvable: bool,
    },
    /// An extender rejects it.
    Rejected {
        /// The extender's reason, or empty.
        reason: String,
        /// Whether the extender says that no eviction of pods could change that.
        unresolvable: bool,
    },
}

impl Candidate {
    pub(super) fn fits(&self) -> bool {
        self.verdict == Verdict::Fits
    }

    /// Whether an eviction of pods may make room for the pod.
    pub(super) fn may_be_freed(&self) -> bool {
        match self.verdict {
            Verdict::Fits => false,
            Verdict::Unfit { unresolvable, .. } | Verdict::Rejected { unresolvable, .. } => {
                !unresolvable
            }
        }
    }
}
