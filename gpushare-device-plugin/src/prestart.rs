//! The proof before a container starts: the kubelet's own record and the pod's claim agree on the
//! card.
//!
//! PreStartContainer comes after the kubelet has written down who holds which ids, and again before
//! every restart. A refusal here is retried by the kubelet and shows as
//! `CreateContainerConfigError`.

use cluster::PodFacts;
use placement::gpu::ContainerKind;
use placement::units::CardId;

use crate::kubelet::Record;
use crate::prefer::claimed_card;
use crate::records::{Ids, Owner, asks};
use crate::refusal::list;

/// What a look at the kubelet's record showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Record and claim agree.
    Verified,
    /// There is nothing to compare with: an init container, which the kubelet never lists, or a
    /// claim that cannot be read now. What Allocate proved still stands.
    Unverifiable,
}

/// Record and claim disagree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The kubelet's record says otherwise.
    #[error(
        "device ids {ids} were handed to pod {pod}, container {container}, but the kubelet's record does not show that; delete the pod"
    )]
    Record {
        /// The ids.
        ids: String,
        /// Whom they were handed to.
        pod: String,
        /// The container.
        container: String,
    },
    /// The claim says otherwise.
    #[error(
        "pod {pod}, container {container} is on card {card} but claims card {claimed}; delete the pod"
    )]
    Claim {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// The card of its ids.
        card: CardId,
        /// The card of its claim.
        claimed: CardId,
    },
    /// No pod is known to hold these ids.
    #[error("device ids {0} belong to no pod that claims their card; delete the pod")]
    NoOwner(String),
}

/// Compares the ids' owner with the kubelet's record of its pod and with the pod's claim.
///
/// # Errors
/// Where one of them says otherwise.
pub fn prove(
    owner: &Owner,
    ids: &Ids,
    card: &CardId,
    record: &Record,
    facts: Option<&PodFacts>,
) -> Result<Proof, Mismatch> {
    let shown = if owner.init { None } else { shows(record, &owner.container, ids) };
    if shown == Some(false) {
        return Err(Mismatch::Record {
            ids: list(ids),
            pod: owner.pod.to_string(),
            container: owner.container.clone(),
        });
    }
    let claimed = facts.and_then(|facts| claimed_card(facts, &owner.container).ok());
    match claimed {
        Some(claimed) if claimed != *card => {
            let (pod, container) = (owner.pod.to_string(), owner.container.clone());
            Err(Mismatch::Claim { pod, container, card: card.clone(), claimed })
        }
        Some(_) if shown == Some(true) => Ok(Proof::Verified),
        _ => Ok(Proof::Unverifiable),
    }
}

/// Whether the record shows the container with these ids; `None` where there is no record.
fn shows(record: &Record, container: &str, ids: &Ids) -> Option<bool> {
    match record {
        Record::Pod(pod) => Some(pod.containers.get(container) == Some(ids)),
        Record::Absent => Some(false),
        Record::Untold => None,
    }
}

/// Containers of a pod that could hold `ids` on `card`: those of that size that are claimed there.
pub fn could_hold(facts: &PodFacts, ids: &Ids, card: &CardId) -> Vec<(String, bool)> {
    let fits = asks(facts).filter(|ask| ask.units.0 as usize == ids.len());
    let here =
        fits.filter(|ask| claimed_card(facts, &ask.name).is_ok_and(|claimed| claimed == *card));
    here.map(|ask| (ask.name.clone(), ask.kind == ContainerKind::Init)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts_for_tests::{A, B, ids, listed, simple};
    use crate::pods::PodRef;

    fn owner(init: bool) -> Owner {
        Owner { pod: PodRef::new("default", "p"), uid: None, container: "main".to_owned(), init }
    }

    fn record<const N: usize>(held: [&str; N]) -> Record {
        Record::Pod(listed("p", held))
    }

    #[test]
    fn record_and_claim_that_agree_are_proof() {
        let (held, facts, card) = (ids(["aaaaaaaa-0"]), simple("p", A, 1), A.into());
        let shown = record(["aaaaaaaa-0"]);
        assert_eq!(prove(&owner(false), &held, &card, &shown, Some(&facts)), Ok(Proof::Verified));
        assert_eq!(prove(&owner(false), &held, &card, &shown, None), Ok(Proof::Unverifiable));
        let untold = prove(&owner(false), &held, &card, &Record::Untold, Some(&facts));
        assert_eq!(untold, Ok(Proof::Unverifiable));
    }

    #[test]
    fn a_record_that_says_otherwise_holds_the_container_back() {
        let (held, facts) = (ids(["aaaaaaaa-0"]), simple("p", A, 1));
        for record in [record(["aaaaaaaa-1"]), record([]), Record::Absent] {
            let proof = prove(&owner(false), &held, &A.into(), &record, Some(&facts));
            assert!(matches!(proof, Err(Mismatch::Record { .. })), "{proof:?}");
        }
    }

    #[test]
    fn a_claim_on_another_card_holds_the_container_back_init_or_not() {
        let (held, facts) = (ids(["aaaaaaaa-0"]), simple("p", B, 1));
        for init in [false, true] {
            let proof =
                prove(&owner(init), &held, &A.into(), &record(["aaaaaaaa-0"]), Some(&facts));
            assert!(matches!(proof, Err(Mismatch::Claim { .. })), "{proof:?}");
        }
    }

    #[test]
    fn an_init_container_cannot_be_looked_up_and_starts() {
        let facts = simple("p", A, 1);
        let proof =
            prove(&owner(true), &ids(["aaaaaaaa-0"]), &A.into(), &Record::Untold, Some(&facts));
        assert_eq!(proof, Ok(Proof::Unverifiable));
    }
}
