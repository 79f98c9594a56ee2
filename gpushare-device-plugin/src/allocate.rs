//! Whether ids may be handed out, and on which card they are. Pure and quick: the kubelet admits nothing else
//! meanwhile, and a List during Allocate makes it forget ids in flight (kubernetes/kubernetes#137534).
//!
//! Invariant: the card comes from the ids alone, so that the kubelet's account is the physical truth; ids are granted
//! only where this plugin chose them for a claim on that very card, or where the kubelet hands them on from an init
//! container of the same pod, whose next container is claimed there too.

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerKind;

use crate::cards::{Card, Cards};
use crate::prefer::{Choice, claimed_card};
use crate::records::{GivenPod, Ids, Records, asks};
use crate::refusal::{Refusal, list};

/// What the last GetPreferredAllocation came to. The kubelet admits one container at a time, so the next Allocate is
/// its outcome.
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
/// Where the ids are not on one card, or not those of a claim on it.
pub fn decide(
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
    for pod in records.all_given() {
        if let Some(container) = handed_on(pod, ids, card) {
            return Ok(granted(&pod.facts, container));
        }
    }
    Err(refusal(intent, ids))
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

/// The container of `pod` that takes these ids over from its init containers, or that holds exactly these already.
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

/// Ids of nobody's choosing: what the last request came to says why, if it was this one.
fn refusal(intent: Option<&Intent>, ids: &Ids) -> Refusal {
    match intent {
        Some(Intent { size, outcome: Err(refusal) }) if *size == ids.len() => refusal.clone(),
        _ => Refusal::NotChosen(list(ids)),
    }
}
