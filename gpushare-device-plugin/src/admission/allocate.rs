//! Whether the ids of an Allocate may be granted, and which card they are on.
//!
//! Invariant: the card comes from the ids alone, so that the kubelet's records say on which card a
//! container really is. Ids are granted only where this plugin chose them for a claim on their card, or
//! where the kubelet hands them on from an init container to a container of the same pod that is
//! claimed on the same card.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerKind;

use super::choose::{Choice, claimed_card};
use super::refusal::{Refusal, list};
use crate::cards::{Card, Cards};
use crate::records::{GrantedPod, Ids, Records, asks};

/// The outcome of a GetPreferredAllocation. The kubelet admits one container at a time, so the next
/// Allocate is for the same container.
#[derive(Debug, Clone)]
pub struct Intent {
    /// How many ids the kubelet asked for.
    pub size: usize,
    /// The chosen ids, or why there are none.
    pub outcome: Result<Choice, Refusal>,
}

/// A container with the ids and the card that it is given.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The pod.
    pub facts: Arc<PodFacts>,
    /// The container.
    pub container: String,
    /// The card.
    pub card: Card,
    /// The ids.
    pub ids: Ids,
}

/// Decides on an Allocate of `ids`.
///
/// # Errors
/// Where the ids were not chosen for a claim on their card. After a GetPreferredAllocation without ids
/// the kubelet picks some at random; the error then says why none were chosen.
pub fn decide(
    ids: &Ids,
    intent: Option<&Intent>,
    records: &Records,
    cards: &Cards,
) -> Result<Grant, Refusal> {
    grant(ids, intent, records, cards).map_err(|error| match intent {
        Some(Intent { size, outcome: Err(refusal) }) if *size == ids.len() => refusal.clone(),
        _ => error,
    })
}

fn grant(
    ids: &Ids,
    intent: Option<&Intent>,
    records: &Records,
    cards: &Cards,
) -> Result<Grant, Refusal> {
    let card = card_of(ids, cards)?;
    let granted = |facts: &Arc<PodFacts>, container: &str| Grant {
        facts: facts.clone(),
        container: container.to_owned(),
        card: card.clone(),
        ids: ids.clone(),
    };
    if let Some(choice) = chosen(intent, ids) {
        return Ok(granted(&choice.facts, &choice.container));
    }
    let handed_on =
        |pod: &GrantedPod| handed_on(pod, ids, card).map(|name| granted(&pod.facts, name));
    let found = records.all_granted().find_map(handed_on);
    found.ok_or_else(|| Refusal::NotChosen(list(ids)))
}

/// The one card that all ids are on.
///
/// # Errors
/// Where they are on several cards, or one of them is on none.
pub fn card_of<'a>(ids: &Ids, cards: &'a Cards) -> Result<&'a Card, Refusal> {
    let none = || Refusal::NotOnOneCard(list(ids));
    let mut on = ids.iter().map(|id| cards.of(id).ok_or_else(none));
    let first = on.next().ok_or_else(none)??;
    for card in on {
        if card?.uuid != first.uuid {
            return Err(none());
        }
    }
    Ok(first)
}

fn chosen<'a>(intent: Option<&'a Intent>, ids: &Ids) -> Option<&'a Choice> {
    intent?.outcome.as_ref().ok().filter(|choice| choice.ids == *ids)
}

/// The container of `pod` that takes over these ids from its init containers, or that was granted
/// exactly these already.
fn handed_on<'a>(pod: &'a GrantedPod, ids: &Ids, card: &Card) -> Option<&'a str> {
    let is_init = |name: &str| {
        asks(&pod.facts).any(|ask| ask.name == name && ask.kind == ContainerKind::Init)
    };
    let inits = pod.containers.iter().filter(|(name, _)| is_init(name)).flat_map(|(_, held)| held);
    let of_inits: Ids = inits.cloned().collect();
    let claimed_here =
        |name: &str| claimed_card(&pod.facts, name).is_ok_and(|claimed| claimed == card.uuid);
    if ids.is_subset(&of_inits) {
        let next = pod.pending().next().filter(|ask| ask.units.0 as usize == ids.len());
        if let Some(ask) = next.filter(|ask| claimed_here(&ask.name)) {
            return Some(&ask.name);
        }
    }
    pod.containers.iter().find(|(_, held)| *held == ids).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::cards;
    use crate::fixtures::{A, B, ids, simple, with_init};

    fn chose(facts: &Arc<PodFacts>, card: &str, chosen: &Ids) -> Intent {
        let (container, card) = ("main".to_owned(), card.into());
        let choice = Choice { facts: facts.clone(), container, card, ids: chosen.clone() };
        Intent { size: chosen.len(), outcome: Ok(choice) }
    }

    fn decide_on(
        ids: &Ids,
        intent: Option<&Intent>,
        records: &Records,
    ) -> Result<(String, String), Refusal> {
        let grant = decide(ids, intent, records, &cards(&[(A, 4), (B, 4)]))?;
        Ok((grant.container, grant.card.uuid.to_string()))
    }

    #[test]
    fn only_chosen_ids_are_granted() {
        let chosen = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let intent = chose(&simple("p", A, 2), A, &chosen);
        let granted = decide_on(&chosen, Some(&intent), &Records::default());
        assert_eq!(granted, Ok(("main".to_owned(), A.to_owned())));
        let others = ids(["aaaaaaaa-0", "aaaaaaaa-2"]);
        let refused = decide_on(&others, Some(&intent), &Records::default());
        assert_eq!(refused, Err(Refusal::NotChosen("aaaaaaaa-0, aaaaaaaa-2".to_owned())));
        assert!(decide_on(&chosen, None, &Records::default()).is_err(), "none were chosen");
    }

    #[test]
    fn ids_of_two_cards_or_of_none_are_refused() {
        let records = Records::default();
        for wrong in [
            ids(["aaaaaaaa-0", "bbbbbbbb-0"]),
            ids(["cccccccc-0"]),
            ids(["aaaaaaaa-4"]),
            Ids::new(),
        ] {
            assert!(
                matches!(decide_on(&wrong, None, &records), Err(Refusal::NotOnOneCard(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn random_ids_are_refused_with_the_reason_why_none_were_chosen() {
        let why = Refusal::NoPodAsks { size: 2 };
        let intent = Intent { size: 2, outcome: Err(why.clone()) };
        let random = ids(["aaaaaaaa-0", "bbbbbbbb-3"]);
        assert_eq!(decide_on(&random, Some(&intent), &Records::default()), Err(why));
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
    fn a_repeated_allocate_gets_the_same_card() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        assert_eq!(
            decide_on(&ids(["aaaaaaaa-0"]), None, &records),
            Ok(("main".to_owned(), A.to_owned()))
        );
    }
}
