//! The history of findings: which count, which are new, and which were repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use placement::units::PodUid;
use tokio::time::Instant;

use super::{Finding, Findings, Kind};
use crate::node_events::REPEAT_AFTER;
use crate::pods::NodePod;

/// The largest number of reported findings that are remembered; the oldest are dropped.
const MAX_REPORTED: usize = 4096;

/// The findings of earlier audits.
#[derive(Debug, Default)]
pub(super) struct AuditHistory {
    /// Findings of the last audit.
    last: BTreeSet<Finding>,
    /// Findings that count: the last two audits had them.
    counting: BTreeSet<Finding>,
    reported: BTreeMap<Finding, Instant>,
}

/// The result of one audit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AuditOutcome {
    /// Findings to report, each with its sentence.
    pub(super) new: Vec<(Finding, String)>,
    /// The repaired findings.
    pub(super) repaired: Vec<Finding>,
    /// The number of findings that count by kind; kinds that could not be compared are absent.
    pub(super) counts: BTreeMap<Kind, usize>,
}

impl AuditHistory {
    /// Records the findings of an audit at `now`.
    pub(super) fn record(
        &mut self,
        findings: &Findings,
        pods: &HashMap<PodUid, NodePod>,
        now: Instant,
    ) -> AuditOutcome {
        let found: BTreeSet<Finding> = findings.found.keys().cloned().collect();
        let counting: BTreeSet<Finding> = found.intersection(&self.last).cloned().collect();
        let mut repaired = Vec::new();
        for finding in self.counting.difference(&found) {
            let Finding { kind, pod, .. } = finding;
            let pod_exists = pod.as_ref().is_some_and(|pod| pods.contains_key(&pod.uid));
            if pod_exists && kind.is_repaired() && findings.checked.contains(kind) {
                repaired.push(finding.clone());
            }
        }
        let outcome = AuditOutcome {
            repaired,
            new: self.not_reported(&counting, findings, now),
            counts: findings.checked.iter().map(|kind| (*kind, count(&counting, *kind))).collect(),
        };
        self.last = found;
        self.counting = counting;
        outcome
    }

    /// The findings that count.
    pub(super) fn counting(&self) -> &BTreeSet<Finding> {
        &self.counting
    }

    fn not_reported(
        &mut self,
        counting: &BTreeSet<Finding>,
        findings: &Findings,
        now: Instant,
    ) -> Vec<(Finding, String)> {
        self.reported.retain(|finding, at| {
            counting.contains(finding) || now.duration_since(*at) < REPEAT_AFTER
        });
        let mut new = Vec::new();
        for finding in counting.iter().filter(|finding| !self.reported.contains_key(*finding)) {
            let note = findings.found.get(finding).cloned().unwrap_or_default();
            new.push((finding.clone(), note));
        }
        self.reported.extend(counting.iter().map(|finding| (finding.clone(), now)));
        while self.reported.len() > MAX_REPORTED {
            let oldest = self.reported.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(finding, _)| finding.clone()) {
                self.reported.remove(&oldest);
            }
        }
        new
    }
}

fn count(findings: &BTreeSet<Finding>, kind: Kind) -> usize {
    findings.iter().filter(|finding| finding.kind == kind).count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::audit::AffectedPod;
    use crate::fixtures::{A, simple};

    fn of_pod(kind: Kind) -> Finding {
        let pod = Some(AffectedPod { uid: "p".into(), name: None });
        Finding { kind, pod, container: None, gpu: None }
    }

    fn unmanaged() -> Finding {
        let kind = Kind::UnmanagedProcess;
        Finding { kind, pod: None, container: None, gpu: Some(A.into()) }
    }

    fn findings(found: &[Finding]) -> Findings {
        let found = found.iter().map(|finding| (finding.clone(), "why".to_owned())).collect();
        Findings { found, checked: Kind::ALL.into() }
    }

    fn pods() -> HashMap<PodUid, NodePod> {
        let pod = cluster::PodFacts::clone(&simple("p", A, 1));
        [("p".into(), NodePod::from(pod))].into()
    }

    #[test]
    fn a_finding_counts_once_two_audits_in_a_row_have_it_and_is_told_once() {
        let mut history = AuditHistory::default();
        let now = Instant::now();
        let here = [unmanaged()];
        // The inputs of one audit are not read at one moment.
        for (found, new, counting) in
            [(&here[..], 0, 0), (&[], 0, 0), (&here, 0, 0), (&here, 1, 1), (&here, 0, 1)]
        {
            let outcome = history.record(&findings(found), &pods(), now);
            assert_eq!(outcome.new.len(), new);
            assert_eq!(outcome.counts[&Kind::UnmanagedProcess], counting);
        }
    }

    #[test]
    fn a_finding_that_comes_and_goes_is_told_again_after_half_an_hour_at_most() {
        let mut history = AuditHistory::default();
        let start = Instant::now();
        let here = [unmanaged()];
        for (minute, found, new) in [
            (0, &here[..], 0),
            (1, &here, 1),
            (2, &[], 0),
            (3, &here, 0),
            (4, &here, 0),
            (33, &[], 0),
            (34, &[], 0),
            (35, &here, 0),
            (36, &here, 1),
        ] {
            let now = start + Duration::from_secs(60 * minute);
            let outcome = history.record(&findings(found), &pods(), now);
            assert_eq!(outcome.new.len(), new, "minute {minute}");
        }
    }

    #[test]
    fn what_is_gone_with_its_pod_still_there_was_repaired() {
        let mut history = AuditHistory::default();
        let now = Instant::now();
        let here = [of_pod(Kind::ClaimElsewhere), of_pod(Kind::MemoryOverShare)];
        history.record(&findings(&here), &pods(), now);
        history.record(&findings(&here), &pods(), now);
        let mut unknown = findings(&[]);
        unknown.checked.remove(&Kind::ClaimElsewhere);
        let outcome = history.record(&unknown, &pods(), now);
        assert_eq!(outcome.repaired, [], "it could not be compared");
        assert!(!outcome.counts.contains_key(&Kind::ClaimElsewhere));
        history.record(&findings(&here), &pods(), now);
        history.record(&findings(&here), &pods(), now);
        let repaired = history.record(&findings(&[]), &pods(), now).repaired;
        assert_eq!(repaired, [of_pod(Kind::ClaimElsewhere)]);
        history.record(&findings(&here), &pods(), now);
        history.record(&findings(&here), &pods(), now);
        let gone = history.record(&findings(&[]), &HashMap::new(), now).repaired;
        assert_eq!(gone, [], "the pod is gone");
    }
}
