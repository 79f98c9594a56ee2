//! PreStartContainer: whether the kubelet's records and the pod's claim agree on the GPU of a container
//! that is about to start.
//!
//! The kubelet calls it before each start of a container, restarts included, and after it recorded the
//! container's ids. It repeats a refused call; meanwhile the container shows
//! `CreateContainerConfigError`.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::PodFacts;
use placement::units::{GpuId, PodUid};
use tokio::time::timeout;

use super::allocate::gpus_of;
use super::choose::claimed_gpus;
use super::refusal::Refusal;
use super::sources::{READ_BUDGET, Sources};
use crate::gpus::ids::{Ids, first_few};
use crate::gpus::{Gpus, joined};
use crate::records::HoldingContainer;
use crate::records::pod_resources::Record;

/// The result of a comparison without a contradiction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Records and claim agree.
    Verified,
    /// The record or the claim is missing: the kubelet lists no init containers, and a claim may be
    /// unreadable now. The checks of Allocate still hold.
    Unverifiable,
}

/// Records and claim contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The kubelet's record shows other ids.
    #[error(
        "device ids {ids} were granted to pod {pod}, container {container}, but the kubelet's record does not show \
         that; delete the pod"
    )]
    Record {
        /// The ids of this start.
        ids: String,
        /// The pod that they were granted to.
        pod: String,
        /// The container's name.
        container: String,
    },
    /// The claim names other GPUs.
    #[error(
        "pod {pod}, container {container} is on GPU {gpu} but claims GPU {claimed}; delete the pod"
    )]
    Claim {
        /// Namespace and name of the pod.
        pod: String,
        /// The container's name.
        container: String,
        /// The GPUs of its ids.
        gpu: String,
        /// The GPUs of its claim.
        claimed: String,
    },
    /// The kubelet gave the ids to another pod than the one that they were chosen for.
    #[error(
        "device ids {ids} were chosen for pod {pod}, but the kubelet's checkpoint shows them in the pod with UID \
         {holder}; delete that \
         pod"
    )]
    OtherPod {
        /// The ids of this start.
        ids: String,
        /// The pod that they were granted to.
        pod: String,
        /// The UID of the pod that holds them.
        holder: PodUid,
    },
    /// The kubelet's checkpoint shows no container with these ids.
    #[error("the kubelet's checkpoint shows device ids {0} in no container; delete the pod")]
    NoOwner(String),
}

/// Why a container may not start now.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An id is on no GPU.
    #[error(transparent)]
    Ids(#[from] Refusal),
    /// Records and claim contradict each other.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The kubelet's record cannot be read.
    #[error("cannot read the kubelet's record: {0}")]
    Record(tonic::Status),
}

impl StartError {
    /// The value of the label `reason` in metrics of refusals; `None` for a mismatch, which has a metric of its own.
    #[must_use]
    pub fn label(&self) -> Option<&'static str> {
        match self {
            Self::Ids(refusal) => Some(refusal.label()),
            Self::Mismatch(_) => None,
            Self::Record(_) => Some("record"),
        }
    }
}

// Not `#[from]`: it would also return the cause as the source, and the text already contains it.
impl From<tonic::Status> for StartError {
    fn from(status: tonic::Status) -> Self {
        Self::Record(status)
    }
}

/// Compares the container that holds `ids` on `gpus` with the kubelet's record of its pod and with the
/// pod's claim.
///
/// # Errors
/// If one of them contradicts.
pub fn check(
    owner: &HoldingContainer,
    ids: &Ids,
    gpus: &BTreeSet<GpuId>,
    record: &Record,
    facts: Option<&PodFacts>,
) -> Result<Check, Mismatch> {
    let shown = if owner.init { None } else { shows(record, &owner.container, ids) };
    if shown == Some(false) {
        return Err(Mismatch::Record {
            ids: first_few(ids),
            pod: owner.pod.to_string(),
            container: owner.container.clone(),
        });
    }
    let claimed = facts.and_then(|facts| claimed_gpus(facts, &owner.container).ok());
    match claimed {
        Some(claimed) if !claimed.keys().eq(gpus) => Err(Mismatch::Claim {
            pod: owner.pod.to_string(),
            container: owner.container.clone(),
            gpu: joined(gpus),
            claimed: joined(claimed.keys()),
        }),
        Some(_) if shown == Some(true) => Ok(Check::Verified),
        _ => Ok(Check::Unverifiable),
    }
}

/// Whether the record shows exactly these ids for the container; `None` without a record.
fn shows(record: &Record, container: &str, ids: &Ids) -> Option<bool> {
    match record {
        Record::Pod(pod) => Some(pod.containers.get(container) == Some(ids)),
        Record::Absent => Some(false),
        Record::Unsupported => None,
    }
}

/// Finds the container that holds `ids`, and compares its record and claim.
///
/// # Errors
/// If an id is on no GPU, records and claim contradict each other, or the kubelet's record
/// cannot be read.
pub async fn find_and_check(sources: &Sources, ids: &Ids) -> Result<Check, StartError> {
    let gpus = sources.gpus();
    let on = named_by(ids, &gpus)?;
    let Some(owner) = owner(sources, ids)? else { return Ok(Check::Unverifiable) };
    let record =
        if owner.init { Record::Unsupported } else { sources.kubelet.get(&owner.pod).await? };
    let facts = facts_of(sources, &owner).await;
    Ok(check(&owner, ids, &on, &record, facts.as_deref())?)
}

/// The GPUs that a container's ids name. Ids that their GPU no longer offers count as well.
fn named_by(ids: &Ids, gpus: &Gpus) -> Result<BTreeSet<GpuId>, Refusal> {
    let named = gpus_of(ids, |id| gpus.named_by(id))?;
    Ok(named.into_iter().map(|gpu| gpu.uuid.clone()).collect())
}

/// The container that holds these ids; `None` if the kubelet's checkpoint cannot be read, or names a
/// pod that is not in the cache.
fn owner(sources: &Sources, ids: &Ids) -> Result<Option<HoldingContainer>, Mismatch> {
    let owner = sources.records().holding_container(ids);
    let Ok(checkpoint) = sources.checkpoint.read() else { return Ok(owner) };
    let holders: Vec<PodUid> = checkpoint
        .held
        .iter()
        .filter(|held| held.ids == *ids)
        .map(|held| held.pod.clone())
        .collect();
    match (owner, holders.first()) {
        (Some(owner), Some(holder)) => match &owner.uid {
            Some(uid) if !holders.contains(uid) => Err(Mismatch::OtherPod {
                ids: first_few(ids),
                pod: owner.pod.to_string(),
                holder: holder.clone(),
            }),
            _ => Ok(Some(owner)),
        },
        (Some(owner), None) => Ok(Some(owner)),
        // Granted by an earlier process, while the API server could not be reached.
        (None, Some(_)) => {
            let mut records = sources.records();
            records.restore(checkpoint.held, &sources.pods);
            Ok(records.holding_container(ids))
        }
        (None, None) => Err(Mismatch::NoOwner(first_few(ids))),
    }
}

/// The container's pod, by the watch or else by the API server; `None` if neither shows it.
async fn facts_of(sources: &Sources, owner: &HoldingContainer) -> Option<Arc<PodFacts>> {
    if let Some(facts) = sources.pods.find(&owner.pod, owner.uid.as_ref()) {
        return Some(facts);
    }
    let read = timeout(READ_BUDGET, sources.api.read(&owner.pod)).await;
    let facts = read.ok()?.ok()??;
    if owner.uid.as_ref().is_none_or(|uid| *uid == facts.uid) {
        Some(Arc::new(facts))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus, ids, listed, simple};
    use crate::pods::PodRef;

    fn owner(init: bool) -> HoldingContainer {
        HoldingContainer {
            pod: PodRef::new("default", "p"),
            uid: None,
            container: "main".to_owned(),
            init,
        }
    }

    fn on(gpu: &str) -> BTreeSet<GpuId> {
        [gpu.into()].into()
    }

    fn record<const N: usize>(held: [&str; N]) -> Record {
        Record::Pod(listed("p", held))
    }

    #[test]
    fn a_contradiction_alone_is_a_mismatch() {
        let unreadable = StartError::from(tonic::Status::unavailable("the kubelet restarts"));
        let unknown = StartError::from(Refusal::NotOnClaimedGpu("aaaaaaaa-0".to_owned()));
        let mismatch = StartError::from(Mismatch::NoOwner("aaaaaaaa-0".to_owned()));
        let labels = [unreadable, unknown, mismatch].map(|error| error.label());
        assert_eq!(labels, [Some("record"), Some("not_on_claimed_card"), None]);
    }

    #[test]
    fn a_start_is_verified_where_record_and_claim_agree() {
        let held = ids(["aaaaaaaa-0"]);
        let facts = simple("p", A, 1);
        let gpu = on(A);
        let shown = record(["aaaaaaaa-0"]);
        assert_eq!(check(&owner(false), &held, &gpu, &shown, Some(&facts)), Ok(Check::Verified));
        assert_eq!(check(&owner(false), &held, &gpu, &shown, None), Ok(Check::Unverifiable));
        let unsupported = check(&owner(false), &held, &gpu, &Record::Unsupported, Some(&facts));
        assert_eq!(unsupported, Ok(Check::Unverifiable));
    }

    #[test]
    fn a_record_with_other_ids_holds_the_container_back() {
        let held = ids(["aaaaaaaa-0"]);
        let facts = simple("p", A, 1);
        for record in [record(["aaaaaaaa-1"]), record([]), Record::Absent] {
            let checked = check(&owner(false), &held, &on(A), &record, Some(&facts));
            assert!(matches!(checked, Err(Mismatch::Record { .. })), "{checked:?}");
        }
    }

    #[test]
    fn a_claim_on_another_gpu_holds_any_container_back() {
        let held = ids(["aaaaaaaa-0"]);
        let facts = simple("p", B, 1);
        for init in [false, true] {
            let record = record(["aaaaaaaa-0"]);
            let checked = check(&owner(init), &held, &on(A), &record, Some(&facts));
            assert!(matches!(checked, Err(Mismatch::Claim { .. })), "{checked:?}");
        }
    }

    #[test]
    fn a_container_restarts_on_a_gpu_that_has_fewer_units_by_now() {
        let fewer = gpus(&[(A, 2), (B, 2)]);
        let held = ids(["aaaaaaaa-1", "aaaaaaaa-3"]);
        assert_eq!(named_by(&held, &fewer).unwrap(), on(A));
        let elsewhere = named_by(&ids(["aaaaaaaa-0", "cccccccc-0"]), &fewer);
        assert!(matches!(elsewhere, Err(Refusal::NotOnClaimedGpu(_))), "{elsewhere:?}");
        assert!(named_by(&Ids::new(), &fewer).is_err(), "a container without ids");
    }

    #[test]
    fn an_init_container_is_unverifiable_and_starts() {
        let held = ids(["aaaaaaaa-0"]);
        let facts = simple("p", A, 1);
        let checked = check(&owner(true), &held, &on(A), &Record::Unsupported, Some(&facts));
        assert_eq!(checked, Ok(Check::Unverifiable));
    }
}
