//! Whether ids may be handed out, and on which card they are. Pure and quick: the kubelet admits
//! nothing else meanwhile, and a List during Allocate makes it forget ids in flight
//! (kubernetes/kubernetes#137534).
//!
//! Invariant: the card comes from the ids alone, so that the kubelet's account is the physical
//! truth; ids are granted only where this plugin chose them for a claim on that very card, or where
//! the kubelet hands them on from an init container of the same pod, whose next container is
//! claimed there too.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerKind;

use crate::cards::{Card, Cards};
use crate::prefer::{Choice, claimed_card};
use crate::records::{GivenPod, Ids, Records, asks};
use crate::refusal::{Refusal, list};

/// What the last GetPreferredAllocation came to. The kubelet admits one container at a time, so the
/// next Allocate is its outcome.
#[derive(Debug, Clone)]
pub struct Intent {
    /// Ids asked for.
    pub size: usize,
    /// Ids chosen, or why none.
    pub outcome: Result<Choice, Refusal>,
}

/// A container and the card that it is given.
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
/// Where the ids are not those of a claim on their card. Where none had been chosen, the kubelet
/// picked some at random: then the reason is why none had been chosen, whatever those happen to be.
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
        |pod: &GivenPod| handed_on(pod, ids, card).map(|name| granted(&pod.facts, name));
    let found = records.all_given().find_map(handed_on);
    found.ok_or_else(|| Refusal::NotChosen(list(ids)))
}

/// The one card that all ids are on.
///
/// # Errors
/// Where there is no such card.
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

/// The container of `pod` that takes these ids over from its init containers, or that holds exactly
/// these already.
fn handed_on<'a>(pod: &'a GivenPod, ids: &Ids, card: &Card) -> Option<&'a str> {
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
    use crate::cards::tests::cards;
    use crate::facts_for_tests::{A, B, ids, simple, with_init};

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
    fn chosen_ids_are_granted_and_others_are_not() {
        let chosen = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let intent = chose(&simple("p", A, 2), A, &chosen);
        let granted = decide_on(&chosen, Some(&intent), &Records::default());
        assert_eq!(granted, Ok(("main".to_owned(), A.to_owned())));
        let others = ids(["aaaaaaaa-0", "aaaaaaaa-2"]);
        let refused = decide_on(&others, Some(&intent), &Records::default());
        assert_eq!(refused, Err(Refusal::NotChosen("aaaaaaaa-0, aaaaaaaa-2".to_owned())));
        assert!(decide_on(&chosen, None, &Records::default()).is_err(), "nothing was chosen");
    }

    #[test]
    fn ids_of_two_cards_or_of_none_are_refused() {
        let records = Records::default();
        for strange in [
            ids(["aaaaaaaa-0", "bbbbbbbb-0"]),
            ids(["cccccccc-0"]),
            ids(["aaaaaaaa-4"]),
            Ids::new(),
        ] {
            assert!(
                matches!(decide_on(&strange, None, &records), Err(Refusal::NotOnOneCard(_))),
                "{strange:?}"
            );
        }
    }

    #[test]
    fn random_ids_are_refused_for_the_reason_that_none_were_chosen() {
        let why = Refusal::NobodyAsks { size: 2 };
        let intent = Intent { size: 2, outcome: Err(why.clone()) };
        let random = ids(["aaaaaaaa-0", "bbbbbbbb-3"]);
        assert_eq!(decide_on(&random, Some(&intent), &Records::default()), Err(why));
    }

    #[test]
    fn the_next_container_takes_over_from_its_init_container_and_only_that_many() {
        let pod = with_init("p", B, 3, 2);
        let mut records = Records::default();
        records.give(&pod, "init", ids(["bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"]));
        let subset = ids(["bbbbbbbb-0", "bbbbbbbb-2"]);
        assert_eq!(decide_on(&subset, None, &records), Ok(("main".to_owned(), B.to_owned())));
        assert!(
            decide_on(&ids(["bbbbbbbb-0"]), None, &records).is_err(),
            "not what the next one asks for"
        );
        assert!(
            decide_on(&ids(["bbbbbbbb-0", "bbbbbbbb-3"]), None, &records).is_err(),
            "not all of its init's"
        );
    }

    #[test]
    fn a_repeated_question_gets_the_same_answer() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.give(&pod, "main", ids(["aaaaaaaa-0"]));
        assert_eq!(
            decide_on(&ids(["aaaaaaaa-0"]), None, &records),
            Ok(("main".to_owned(), A.to_owned()))
        );
    }
}
