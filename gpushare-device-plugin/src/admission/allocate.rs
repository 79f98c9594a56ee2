//! Whether the ids of an Allocate may be granted, and which card they are on.
//!
//! Invariant: the card comes from the ids alone, so that the kubelet's records say on which card a
//! container really is. Ids are granted only where this plugin chose them for a claim on their card, or
//! where the kubelet hands them on from an init container to a container of the same pod that is
//! claimed on the same card.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerAsk, ContainerKind};

use super::choose::{Choice, claimed_card};
use super::refusal::Refusal;
use crate::cards::ids::{Ids, first_few};
use crate::cards::{Card, Cards};
use crate::pods::asks;
use crate::records::{GrantedPod, Records};

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
    /// The pod as it was when its ids were chosen.
    pub facts: Arc<PodFacts>,
    /// The container's name.
    pub container: String,
    /// The one card that all ids are on.
    pub card: Card,
    /// The ids of the Allocate call, one for each unit.
    pub ids: Ids,
}

/// Decides on an Allocate of `ids`. `intent` is the outcome of the GetPreferredAllocation before it; the
/// kubelet calls Allocate without one only for ids that it hands on from an init container.
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
    // One of another size was not followed by its Allocate: the kubelet died.
    match intent.filter(|intent| intent.size == ids.len()).map(|intent| &intent.outcome) {
        Some(Err(refusal)) => Err(refusal.clone()),
        Some(Ok(choice)) => {
            let card = card_of(ids, cards)?;
            let chosen =
                (choice.ids == *ids).then(|| grant(&choice.facts, &choice.container, ids, card));
            chosen.ok_or_else(|| Refusal::NotChosen(first_few(ids)))
        }
        None => {
            let card = card_of(ids, cards)?;
            let taken_over =
                |pod: &GrantedPod| Some(grant(&pod.facts, taking_over(pod, ids, card)?, ids, card));
            let found = records.all_granted().find_map(taken_over);
            found.ok_or_else(|| Refusal::NotChosen(first_few(ids)))
        }
    }
}

fn grant(facts: &Arc<PodFacts>, container: &str, ids: &Ids, card: &Card) -> Grant {
    let (facts, container) = (facts.clone(), container.to_owned());
    Grant { facts, container, card: card.clone(), ids: ids.clone() }
}

/// The one card that all ids are on.
///
/// # Errors
/// Where they are on several cards, or one of them is on none.
pub fn card_of<'a>(ids: &Ids, cards: &'a Cards) -> Result<&'a Card, Refusal> {
    let none = || Refusal::NotOnOneCard(first_few(ids));
    let mut on = ids.iter().map(|id| cards.of(id).ok_or_else(none));
    let first = on.next().ok_or_else(none)??;
    for card in on {
        if card?.uuid != first.uuid {
            return Err(none());
        }
    }
    Ok(first)
}

/// The container of `pod` that takes over these ids from its init containers: the next without a grant,
/// or, where the kubelet died before it recorded a grant, any that asks for that many on this card.
fn taking_over<'a>(pod: &'a GrantedPod, ids: &Ids, card: &Card) -> Option<&'a str> {
    let is_init = |name: &str| {
        asks(&pod.facts).any(|ask| ask.name == name && ask.kind == ContainerKind::Init)
    };
    let inits = pod.containers.iter().filter(|(name, _)| is_init(name)).flat_map(|(_, held)| held);
    if !ids.is_subset(&inits.cloned().collect()) {
        return None;
    }
    let fits = |ask: &&ContainerAsk| {
        let claimed = claimed_card(&pod.facts, &ask.name);
        ask.units.0 as usize == ids.len() && claimed.is_ok_and(|claimed| claimed == card.uuid)
    };
    let next = pod.pending().next().filter(fits);
    next.or_else(|| asks(&pod.facts).find(fits)).map(|ask| ask.name.as_str())
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
    fn ids_of_an_earlier_pod_are_not_granted_after_a_preference() {
        let (dead, pod) = (simple("dead", A, 2), simple("p", B, 2));
        let held = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let mut records = Records::default();
        records.grant(&dead, "main", held.clone());
        let why = Refusal::NoPodAsks { size: 2 };
        let refused = Intent { size: 2, outcome: Err(why.clone()) };
        assert_eq!(decide_on(&held, Some(&refused), &records), Err(why));
        let chosen = chose(&pod, B, &ids(["bbbbbbbb-0", "bbbbbbbb-1"]));
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
        let refused = Intent { size: 2, outcome: Err(why.clone()) };
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
    fn a_repeated_allocate_of_handed_on_ids_gets_the_same_card() {
        let pod = with_init("p", A, 3, 2);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"]));
        records.grant(&pod, "main", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        let others = ids(["aaaaaaaa-1", "aaaaaaaa-2"]);
        assert_eq!(decide_on(&others, None, &records), Ok(("main".to_owned(), A.to_owned())));
    }
}
