//! Why a pod may go to nodes over their limits: for the event and the metric.

use std::collections::HashSet;

use placement::load::Verdict;

use super::{Evaluator, Verdicts};

/// Why every node that would do is over a limit for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitCause {
    /// Each is over it by what is measured, without any estimate.
    Measured,
    /// Some are over it only with what this pod, or pods that no reading shows yet, will probably use.
    Estimates,
    /// The pod alone is over the limit on each.
    NoNodeLargeEnough,
    /// One or two nodes of more would do, or fewer than 4% of the cluster. What else the pod asks for leaves no
    /// others, and the cluster has room.
    FewCandidates,
    /// None is measured, and the policy rejects nodes for that.
    NotMeasured,
}

impl OverLimitCause {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Measured,
        Self::Estimates,
        Self::NoNodeLargeEnough,
        Self::FewCandidates,
        Self::NotMeasured,
    ];

    /// Its word in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimates => "estimates",
            Self::NoNodeLargeEnough => "no node large enough",
            Self::FewCandidates => "few candidates",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Evaluator<'_> {
    /// Why every node that would do is over a limit for the pod, by these verdicts.
    pub fn over_limit_cause(&self, verdicts: &Verdicts<'_>) -> OverLimitCause {
        let decision = self.decision;
        let (mut measured, mut all_over, mut all_too_small) = (0_usize, true, true);
        let mut over_limits = verdicts.over_limits.iter().peekable();
        for (position, verdict) in verdicts.each.iter().enumerate() {
            let passes = over_limits.next_if(|over| **over == position).is_some();
            // Nodes that are accepted otherwise have no readings, and do not keep others from being over a limit.
            let is_over = passes || matches!(verdict, Verdict::Overloaded(_));
            if !is_over || decision.no_fit(position).is_some() {
                continue;
            }
            let Some(load) = decision.load(position) else { continue };
            let evaluation = self.by_node_alone(&load);
            let Some(ratio) = evaluation.measured_limit_ratio() else { continue };
            measured += 1;
            all_over &= ratio > 1.0;
            all_too_small &= evaluation.is_exceeded_by_pod();
        }
        if measured == 0 {
            OverLimitCause::NotMeasured
        } else if all_too_small {
            OverLimitCause::NoNodeLargeEnough
        } else if self.is_about_few_nodes() && self.is_room_elsewhere() {
            OverLimitCause::FewCandidates
        } else if all_over {
            OverLimitCause::Measured
        } else {
            OverLimitCause::Estimates
        }
    }

    /// Whether one or two nodes of more would do, or fewer than 4% of the cluster: fewer than kube-scheduler's smallest
    /// sample, 5%.
    fn is_about_few_nodes(&self) -> bool {
        let (decision, all) = (self.decision, self.decision.snapshot().names().len());
        let fits = (0..decision.len()).filter(|at| decision.no_fit(*at).is_none()).count();
        fits < all && (fits < 3 || fits * 25 < all)
    }

    /// Whether another node, which takes pods without a toleration, is below its limits by what is measured.
    fn is_room_elsewhere(&self) -> bool {
        let snapshot = self.decision.snapshot();
        let asked: HashSet<usize> =
            self.decision.nodes().places().iter().flatten().map(|place| place.index()).collect();
        snapshot.names().places().iter().any(|place| {
            let Some(load) = &snapshot.at(*place).load else { return false };
            if load.repels_pods || asked.contains(&place.index()) {
                return false;
            }
            let ratio = self.without_pod(load).measured_limit_ratio();
            ratio.is_some_and(|ratio| ratio <= 1.0)
        })
    }
}
