//! Whether the ids of an Allocate may be granted, and which GPUs they are on.
//!
//! Invariant: the GPUs follow from the ids alone, so the kubelet's records show on which GPUs a
//! container really is. Ids are granted only if this plugin chose them for a claim on their GPUs, or
//! if the kubelet reuses them from an init container for a container of the same pod whose claim is
//! on the same GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerRequest;
use placement::units::{GpuId, Units};

use super::choose::{ChosenIds, claimed_gpus};
use super::refusal::Refusal;
use crate::gpus::ids::{DeviceId, Ids, first_few};
use crate::gpus::{Gpu, Gpus, units_of};
use crate::pods::{PodRef, container_requests};
use crate::records::resource_claims::ClaimLedger;
use crate::records::{GrantedPod, Records};

/// The outcome of a GetPreferredAllocation. The kubelet admits one container at a time, so the next
/// Allocate is for the same container.
#[derive(Debug, Clone)]
pub(crate) struct Preference {
    /// How many ids the kubelet requested.
    pub size: usize,
    /// The pod being admitted; `None` if it is not known.
    pub pod: Option<Arc<PodFacts>>,
    /// The units of the pod, if it is refused because a scheduler bound it without the extender.
    pub bypassed: Option<Units>,
    /// The chosen ids, or why there are none.
    pub outcome: Result<ChosenIds, Refusal>,
}

impl Preference {
    /// Whether it is for an Allocate of these ids. One of another size belongs to another Allocate, which never came:
    /// the kubelet died.
    pub(crate) fn is_for(&self, ids: &Ids) -> bool {
        self.size == ids.len()
    }
}

/// The ids and GPUs that are granted to a container.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// The pod as it was when its ids were chosen.
    pub facts: Arc<PodFacts>,
    /// The container's name.
    pub container: String,
    /// The GPUs of the ids, by index; never empty.
    pub gpus: Vec<Gpu>,
    /// The ids of the Allocate call, one for each unit.
    pub ids: Ids,
}

/// Decides on an Allocate of `ids`. `preference` is the outcome of the GetPreferredAllocation [for
/// it](Preference::is_for); the kubelet calls Allocate without one only for ids that it reuses from an init container.
///
/// # Errors
/// If the ids were not chosen for a claim on their GPUs. After a GetPreferredAllocation without ids
/// the kubelet picks random ids; the error then says why none were chosen.
pub(crate) fn decide(
    ids: &Ids,
    preference: Option<&Preference>,
    records: &Records,
    gpus: &Gpus,
) -> Result<Grant, Refusal> {
    match preference.map(|preference| &preference.outcome) {
        Some(Err(refusal)) => Err(refusal.clone()),
        Some(Ok(choice)) => {
            let on = gpus_of(ids, |id| gpus.offering(id))?;
            if choice.ids != *ids {
                return Err(Refusal::NotChosen(first_few(ids)));
            }
            Ok(grant(&choice.facts, &choice.container, ids, &on))
        }
        None => {
            let on = gpus_of(ids, |id| gpus.offering(id))?;
            let units = units_of(ids, gpus);
            for pod in records.all_granted() {
                if let Some(container) = container_that_reuses(pod, ids, &units) {
                    return Ok(grant(&pod.facts, container, ids, &on));
                }
            }
            Err(Refusal::NotChosen(first_few(ids)))
        }
    }
}

/// The grant, unless a ResourceClaim was booked on one of its GPUs since they were chosen.
///
/// # Errors
/// If one was.
pub(crate) fn beside_no_claim(grant: Grant, claims: &ClaimLedger) -> Result<Grant, Refusal> {
    match grant.gpus.iter().find(|gpu| claims.is_on(&gpu.uuid)) {
        Some(gpu) => {
            let pod = PodRef::of(&grant.facts);
            Err(Refusal::OfClaims { pod, gpu: gpu.uuid.clone() })
        }
        None => Ok(grant),
    }
}

fn grant(facts: &Arc<PodFacts>, container: &str, ids: &Ids, gpus: &[&Gpu]) -> Grant {
    Grant {
        facts: facts.clone(),
        container: container.to_owned(),
        gpus: gpus.iter().copied().cloned().collect(),
        ids: ids.clone(),
    }
}

/// The GPUs of the ids, by index; never empty. `gpu` looks up the GPU of one id.
///
/// # Errors
/// If there are no ids, or one of them is on no GPU.
pub(crate) fn gpus_of<'a>(
    ids: &Ids,
    gpu: impl Fn(&DeviceId) -> Option<&'a Gpu>,
) -> Result<Vec<&'a Gpu>, Refusal> {
    let mut on = ids.iter().map(gpu).collect::<Option<Vec<&Gpu>>>().unwrap_or_default();
    on.sort_by(|one, other| (one.index, &one.uuid).cmp(&(other.index, &other.uuid)));
    on.dedup_by(|one, other| one.uuid == other.uuid);
    if on.is_empty() { Err(Refusal::NotOnClaimedGpu(first_few(ids))) } else { Ok(on) }
}

/// The container of `pod` that reuses these ids of its init containers: the next container without a grant,
/// or, if the kubelet died before it recorded a grant, any container that claims as many units of each GPU.
fn container_that_reuses<'a>(
    pod: &'a GrantedPod,
    ids: &Ids,
    units: &BTreeMap<GpuId, Units>,
) -> Option<&'a str> {
    let is_init = |(name, _): &(&String, &Ids)| pod.is_init(name);
    let inits = pod.containers.iter().filter(is_init).flat_map(|(_, held)| held).cloned().collect();
    if !ids.is_subset(&inits) {
        return None;
    }
    let fits = |ask: &&ContainerRequest| claims(&pod.facts, ask, units);
    let ask = pod.pending().next().filter(fits);
    ask.or_else(|| container_requests(&pod.facts).find(fits)).map(|ask| ask.name.as_str())
}

/// Whether the container claims exactly these units of each GPU.
fn claims(facts: &PodFacts, ask: &ContainerRequest, units: &BTreeMap<GpuId, Units>) -> bool {
    claimed_gpus(facts, &ask.name).is_ok_and(|shares| {
        units.len() == shares.len()
            && shares.iter().all(|(gpu, share)| units.get(gpu) == Some(&share.units))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::gpus;
    use crate::fixtures::{A, B, ids, on_two_gpus, simple, with_init};

    fn chose(facts: &Arc<PodFacts>, chosen: &Ids) -> Preference {
        let container = "main".to_owned();
        let choice = ChosenIds { facts: facts.clone(), container, ids: chosen.clone() };
        let pod = Some(facts.clone());
        Preference { size: chosen.len(), pod, bypassed: None, outcome: Ok(choice) }
    }

    fn decide_on(
        ids: &Ids,
        preference: Option<&Preference>,
        records: &Records,
    ) -> Result<(String, String), Refusal> {
        let grant = decide(ids, preference, records, &gpus(&[(A, 4), (B, 4)]))?;
        let uuids: Vec<&str> = grant.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        Ok((grant.container, uuids.join(",")))
    }

    #[test]
    fn only_chosen_ids_are_granted() {
        let chosen = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let preference = chose(&simple("p", A, 2), &chosen);
        let granted = decide_on(&chosen, Some(&preference), &Records::default());
        assert_eq!(granted, Ok(("main".to_owned(), A.to_owned())));
        let others = ids(["aaaaaaaa-0", "aaaaaaaa-2"]);
        let refused = decide_on(&others, Some(&preference), &Records::default());
        assert_eq!(refused, Err(Refusal::NotChosen("aaaaaaaa-0, aaaaaaaa-2".to_owned())));
        assert!(decide_on(&chosen, None, &Records::default()).is_err(), "none were chosen");
    }

    #[test]
    fn ids_of_several_gpus_are_granted_only_where_they_were_chosen() {
        let pod = on_two_gpus("p", 2);
        let both = ids(["aaaaaaaa-0", "bbbbbbbb-0"]);
        let preference = chose(&pod, &both);
        let granted = decide_on(&both, Some(&preference), &Records::default());
        assert_eq!(granted, Ok(("main".to_owned(), format!("{A},{B}"))));
        let one = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let refused = decide_on(&one, Some(&preference), &Records::default());
        assert!(matches!(refused, Err(Refusal::NotChosen(_))), "{refused:?}");
    }

    #[test]
    fn ids_of_no_gpu_are_refused() {
        let records = Records::default();
        for wrong in [
            ids(["aaaaaaaa-0", "cccccccc-0"]),
            ids(["cccccccc-0"]),
            ids(["aaaaaaaa-4"]),
            Ids::new(),
        ] {
            assert!(
                matches!(decide_on(&wrong, None, &records), Err(Refusal::NotOnClaimedGpu(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn random_ids_are_refused_with_the_reason_why_none_were_chosen() {
        let why = Refusal::NoPodAsks { size: 2 };
        let preference =
            Preference { size: 2, pod: None, bypassed: None, outcome: Err(why.clone()) };
        let random = ids(["aaaaaaaa-0", "bbbbbbbb-3"]);
        assert_eq!(decide_on(&random, Some(&preference), &Records::default()), Err(why));
    }

    #[test]
    fn ids_of_an_earlier_pod_are_not_granted_after_a_preference() {
        let dead = simple("dead", A, 2);
        let pod = simple("p", B, 2);
        let held = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let mut records = Records::default();
        records.grant(&dead, "main", held.clone());
        let why = Refusal::NoPodAsks { size: 2 };
        let refused = Preference { size: 2, pod: None, bypassed: None, outcome: Err(why.clone()) };
        assert_eq!(decide_on(&held, Some(&refused), &records), Err(why));
        let chosen = chose(&pod, &ids(["bbbbbbbb-0", "bbbbbbbb-1"]));
        let not_chosen = Refusal::NotChosen("aaaaaaaa-0, aaaaaaaa-1".to_owned());
        assert_eq!(decide_on(&held, Some(&chosen), &records), Err(not_chosen.clone()));
        assert_eq!(decide_on(&held, None, &records), Err(not_chosen));
    }

    #[test]
    fn ids_of_a_dead_pods_init_container_are_not_granted_after_a_refused_preference() {
        let dead = with_init("dead", A, 2, 2);
        let held = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let mut records = Records::default();
        records.grant(&dead, "init", held.clone());
        let why = Refusal::NoPodAsks { size: 2 };
        let refused = Preference { size: 2, pod: None, bypassed: None, outcome: Err(why.clone()) };
        assert_eq!(decide_on(&held, Some(&refused), &records), Err(why));
    }

    #[test]
    fn the_next_container_takes_over_as_many_ids_of_its_init_container_as_it_asks_for() {
        let pod = with_init("p", B, 3, 2);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"]));
        let subset = ids(["bbbbbbbb-0", "bbbbbbbb-2"]);
        assert_eq!(decide_on(&subset, None, &records), Ok(("main".to_owned(), B.to_owned())));
        assert!(
            decide_on(&ids(["bbbbbbbb-0"]), None, &records).is_err(),
            "the next container asks for two"
        );
        assert!(
            decide_on(&ids(["bbbbbbbb-0", "bbbbbbbb-3"]), None, &records).is_err(),
            "the init container does not hold both"
        );
    }

    #[test]
    fn a_repeated_allocate_of_handed_on_ids_gets_the_same_gpu() {
        let pod = with_init("p", A, 3, 2);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"]));
        records.grant(&pod, "main", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        let others = ids(["aaaaaaaa-1", "aaaaaaaa-2"]);
        assert_eq!(decide_on(&others, None, &records), Ok(("main".to_owned(), A.to_owned())));
    }
}
