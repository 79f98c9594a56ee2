//! Which ids a container gets: free ids on the GPUs of its claim, one for each unit of its share.
//!
//! Invariant: never an id of another GPU, and never one that a container holds by the records, even if
//! the kubelet offers it: the kubelet can forget ids that it is allocating
//! (kubernetes/kubernetes#137534). A GPU of an exclusive pod has ids of no other pod.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerRequest, GpuShare, GpuShares};
use placement::units::GpuId;

use super::identify::IdRequest;
use super::refusal::Refusal;
use crate::gpus::closed::ClosedGpus;
use crate::gpus::ids::{DeviceId, Ids, first_few};
use crate::gpus::{Gpu, Gpus, units_of};
use crate::pods::PodRef;
use crate::records::IdsInUse;

/// Ids chosen for a container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChosenIds {
    /// The pod being admitted.
    pub facts: Arc<PodFacts>,
    /// The name of the container being admitted.
    pub container: String,
    /// As many ids as the kubelet requested, all on the GPUs of the pod's claim.
    pub ids: Ids,
}

/// The GPUs of a container by the pod's claim, with the container's share of each.
///
/// # Errors
/// If the pod has no claim, a claim that does not match its spec, or a claim without the container.
pub(crate) fn claimed_gpus<'f>(
    facts: &'f PodFacts,
    container: &str,
) -> Result<&'f GpuShares, Refusal> {
    let pod = PodRef::of(facts);
    let claim = match facts.gpu_pod().map(|gpu| &gpu.claim) {
        Some(Ok(Some(claim))) => claim,
        Some(Err(cause)) => return Err(Refusal::BadClaim { pod, cause: cause.clone() }),
        Some(Ok(None)) | None => return Err(Refusal::Unclaimed(pod)),
    };
    claim.of(container).ok_or_else(|| Refusal::NotClaimed { pod, container: container.to_owned() })
}

/// The GPUs and ids that are chosen from.
pub(crate) struct IdSupply<'s> {
    /// The node's GPUs.
    pub gpus: &'s Gpus,
    /// The ids that the kubelet offers.
    pub available: &'s Ids,
    /// The ids in use, by the records.
    pub in_use: &'s IdsInUse,
    /// Those that take no new pods.
    pub closed: &'s ClosedGpus,
}

/// Ids for `ask` on its claimed GPUs: those that must be included, then the lowest free slots.
///
/// # Errors
/// If there is no valid claim, or a GPU is absent, unhealthy, full, or would be shared with an exclusive pod.
pub(crate) fn choose(
    facts: &Arc<PodFacts>,
    ask: &ContainerRequest,
    id_request: &IdRequest,
    supply: &IdSupply<'_>,
) -> Result<ChosenIds, Refusal> {
    let shares = claimed_gpus(facts, &ask.name)?;
    let must = &id_request.must_include;
    let is_claimed = |gpu: &Gpu| shares.contains_key(&gpu.uuid);
    if !must.iter().all(|id| supply.gpus.offering(id).is_some_and(is_claimed)) {
        return Err(Refusal::NotOnClaimedGpu(first_few(must)));
    }
    let mut ids = Ids::new();
    for (gpu, share) in shares {
        supply.check_alone(facts, gpu, share)?;
        let must_include = supply.ids_on(gpu, must);
        let on_gpu = IdRequest { size: share.units.0 as usize, must_include };
        ids.extend(supply.choose_on(gpu, facts, &on_gpu)?);
    }
    Ok(ChosenIds { facts: facts.clone(), container: ask.name.clone(), ids })
}

impl IdSupply<'_> {
    /// Checks that no exclusive pod, this one or another, would share the GPU, nor a pod that holds it through another
    /// plugin's resource or gets it by a resource claim.
    fn check_alone(&self, facts: &PodFacts, gpu: &GpuId, share: &GpuShare) -> Result<(), Refusal> {
        let pod = PodRef::of(facts);
        let in_use = self.in_use;
        if let Some(held) = in_use.elsewhere.iter().find(|held| held.gpu == *gpu) {
            return Err(Refusal::HeldElsewhere {
                pod,
                gpu: gpu.clone(),
                resource: held.resource.clone(),
                holder: held.pod.clone(),
            });
        }
        if let Some(driver) = self.closed.offered.driver_of(gpu).map(str::to_owned) {
            return Err(Refusal::OfferedByDra { pod, gpu: gpu.clone(), driver });
        }
        if self.closed.by_claims.has(gpu) {
            return Err(Refusal::OfClaims { pod, gpu: gpu.clone() });
        }
        if self.has_some_on(gpu, &in_use.exclusive) {
            return Err(Refusal::GpuTaken { pod, gpu: gpu.clone() });
        }
        if share.exclusive && self.has_some_on(gpu, &in_use.others) {
            return Err(Refusal::NotAlone { pod, gpu: gpu.clone() });
        }
        Ok(())
    }

    /// Whether one of the ids names the GPU.
    fn has_some_on(&self, gpu: &GpuId, ids: &Ids) -> bool {
        units_of(ids, self.gpus).contains_key(gpu)
    }

    /// Ids on one GPU, one for each unit of the share.
    fn choose_on(
        &self,
        claimed: &GpuId,
        facts: &PodFacts,
        id_request: &IdRequest,
    ) -> Result<Ids, Refusal> {
        let pod = PodRef::of(facts);
        let Some(gpu) = self.gpus.get(claimed) else {
            return Err(Refusal::NoSuchGpu { pod, gpu: claimed.clone() });
        };
        let in_use = &self.in_use.all;
        let must = &id_request.must_include;
        // Ids that the GPU no longer offers count as well: the GPU had more units when they were granted.
        let held = units_of(&in_use.union(must).cloned().collect(), self.gpus);
        let room = gpu.units.saturating_sub(held.get(claimed).copied().unwrap_or_default());
        let mut free: Vec<DeviceId> = self.ids_on(claimed, self.available).into_iter().collect();
        free.retain(|id| !in_use.contains(id) && !must.contains(id));
        free.truncate(room.0 as usize);
        let missing = id_request.size.saturating_sub(must.len());
        // The kubelet may offer ids of an unhealthy GPU: ids whose pod has just ended may still be Healthy in its
        // list.
        if let Some(why) = gpu.unhealthy
            && missing > 0
        {
            return Err(Refusal::Unhealthy { pod, gpu: claimed.clone(), why });
        }
        if free.len() < missing {
            return Err(Refusal::GpuFull {
                pod,
                gpu: claimed.clone(),
                free: free.len(),
                asked: id_request.size,
            });
        }
        Ok(must.iter().cloned().chain(free.into_iter().take(missing)).collect())
    }

    /// The ids that are on a GPU.
    fn ids_on(&self, gpu: &GpuId, ids: &Ids) -> Ids {
        ids.iter()
            .filter(|id| self.gpus.offering(id).is_some_and(|on| on.uuid == *gpu))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::gpus;
    use crate::fixtures::{A, B, ids, on_two_gpus, simple, with_use};
    use crate::pods::container_requests;
    use crate::records::checkpoint::OtherPluginGpu;
    use placement::gpu::GpuUse;
    use placement::units::Units;

    fn choose_on(
        facts: &Arc<PodFacts>,
        available: &Ids,
        in_use: &Ids,
        must: &Ids,
    ) -> Result<Ids, Refusal> {
        let in_use = IdsInUse { all: in_use.clone(), ..IdsInUse::default() };
        choose_from(facts, available, &in_use, must)
    }

    fn choose_from(
        facts: &Arc<PodFacts>,
        available: &Ids,
        in_use: &IdsInUse,
        must: &Ids,
    ) -> Result<Ids, Refusal> {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let ask = container_requests(facts).next().unwrap();
        let id_request = IdRequest { size: ask.units.0 as usize, must_include: must.clone() };
        let closed = ClosedGpus::default();
        let supply = IdSupply { gpus: &gpus, available, in_use, closed: &closed };
        choose(facts, ask, &id_request, &supply).map(|choice| choice.ids)
    }

    #[test]
    fn the_lowest_free_slots_of_the_claimed_gpu_are_chosen() {
        let available = ids(["aaaaaaaa-0", "bbbbbbbb-3", "bbbbbbbb-1", "bbbbbbbb-2"]);
        let chosen = choose_on(&simple("p", B, 2), &available, &Ids::new(), &Ids::new());
        assert_eq!(chosen, Ok(ids(["bbbbbbbb-1", "bbbbbbbb-2"])));
    }

    #[test]
    fn an_id_that_a_container_holds_is_not_free_even_if_the_kubelet_offers_it() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let chosen = choose_on(&simple("p", A, 2), &available, &ids(["aaaaaaaa-0"]), &Ids::new());
        assert!(matches!(chosen, Err(Refusal::GpuFull { free: 1, asked: 2, .. })), "{chosen:?}");
    }

    #[test]
    fn ids_that_a_gpu_no_longer_offers_take_room_on_it() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        let held = ids(["aaaaaaaa-4", "aaaaaaaa-5", "aaaaaaaa-6", "bbbbbbbb-7"]);
        let fits = choose_on(&simple("p", A, 1), &available, &held, &Ids::new());
        assert_eq!(fits, Ok(ids(["aaaaaaaa-0"])));
        let full = choose_on(&simple("p", A, 2), &available, &held, &Ids::new());
        assert!(matches!(full, Err(Refusal::GpuFull { free: 1, asked: 2, .. })), "{full:?}");
    }

    fn on_a(slots: &BTreeSet<u32>) -> Ids {
        slots.iter().map(|slot| DeviceId::new("aaaaaaaa", *slot)).collect()
    }

    proptest! {
        #[test]
        fn no_gpu_is_given_more_units_than_it_has(
            held in prop::collection::btree_set(0..8_u32, 0..8),
            own in prop::collection::btree_set(0..4_u32, 0..3),
            units in 1..5_u32,
        ) {
            let held = &on_a(&held) - &on_a(&own);
            let own = on_a(&own);
            let offered = on_a(&(0..4).collect());
            let in_use = &held | &own;
            prop_assume!(own.len() <= units as usize);
            if let Ok(chosen) = choose_on(&simple("p", A, units), &offered, &in_use, &own) {
                prop_assert_eq!(chosen.len(), units as usize);
                prop_assert!(chosen.is_disjoint(&held) && chosen.is_superset(&own));
                // Where the GPU has room no more, the pod gets none beyond what it has.
                prop_assert!(held.len() + chosen.len() <= 4 || chosen == own);
            }
        }
    }

    #[test]
    fn ids_that_must_be_included_are_although_they_are_in_use() {
        let must = ids(["aaaaaaaa-3"]);
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-3"]);
        assert_eq!(choose_on(&simple("p", A, 2), &available, &must, &must), Ok(available.clone()));
        let elsewhere = choose_on(&simple("p", B, 2), &available, &must, &must);
        assert!(matches!(elsewhere, Err(Refusal::NotOnClaimedGpu(_))), "{elsewhere:?}");
    }

    fn choose_beside(facts: &Arc<PodFacts>, others: &Ids, exclusive: &Ids) -> Result<Ids, Refusal> {
        let in_use = IdsInUse {
            all: others.clone(),
            others: others.clone(),
            exclusive: exclusive.clone(),
            ..IdsInUse::default()
        };
        choose_from(facts, &ids(["aaaaaaaa-1", "bbbbbbbb-1"]), &in_use, &Ids::new())
    }

    #[test]
    fn a_gpu_that_another_pod_has_for_itself_is_given_to_none() {
        let held = ids(["aaaaaaaa-0"]);
        let refused = choose_beside(&simple("p", A, 1), &held, &held);
        assert!(matches!(refused, Err(Refusal::GpuTaken { .. })), "{refused:?}");
        assert_eq!(choose_beside(&simple("p", A, 1), &held, &Ids::new()), Ok(ids(["aaaaaaaa-1"])));
        assert_eq!(choose_beside(&simple("p", B, 1), &held, &held), Ok(ids(["bbbbbbbb-1"])));
    }

    #[test]
    fn a_pod_that_is_to_have_its_gpu_for_itself_gets_none_where_another_is() {
        let whole = GpuUse { exclusive: true, ..GpuUse::default() };
        let held = ids(["aaaaaaaa-0"]);
        let on_a = Arc::new(with_use("p", A, 1, whole));
        let refused = choose_beside(&on_a, &held, &Ids::new());
        assert!(matches!(refused, Err(Refusal::NotAlone { .. })), "{refused:?}");
        let on_b = Arc::new(with_use("p", B, 1, whole));
        assert_eq!(choose_beside(&on_b, &held, &Ids::new()), Ok(ids(["bbbbbbbb-1"])));
    }

    #[test]
    fn a_gpu_that_a_pod_holds_through_another_resource_is_given_to_none() {
        let pod = simple("p", A, 1);
        let available = ids(["aaaaaaaa-1", "bbbbbbbb-1"]);
        let mut held = OtherPluginGpu {
            pod: "whole".into(),
            container: "main".to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            gpu: A.into(),
        };
        let on_a = IdsInUse { elsewhere: vec![held.clone()], ..IdsInUse::default() };
        let refused = choose_from(&pod, &available, &on_a, &Ids::new());
        assert!(matches!(refused, Err(Refusal::HeldElsewhere { .. })));
        held.gpu = B.into();
        let on_b = IdsInUse { elsewhere: vec![held], ..IdsInUse::default() };
        let chosen = choose_from(&pod, &available, &on_b, &Ids::new());
        assert_eq!(chosen, Ok(ids(["aaaaaaaa-1"])));
    }

    #[test]
    fn a_container_that_the_claim_does_not_name_has_no_gpu() {
        let facts = simple("p", A, 2);
        let share = GpuShare { processes: 1, ..GpuShare::of(Units(2)) };
        let on_a = [(A.into(), share)].into();
        assert_eq!(claimed_gpus(&facts, "main"), Ok(&on_a));
        assert!(matches!(claimed_gpus(&facts, "other"), Err(Refusal::NotClaimed { .. })));
    }

    #[test]
    fn a_container_on_two_gpus_gets_its_share_of_each() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"]);
        let pod = on_two_gpus("p", 4);
        let chosen = choose_on(&pod, &available, &ids(["bbbbbbbb-0"]), &Ids::new());
        let expected = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-1", "bbbbbbbb-2"]);
        assert_eq!(chosen, Ok(expected));
        let full = choose_on(&pod, &available, &ids(["bbbbbbbb-0", "bbbbbbbb-1"]), &Ids::new());
        assert!(matches!(full, Err(Refusal::GpuFull { free: 1, asked: 2, .. })), "{full:?}");
    }
}
