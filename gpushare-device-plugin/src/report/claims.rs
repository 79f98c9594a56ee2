//! The claim that the kubelet's record of a pod shows.

use std::collections::BTreeMap;

use cluster::PodFacts;
use placement::gpu::{Choice, ChosenGpu, Claim, GpuRequest, Reservation};
use placement::units::{GpuId, Units};

use crate::gpus::Gpus;

/// Whether a pod holds units on a GPU that its claim does not name.
pub(crate) fn is_on_other_gpu(facts: &PodFacts, units: &BTreeMap<GpuId, Units>) -> bool {
    let Some(claimed) = facts.claim().map(Claim::gpus) else { return false };
    units.keys().any(|gpu| !claimed.contains_key(gpu))
}

/// The claim of a pod by the kubelet's record, if the pod has no claim, or one on other GPUs or with fewer units on
/// one of them. `None` also while the record is incomplete: the kubelet allocates container by container.
pub(super) fn claim_from_record(
    facts: &PodFacts,
    units: &BTreeMap<GpuId, Units>,
    gpus: &Gpus,
) -> Option<(GpuRequest, Reservation)> {
    let gpu = facts.gpu_pod()?;
    if gpu.fault.is_some() || facts.claim().is_some_and(|claim| covers(claim, units)) {
        return None;
    }
    // The request follows the claim, so a claim that was edited to more or fewer GPUs also changed the request. With
    // several containers the record of the pod does not show the GPUs of each.
    let is_all_of_one = gpu.request.containers().len() == 1
        && units.values().copied().sum::<Units>() == gpu.request.peak();
    let request = if units.len() == gpu.request.shares().len() {
        gpu.request.clone()
    } else if is_all_of_one {
        gpu.request.on_gpus(u32::try_from(units.len()).ok()?)?
    } else {
        return None;
    };
    // Without a claim, only annotations ask for more than units, and Bind has not checked whether the pod may have
    // that.
    let request = match facts.claim() {
        Some(_) => request,
        None => within_units(request, units, gpus)?,
    };
    let shares = request.shares();
    // The shares of a request are sorted, the largest first.
    let mut on: Vec<(&GpuId, Units)> = units.iter().map(|(gpu, units)| (gpu, *units)).collect();
    on.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    let is_whole =
        on.len() == 1 || on.iter().zip(shares).all(|((_, held), share)| *held == share.units);
    if !is_whole {
        return None;
    }
    let mut chosen = Vec::new();
    for (gpu, held) in on {
        let gpu = gpus.get(gpu)?;
        let left = gpu.units.saturating_sub(held);
        let uuid = gpu.uuid.clone();
        chosen.push(ChosenGpu { uuid, index: gpu.index, units: gpu.units, left });
    }
    let reservation = Reservation::new(&request, Choice { gpus: chosen, cost: None });
    Some((request, reservation))
}

/// Whether a claim has each of these GPUs, with at least these units.
fn covers(claim: &Claim, units: &BTreeMap<GpuId, Units>) -> bool {
    units.iter().all(|(gpu, held)| {
        claim.gpus().get(gpu).is_some_and(|share| share.exclusive || *held <= share.units)
    })
}

/// The request, or its units alone if it would take more of a GPU of these sizes than its units: compute, exclusive
/// use, or memory up to a limit.
fn within_units(
    request: GpuRequest,
    units: &BTreeMap<GpuId, Units>,
    gpus: &Gpus,
) -> Option<GpuRequest> {
    let exceeds =
        |size| request.shares().iter().any(|share| request.excess(*share, size).is_some());
    let is_over = units.keys().any(|gpu| gpus.get(gpu).is_some_and(|gpu| exceeds(gpu.units)));
    if is_over { request.of_units_alone() } else { Some(request) }
}

#[cfg(test)]
mod tests {
    use placement::gpu::GpuUse;
    use placement::units::Cores;

    use super::*;
    use crate::fixtures::{A, B, gpus, ids, on_two_gpus, simple, with_use};
    use crate::gpus::ids::Ids;
    use crate::gpus::units_of;

    /// The GPUs of the claim that is written for a pod with these ids.
    fn recorded(pod: &PodFacts, held: &Ids) -> Option<Vec<String>> {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let (_, reservation) = claim_from_record(pod, &units_of(held, &gpus), &gpus)?;
        Some(reservation.claim.gpus().keys().map(GpuId::to_string).collect())
    }

    fn without_claim(pod: &PodFacts) -> PodFacts {
        let mut pod = pod.clone();
        if let Ok(Some(gpu)) = &mut pod.gpu {
            gpu.claim = Ok(None);
        }
        pod
    }

    /// Units, compute, whether it is exclusive, and limit of the claim that is written for a pod without one.
    fn written(units: u32, gpu_use: GpuUse, held: &Ids) -> Option<(u32, u32, bool, Option<Units>)> {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let pod = without_claim(&with_use("p", A, units, gpu_use));
        let (_, reservation) = claim_from_record(&pod, &units_of(held, &gpus), &gpus)?;
        let share = reservation.claim.gpus().get(&GpuId::from(A)).copied()?;
        let limit = reservation.claim.limit_of("main");
        Some((share.units.0, share.cores.0, share.exclusive, limit))
    }

    #[test]
    fn a_claim_is_written_where_there_is_none_or_one_on_another_gpu() {
        let pod = simple("p", A, 1);
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0"])), None, "as it claims");
        assert_eq!(recorded(&pod, &ids(["bbbbbbbb-0"])), Some(vec![B.to_owned()]));
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "no claim says that");
        let two = on_two_gpus("two", 4);
        assert_eq!(recorded(&two, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "as it claims");
        let unclaimed = without_claim(&two);
        let whole = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        assert_eq!(recorded(&unclaimed, &whole), Some(vec![A.to_owned(), B.to_owned()]));
        assert_eq!(recorded(&unclaimed, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "not yet whole");
    }

    #[test]
    fn a_claim_that_is_written_for_a_pod_without_one_has_no_more_than_its_units() {
        let whole = GpuUse { exclusive: true, ..GpuUse::default() };
        let one = ids(["aaaaaaaa-0"]);
        assert_eq!(written(1, whole, &one), Some((1, 0, false, None)));
        let too_many_cores = GpuUse { cores: Cores(26), ..GpuUse::default() };
        assert_eq!(written(1, too_many_cores, &one), Some((1, 0, false, None)));
        let cores = GpuUse { cores: Cores(25), ..GpuUse::default() };
        assert_eq!(written(1, cores, &one), Some((1, 25, false, None)));
        let grows = GpuUse { limit: Some(Units(4)), ..GpuUse::default() };
        assert_eq!(written(1, grows, &one), Some((1, 0, false, None)));
        let all = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        assert_eq!(written(4, whole, &all), Some((4, 0, true, None)));
    }

    #[test]
    fn a_claim_that_was_edited_into_one_on_more_gpus_or_on_fewer_is_put_right() {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let on_a = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        let on_both = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        for (pod, held, wanted) in
            [(on_two_gpus("p", 4), on_a, vec![A]), (simple("p", B, 4), on_both, vec![A, B])]
        {
            let (request, reservation) =
                claim_from_record(&pod, &units_of(&held, &gpus), &gpus).unwrap();
            let claimed: Vec<_> = reservation.claim.gpus().keys().map(GpuId::as_str).collect();
            assert_eq!((request.shares().len(), claimed), (wanted.len(), wanted));
        }
    }

    #[test]
    fn a_pod_on_a_gpu_that_it_did_not_claim_is_elsewhere() {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let pod = simple("p", A, 1);
        assert!(!is_on_other_gpu(&pod, &units_of(&ids(["aaaaaaaa-0"]), &gpus)));
        assert!(is_on_other_gpu(&pod, &units_of(&ids(["bbbbbbbb-0"]), &gpus)));
    }
}
