//! Which findings count, which are new, and which were repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use placement::units::PodUid;
use tokio::time::Instant;

use super::{Finding, Findings, Kind};
use crate::pods::NodePod;

/// Time in which a finding that comes back is not told again.
const TOLD_FOR: Duration = Duration::from_secs(1800);
/// Findings that are remembered as told at most; beyond, the oldest are forgotten.
const MAX_TOLD: usize = 4096;

/// What earlier audits found.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// By the last audit.
    before: BTreeSet<Finding>,
    /// Those that count: the last two audits had them.
    standing: BTreeSet<Finding>,
    told: BTreeMap<Finding, Instant>,
}

/// What one audit changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Findings to be told, each with its sentence.
    pub(super) new: Vec<(Finding, String)>,
    /// Kinds of findings that were repaired, once for each.
    pub(super) repaired: Vec<Kind>,
    /// How many findings of each kind count; kinds that could not be compared are absent.
    pub(super) counts: BTreeMap<Kind, usize>,
}

impl Reported {
    /// Takes in what an audit found at `now`.
    pub(super) fn take_in(
        &mut self,
        findings: &Findings,
        pods: &HashMap<PodUid, NodePod>,
        now: Instant,
    ) -> Outcome {
        let found: BTreeSet<Finding> = findings.found.keys().cloned().collect();
        let standing: BTreeSet<Finding> = found.intersection(&self.before).cloned().collect();
        let exists = |finding: &&Finding| {
            finding.about.as_ref().is_some_and(|about| pods.contains_key(&about.uid))
        };
        let over = self.standing.difference(&found).filter(exists).map(|finding| finding.kind);
        let repaired = over.filter(|kind| kind.is_repaired() && findings.checked.contains(kind));
        let outcome = Outcome {
            repaired: repaired.collect(),
            new: self.untold(&standing, findings, now),
            counts: findings.checked.iter().map(|kind| (*kind, count(&standing, *kind))).collect(),
        };
        (self.before, self.standing) = (found, standing);
        outcome
    }

    /// The findings that count.
    pub(super) fn standing(&self) -> &BTreeSet<Finding> {
        &self.standing
    }

    fn untold(
        &mut self,
        standing: &BTreeSet<Finding>,
        findings: &Findings,
        now: Instant,
    ) -> Vec<(Finding, String)> {
        self.told
            .retain(|finding, at| standing.contains(finding) || now.duration_since(*at) < TOLD_FOR);
        let new = standing.iter().filter(|finding| !self.told.contains_key(*finding));
        let new: Vec<Finding> = new.cloned().collect();
        self.told.extend(standing.iter().map(|finding| (finding.clone(), now)));
        while self.told.len() > MAX_TOLD {
            let oldest =
                self.told.iter().min_by_key(|(_, at)| **at).map(|(finding, _)| finding.clone());
            oldest.map(|finding| self.told.remove(&finding));
        }
        let with_note = |finding: Finding| {
            let note = findings.found.get(&finding).cloned().unwrap_or_default();
            (finding, note)
        };
        new.into_iter().map(with_note).collect()
    }
}

fn count(findings: &BTreeSet<Finding>, kind: Kind) -> usize {
    findings.iter().filter(|finding| finding.kind == kind).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::About;
    use crate::fixtures::{A, simple};

    fn of_pod(kind: Kind) -> Finding {
        let about = Some(About { uid: "p".into(), pod: None });
        Finding { kind, about, container: None, card: None }
    }

    fn unmanaged() -> Finding {
        let kind = Kind::UnmanagedProcess;
        Finding { kind, about: None, container: None, card: Some(A.into()) }
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
        let (mut reported, now) = (Reported::default(), Instant::now());
        let mut audit = |found: &[Finding]| {
            let outcome = reported.take_in(&findings(found), &pods(), now);
            (outcome.new.len(), outcome.counts[&Kind::UnmanagedProcess])
        };
        assert_eq!(audit(&[unmanaged()]), (0, 0), "what it is made of was not read at one moment");
        assert_eq!(audit(&[]), (0, 0));
        assert_eq!(audit(&[unmanaged()]), (0, 0));
        assert_eq!(audit(&[unmanaged()]), (1, 1));
        assert_eq!(audit(&[unmanaged()]), (0, 1));
    }

    #[test]
    fn a_finding_that_comes_and_goes_is_told_again_after_half_an_hour_at_most() {
        let (mut reported, start) = (Reported::default(), Instant::now());
        let mut audit = |found: &[Finding], minute: u64| {
            let now = start + Duration::from_secs(60 * minute);
            reported.take_in(&findings(found), &pods(), now).new.len()
        };
        let here = [unmanaged()];
        assert_eq!([audit(&here, 0), audit(&here, 1)], [0, 1]);
        assert_eq!([audit(&[], 2), audit(&here, 3), audit(&here, 4)], [0, 0, 0]);
        assert_eq!(
            [audit(&[], 33), audit(&[], 34), audit(&here, 35), audit(&here, 36)],
            [0, 0, 0, 1]
        );
    }

    #[test]
    fn what_is_gone_with_its_pod_still_there_was_repaired() {
        let (mut reported, now) = (Reported::default(), Instant::now());
        let here = [of_pod(Kind::ClaimElsewhere), of_pod(Kind::MemoryOverShare)];
        reported.take_in(&findings(&here), &pods(), now);
        reported.take_in(&findings(&here), &pods(), now);
        let mut unknown = findings(&[]);
        unknown.checked.remove(&Kind::ClaimElsewhere);
        let outcome = reported.take_in(&unknown, &pods(), now);
        assert_eq!(outcome.repaired, [], "it could not be compared");
        assert!(!outcome.counts.contains_key(&Kind::ClaimElsewhere));
        reported.take_in(&findings(&here), &pods(), now);
        reported.take_in(&findings(&here), &pods(), now);
        let repaired = reported.take_in(&findings(&[]), &pods(), now).repaired;
        assert_eq!(repaired, [Kind::ClaimElsewhere]);
        reported.take_in(&findings(&here), &pods(), now);
        reported.take_in(&findings(&here), &pods(), now);
        let gone = reported.take_in(&findings(&[]), &HashMap::new(), now).repaired;
        assert_eq!(gone, [], "the pod is gone");
    }
}
