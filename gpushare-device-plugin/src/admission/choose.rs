//! Which ids a container gets: free ones on the card of its claim.
//!
//! Invariant: never an id of another card, and never one that a container holds by the records, even if
//! the kubelet offers it: the kubelet can forget ids that it is allocating
//! (kubernetes/kubernetes#137534).

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerAsk;
use placement::units::CardId;

use super::identify::Wanted;
use super::refusal::Refusal;
use crate::cards::ids::{DeviceId, Ids, first_few};
use crate::cards::{Card, Cards};
use crate::pods::PodRef;

/// Ids chosen for a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The pod being admitted.
    pub facts: Arc<PodFacts>,
    /// The name of the container being admitted.
    pub container: String,
    /// The card of the pod's claim, which all ids are on.
    pub card: CardId,
    /// As many ids as the kubelet asked for.
    pub ids: Ids,
}

/// The card that the pod's claim gives a container.
///
/// # Errors
/// Where the pod has no claim, one that does not match its spec, or more than one card for the container.
pub fn claimed_card(facts: &PodFacts, container: &str) -> Result<CardId, Refusal> {
    let pod = PodRef::of(facts);
    let claim = match facts.gpu.as_ref().ok().and_then(Option::as_ref).map(|gpu| &gpu.claim) {
        Some(Ok(Some(claim))) => claim,
        Some(Err(cause)) => return Err(Refusal::BadClaim { pod, cause: cause.clone() }),
        Some(Ok(None)) | None => return Err(Refusal::Unclaimed(pod)),
    };
    match claim.of(container) {
        Some(_) => Ok(claim.card().clone()),
        None => Err(Refusal::NotOneCard { pod, container: container.to_owned() }),
    }
}

/// Ids for `ask` on its claimed card: those that must be included, then the lowest free slots.
///
/// # Errors
/// Where there is no claim that counts, or the card is absent, unhealthy or full.
pub fn choose(
    facts: &Arc<PodFacts>,
    ask: &ContainerAsk,
    cards: &Cards,
    available: &Ids,
    in_use: &Ids,
    wanted: &Wanted,
) -> Result<Choice, Refusal> {
    let claimed = claimed_card(facts, &ask.name)?;
    let pod = PodRef::of(facts);
    let card = cards
        .get(&claimed)
        .ok_or_else(|| Refusal::NoSuchCard { pod: pod.clone(), card: claimed.clone() })?;
    let must = &wanted.must_include;
    if must.iter().any(|id| !is_on(cards, card, id)) {
        return Err(Refusal::NotOnOneCard(first_few(must)));
    }
    let free: Vec<_> = available
        .iter()
        .filter(|id| is_on(cards, card, id) && !in_use.contains(id) && !must.contains(id))
        .collect();
    let missing = wanted.size.saturating_sub(must.len());
    if let (true, Some(why)) = (free.len() < missing, card.unhealthy) {
        return Err(Refusal::Unhealthy { pod, card: claimed, why });
    }
    if free.len() < missing {
        return Err(Refusal::CardFull { pod, card: claimed, free: free.len(), asked: wanted.size });
    }
    let ids = must.iter().chain(free.into_iter().take(missing)).cloned().collect();
    Ok(Choice { facts: facts.clone(), container: ask.name.clone(), card: claimed, ids })
}

fn is_on(cards: &Cards, card: &Card, id: &DeviceId) -> bool {
    cards.of(id).is_some_and(|on| on.uuid == card.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::cards;
    use crate::fixtures::{A, B, ids, simple};
    use crate::pods::asks;

    fn choose_on(
        facts: &Arc<PodFacts>,
        available: &Ids,
        in_use: &Ids,
        must: &Ids,
    ) -> Result<Ids, Refusal> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let ask = asks(facts).next().unwrap();
        let wanted = Wanted { size: ask.units.0 as usize, must_include: must.clone() };
        choose(facts, ask, &cards, available, in_use, &wanted).map(|choice| choice.ids)
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
    fn ids_that_must_be_included_are_although_they_are_in_use() {
        let must = ids(["aaaaaaaa-3"]);
        let available = ids(["aaaaaaaa-0", "aaaaaaaa-3"]);
        assert_eq!(choose_on(&simple("p", A, 2), &available, &must, &must), Ok(available.clone()));
        let elsewhere = choose_on(&simple("p", B, 2), &available, &must, &must);
        assert!(matches!(elsewhere, Err(Refusal::NotOnOneCard(_))), "{elsewhere:?}");
    }

    #[test]
    fn a_container_without_exactly_one_claimed_card_has_none() {
        let facts = simple("p", A, 2);
        assert_eq!(claimed_card(&facts, "main"), Ok(A.into()));
        assert!(matches!(claimed_card(&facts, "other"), Err(Refusal::NotOneCard { .. })));
    }
}
