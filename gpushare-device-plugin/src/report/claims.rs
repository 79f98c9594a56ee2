//! The claim that the kubelet's record of a pod shows.

use std::collections::BTreeMap;

use cluster::PodFacts;
use placement::gpu::{Choice, ChosenCard, Claim, GpuRequest, Reservation};
use placement::units::{CardId, Units};

use crate::cards::Cards;

/// Whether a pod holds units on a card that its claim does not name.
pub(crate) fn is_on_other_card(facts: &PodFacts, units: &BTreeMap<CardId, Units>) -> bool {
    let Some(claimed) = facts.claim().map(Claim::cards) else { return false };
    units.keys().any(|card| !claimed.contains_key(card))
}

/// The claim of a pod by the kubelet's record, if the pod has no claim, or one on other cards or with fewer units on
/// one of them. `None` also while the record is incomplete: the kubelet allocates container by container.
pub(super) fn claim_from_record(
    facts: &PodFacts,
    units: &BTreeMap<CardId, Units>,
    cards: &Cards,
) -> Option<(GpuRequest, Reservation)> {
    let gpu = facts.gpu_pod()?;
    if gpu.fault.is_some() || facts.claim().is_some_and(|claim| covers(claim, units)) {
        return None;
    }
    // The request follows the claim, so a claim that was edited to more or fewer cards also changed the request. With
    // several containers the record of the pod does not show the cards of each.
    let is_all_of_one = gpu.request.containers().len() == 1
        && units.values().copied().sum::<Units>() == gpu.request.peak();
    let request = if units.len() == gpu.request.shares().len() {
        gpu.request.clone()
    } else if is_all_of_one {
        gpu.request.on_cards(u32::try_from(units.len()).ok()?)?
    } else {
        return None;
    };
    // Without a claim, only annotations ask for more than units, and Bind has not checked whether the pod may have
    // that.
    let request = match facts.claim() {
        Some(_) => request,
        None => within_units(request, units, cards)?,
    };
    let shares = request.shares();
    // The shares of a request are sorted, the largest first.
    let mut on: Vec<(&CardId, Units)> = units.iter().map(|(card, units)| (card, *units)).collect();
    on.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    let is_whole =
        on.len() == 1 || on.iter().zip(shares).all(|((_, held), share)| *held == share.units);
    if !is_whole {
        return None;
    }
    let mut chosen = Vec::new();
    for (card, held) in on {
        let card = cards.get(card)?;
        let left = card.units.saturating_sub(held);
        let uuid = card.uuid.clone();
        chosen.push(ChosenCard { uuid, index: card.index, units: card.units, left });
    }
    let reservation = Reservation::new(&request, Choice { cards: chosen, cost: None });
    Some((request, reservation))
}

/// Whether a claim has each of these cards, with at least these units.
fn covers(claim: &Claim, units: &BTreeMap<CardId, Units>) -> bool {
    units.iter().all(|(card, held)| {
        claim.cards().get(card).is_some_and(|share| share.exclusive || *held <= share.units)
    })
}

/// The request, or its units alone if it would take more of a card of these sizes than its units: compute, exclusive
/// use, or memory up to a limit.
fn within_units(
    request: GpuRequest,
    units: &BTreeMap<CardId, Units>,
    cards: &Cards,
) -> Option<GpuRequest> {
    let exceeds =
        |size| request.shares().iter().any(|share| request.excess(*share, size).is_some());
    let is_over = units.keys().any(|card| cards.get(card).is_some_and(|card| exceeds(card.units)));
    if is_over { request.of_units_alone() } else { Some(request) }
}

#[cfg(test)]
mod tests {
    use placement::gpu::CardUse;
    use placement::units::Cores;

    use super::*;
    use crate::cards::ids::Ids;
    use crate::cards::units_of;
    use crate::fixtures::{A, B, cards, ids, on_two_cards, simple, with_use};

    /// The cards of the claim that is written for a pod with these ids.
    fn recorded(pod: &PodFacts, held: &Ids) -> Option<Vec<String>> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let (_, reservation) = claim_from_record(pod, &units_of(held, &cards), &cards)?;
        Some(reservation.claim.cards().keys().map(CardId::to_string).collect())
    }

    fn without_claim(pod: &PodFacts) -> PodFacts {
        let mut pod = pod.clone();
        if let Ok(Some(gpu)) = &mut pod.gpu {
            gpu.claim = Ok(None);
        }
        pod
    }

    /// Units, compute, whether it is exclusive, and limit of the claim that is written for a pod without one.
    fn written(
        units: u32,
        card_use: CardUse,
        held: &Ids,
    ) -> Option<(u32, u32, bool, Option<Units>)> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let pod = without_claim(&with_use("p", A, units, card_use));
        let (_, reservation) = claim_from_record(&pod, &units_of(held, &cards), &cards)?;
        let share = reservation.claim.cards().get(&CardId::from(A)).copied()?;
        let limit = reservation.claim.limit_of("main");
        Some((share.units.0, share.cores.0, share.exclusive, limit))
    }

    #[test]
    fn a_claim_is_written_where_there_is_none_or_one_on_another_card() {
        let pod = simple("p", A, 1);
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0"])), None, "as it claims");
        assert_eq!(recorded(&pod, &ids(["bbbbbbbb-0"])), Some(vec![B.to_owned()]));
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "no claim says that");
        let two = on_two_cards("two", 4);
        assert_eq!(recorded(&two, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "as it claims");
        let unclaimed = without_claim(&two);
        let whole = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        assert_eq!(recorded(&unclaimed, &whole), Some(vec![A.to_owned(), B.to_owned()]));
        assert_eq!(recorded(&unclaimed, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "not yet whole");
    }

    #[test]
    fn a_claim_that_is_written_for_a_pod_without_one_has_no_more_than_its_units() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let one = ids(["aaaaaaaa-0"]);
        assert_eq!(written(1, whole, &one), Some((1, 0, false, None)));
        let too_many_cores = CardUse { cores: Cores(26), ..CardUse::default() };
        assert_eq!(written(1, too_many_cores, &one), Some((1, 0, false, None)));
        let cores = CardUse { cores: Cores(25), ..CardUse::default() };
        assert_eq!(written(1, cores, &one), Some((1, 25, false, None)));
        let grows = CardUse { limit: Some(Units(4)), ..CardUse::default() };
        assert_eq!(written(1, grows, &one), Some((1, 0, false, None)));
        let all = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        assert_eq!(written(4, whole, &all), Some((4, 0, true, None)));
    }

    #[test]
    fn a_claim_that_was_edited_into_one_on_more_cards_or_on_fewer_is_put_right() {
        let cards = cards(&[(A, 4), (B, 4)]);
        let on_a = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        let on_both = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        for (pod, held, wanted) in
            [(on_two_cards("p", 4), on_a, vec![A]), (simple("p", B, 4), on_both, vec![A, B])]
        {
            let (request, reservation) =
                claim_from_record(&pod, &units_of(&held, &cards), &cards).unwrap();
            let claimed: Vec<_> = reservation.claim.cards().keys().map(CardId::as_str).collect();
            assert_eq!((request.shares().len(), claimed), (wanted.len(), wanted));
        }
    }

    #[test]
    fn a_pod_on_a_card_that_it_did_not_claim_is_elsewhere() {
        let cards = cards(&[(A, 4), (B, 4)]);
        let pod = simple("p", A, 1);
        assert!(!is_on_other_card(&pod, &units_of(&ids(["aaaaaaaa-0"]), &cards)));
        assert!(is_on_other_card(&pod, &units_of(&ids(["bbbbbbbb-0"]), &cards)));
    }
}
