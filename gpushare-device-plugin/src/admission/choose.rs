//! Which ids a container gets: free ids on the cards of its claim, one for each unit of its share.
//!
//! Invariant: never an id of another card, and never one that a container holds by the records, even if
//! the kubelet offers it: the kubelet can forget ids that it is allocating
//! (kubernetes/kubernetes#137534). A card of an exclusive pod has ids of no other pod.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{CardShare, CardShares, ContainerRequest};
use placement::units::CardId;

use super::identify::IdRequest;
use super::refusal::Refusal;
use crate::cards::ids::{DeviceId, Ids, first_few};
use crate::cards::{Cards, units_of};
use crate::pods::PodRef;
use crate::records::IdsInUse;

/// Ids chosen for a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The pod being admitted.
    pub facts: Arc<PodFacts>,
    /// The name of the container being admitted.
    pub container: String,
    /// As many ids as the kubelet requested, all on the cards of the pod's claim.
    pub ids: Ids,
}

/// The cards of a container by the pod's claim, with the container's share of each.
///
/// # Errors
/// If the pod has no claim, a claim that does not match its spec, or a claim without the container.
pub fn claimed_cards<'f>(facts: &'f PodFacts, container: &str) -> Result<&'f CardShares, Refusal> {
    let pod = PodRef::of(facts);
    let claim = match facts.gpu_pod().map(|gpu| &gpu.claim) {
        Some(Ok(Some(claim))) => claim,
        Some(Err(cause)) => return Err(Refusal::BadClaim { pod, cause: cause.clone() }),
        Some(Ok(None)) | None => return Err(Refusal::Unclaimed(pod)),
    };
    claim.of(container).ok_or_else(|| Refusal::NotClaimed { pod, container: container.to_owned() })
}

/// Ids for `ask` on its claimed cards: those that must be included, then the lowest free slots.
///
/// # Errors
/// If there is no valid claim, or a card is absent, unhealthy, full, or would be shared with an exclusive pod.
pub fn choose(
    facts: &Arc<PodFacts>,
    ask: &ContainerRequest,
    cards: &Cards,
    available: &Ids,
    in_use: &IdsInUse,
    id_request: &IdRequest,
) -> Result<Choice, Refusal> {
    let shares = claimed_cards(facts, &ask.name)?;
    let must = &id_request.must_include;
    if must.iter().any(|id| cards.of(id).is_none_or(|on| !shares.contains_key(&on.uuid))) {
        return Err(Refusal::NotOnClaimedCard(first_few(must)));
    }
    let mut ids = Ids::new();
    for (card, share) in shares {
        check_alone(facts, card, share, cards, in_use)?;
        let units = share.units.0 as usize;
        let on_card = IdRequest { size: units, must_include: on(cards, card, must) };
        ids.extend(choose_on(card, facts, cards, available, &in_use.all, &on_card)?);
    }
    Ok(Choice { facts: facts.clone(), container: ask.name.clone(), ids })
}

/// Checks that no exclusive pod, this one or another, would share the card, nor a pod that holds it through another plugin's resource.
fn check_alone(
    facts: &PodFacts,
    card: &CardId,
    share: &CardShare,
    cards: &Cards,
    in_use: &IdsInUse,
) -> Result<(), Refusal> {
    let (pod, claimed) = (|| PodRef::of(facts), || card.clone());
    let is_on = |ids: &Ids| units_of(ids, cards).contains_key(card);
    if let Some(held) = in_use.elsewhere.iter().find(|held| held.card == *card) {
        let (resource, holder) = (held.resource.clone(), held.pod.clone());
        return Err(Refusal::HeldElsewhere { pod: pod(), card: claimed(), resource, holder });
    }
    if is_on(&in_use.exclusive) {
        return Err(Refusal::CardTaken { pod: pod(), card: claimed() });
    }
    if share.exclusive && is_on(&in_use.others) {
        return Err(Refusal::NotAlone { pod: pod(), card: claimed() });
    }
    Ok(())
}

/// Ids on one card, one for each unit of the share.
fn choose_on(
    claimed: &CardId,
    facts: &PodFacts,
    cards: &Cards,
    available: &Ids,
    in_use: &Ids,
    id_request: &IdRequest,
) -> Result<Ids, Refusal> {
    let (pod, claimed) = (PodRef::of(facts), claimed.clone());
    let card = cards
        .get(&claimed)
        .ok_or_else(|| Refusal::NoSuchCard { pod: pod.clone(), card: claimed.clone() })?;
    let must = &id_request.must_include;
    let is_free = |id: &&DeviceId| !in_use.contains(id) && !must.contains(id);
    let free = on(cards, &claimed, available);
    // Ids that the card no longer offers count as well: the card had more units when they were granted.
    let held = units_of(&in_use.union(must).cloned().collect(), cards);
    let room = card.units.saturating_sub(held.get(&claimed).copied().unwrap_or_default());
    let free: Vec<_> = free.iter().filter(is_free).take(room.0 as usize).collect();
    let missing = id_request.size.saturating_sub(must.len());
    // Whatever the kubelet offers: ids whose pod has just ended may still be Healthy in its list.
    if let (true, Some(why)) = (missing > 0, card.unhealthy) {
        return Err(Refusal::Unhealthy { pod, card: claimed, why });
    }
    if free.len() < missing {
        return Err(Refusal::CardFull {
            pod,
            card: claimed,
            free: free.len(),
            asked: id_request.size,
        });
    }
    Ok(must.iter().chain(free.into_iter().take(missing)).cloned().collect())
}

/// The ids that are on a card.
fn on(cards: &Cards, card: &CardId, ids: &Ids) -> Ids {
    ids.iter().filter(|id| cards.of(id).is_some_and(|on| on.uuid == *card)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::cards;
    use crate::fixtures::{A, B, ids, on_two_cards, simple, with_use};
    use crate::pods::container_requests;
    use crate::records::checkpoint::OtherPluginCard;
    use placement::gpu::CardUse;
    use placement::units::Units;

    fn choose_on(
        facts: &Arc<PodFacts>,
        available: &Ids,
        in_use: &Ids,
        must: &Ids,
    ) -> Result<Ids, Refusal> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let ask = container_requests(facts).next().unwrap();
        let id_request = IdRequest { size: ask.units.0 as usize, must_include: must.clone() };
        let in_use = IdsInUse { all: in_use.clone(), ..IdsInUse::default() };
        super::choose(facts, ask, &cards, available, &in_use, &id_request).map(|choice| choice.ids)
    }

    #[test]
    fn the_lowest_free_slots_of_the_claimed_card_are_chosen() {
        let available = ids(["aaaaaaaa-0", "bbbbbbbb-3", "bbbbbbbb-1", "bbbbbbbb-2"]);
        let chosen = choose_on(&simple("p", B, 2), &available, &Ids::new(), &Ids::new());
        assert_eq!(chosen, Ok(ids(["bbbbbbbb-1", "bbbbbbbb-2"])));
    }

    #[test]
    fn an_id_that_a_container_holds_is_not_free_even_if_the_kubelet_offers_it() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let chosen = choose_on(&simple("p", A, 2), &available, &ids(["aaaaaaaa-0"]), &Ids::new());
        assert!(matches!(chosen, Err(Refusal::CardFull { free: 1, asked: 2, .. })), "{chosen:?}");
    }

    #[test]
    fn ids_that_a_card_no_longer_offers_take_room_on_it() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        let held = ids(["aaaaaaaa-4", "aaaaaaaa-5", "aaaaaaaa-6", "bbbbbbbb-7"]);
        let chosen = |units| choose_on(&simple("p", A, units), &available, &held, &Ids::new());
        assert_eq!(chosen(1), Ok(ids(["aaaaaaaa-0"])));
        let full = chosen(2);
        assert!(matches!(full, Err(Refusal::CardFull { free: 1, asked: 2, .. })), "{full:?}");
    }

    proptest! {
        #[test]
        fn no_card_is_given_more_units_than_it_has(
            held in prop::collection::btree_set(0..8_u32, 0..8),
            own in prop::collection::btree_set(0..4_u32, 0..3),
            units in 1..5_u32,
        ) {
            let on_a = |slots: &BTreeSet<u32>| -> Ids {
                slots.iter().map(|slot| DeviceId::new("aaaaaaaa", *slot)).collect()
            };
            let held = &on_a(&held) - &on_a(&own);
            let (own, offered) = (on_a(&own), on_a(&(0..4).collect()));
            let in_use = &held | &own;
            prop_assume!(own.len() <= units as usize);
            if let Ok(chosen) = choose_on(&simple("p", A, units), &offered, &in_use, &own) {
                prop_assert_eq!(chosen.len(), units as usize);
                prop_assert!(chosen.is_disjoint(&held) && chosen.is_superset(&own));
                // Where the card has room no more, the pod gets none beyond what it has.
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
        assert!(matches!(elsewhere, Err(Refusal::NotOnClaimedCard(_))), "{elsewhere:?}");
    }

    fn choose_beside(facts: &Arc<PodFacts>, others: &Ids, exclusive: &Ids) -> Result<Ids, Refusal> {
        let (cards, ask) = (cards(&[(A, 4), (B, 4)]), container_requests(facts).next().unwrap());
        let id_request = IdRequest { size: ask.units.0 as usize, must_include: Ids::new() };
        let (others, exclusive) = (others.clone(), exclusive.clone());
        let in_use = IdsInUse { all: others.clone(), others, exclusive, ..IdsInUse::default() };
        let available = ids(["aaaaaaaa-1", "bbbbbbbb-1"]);
        super::choose(facts, ask, &cards, &available, &in_use, &id_request).map(|choice| choice.ids)
    }

    #[test]
    fn a_card_that_another_pod_has_for_itself_is_given_to_none() {
        let held = ids(["aaaaaaaa-0"]);
        let refused = choose_beside(&simple("p", A, 1), &held, &held);
        assert!(matches!(refused, Err(Refusal::CardTaken { .. })), "{refused:?}");
        assert_eq!(choose_beside(&simple("p", A, 1), &held, &Ids::new()), Ok(ids(["aaaaaaaa-1"])));
        assert_eq!(choose_beside(&simple("p", B, 1), &held, &held), Ok(ids(["bbbbbbbb-1"])));
    }

    #[test]
    fn a_pod_that_is_to_have_its_card_for_itself_gets_none_where_another_is() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let (held, whole) = (ids(["aaaaaaaa-0"]), |card| Arc::new(with_use("p", card, 1, whole)));
        let refused = choose_beside(&whole(A), &held, &Ids::new());
        assert!(matches!(refused, Err(Refusal::NotAlone { .. })), "{refused:?}");
        assert_eq!(choose_beside(&whole(B), &held, &Ids::new()), Ok(ids(["bbbbbbbb-1"])));
    }

    #[test]
    fn a_card_that_a_pod_holds_through_another_resource_is_given_to_none() {
        let (cards, pod) = (cards(&[(A, 4), (B, 4)]), simple("p", A, 1));
        let ask = container_requests(&pod).next().unwrap();
        let id_request = IdRequest { size: 1, must_include: Ids::new() };
        let available = ids(["aaaaaaaa-1", "bbbbbbbb-1"]);
        let chosen = |card: &str| {
            let elsewhere = vec![OtherPluginCard {
                pod: "whole".into(),
                container: "main".to_owned(),
                resource: "nvidia.com/gpu".to_owned(),
                card: card.into(),
            }];
            let in_use = IdsInUse { elsewhere, ..IdsInUse::default() };
            super::choose(&pod, ask, &cards, &available, &in_use, &id_request)
                .map(|choice| choice.ids)
        };
        assert!(matches!(chosen(A), Err(Refusal::HeldElsewhere { .. })));
        assert_eq!(chosen(B), Ok(ids(["aaaaaaaa-1"])));
    }

    #[test]
    fn a_container_that_the_claim_does_not_name_has_no_card() {
        let facts = simple("p", A, 2);
        let on_a = [(A.into(), CardShare::of(Units(2)))].into();
        assert_eq!(claimed_cards(&facts, "main"), Ok(&on_a));
        assert!(matches!(claimed_cards(&facts, "other"), Err(Refusal::NotClaimed { .. })));
    }

    #[test]
    fn a_container_on_two_cards_gets_its_share_of_each() {
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"]);
        let pod = on_two_cards("p", 4);
        let chosen = choose_on(&pod, &available, &ids(["bbbbbbbb-0"]), &Ids::new());
        let expected = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-1", "bbbbbbbb-2"]);
        assert_eq!(chosen, Ok(expected));
        let full = choose_on(&pod, &available, &ids(["bbbbbbbb-0", "bbbbbbbb-1"]), &Ids::new());
        assert!(matches!(full, Err(Refusal::CardFull { free: 1, asked: 2, .. })), "{full:?}");
    }
}
