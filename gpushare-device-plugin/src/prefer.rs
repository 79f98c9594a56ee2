//! Which ids a container gets: free ones on the card of its claim.
//!
//! Invariant: never an id of another card, and never one that the kubelet's records show in somebody's hands, whatever
//! the kubelet says is available: its own account can lose ids in flight (kubernetes/kubernetes#137534).

use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::ContainerAsk;
use placement::units::CardId;

use crate::cards::{Card, Cards};
use crate::identify::Wanted;
use crate::pods::PodRef;
use crate::records::Ids;
use crate::refusal::Refusal;

/// Ids chosen for a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The pod.
    pub facts: Arc<PodFacts>,
    /// The container.
    pub container: String,
    /// The claimed card.
    pub card: CardId,
    /// The ids.
    pub ids: Ids,
}

/// The card that a container's claim names.
///
/// # Errors
/// Where the pod has no claim that counts, or not one card in it.
pub fn claimed_card(facts: &PodFacts, container: &str) -> Result<CardId, Refusal> {
    let pod = PodRef::of(facts);
    let claim = match facts.gpu.as_ref().ok().and_then(Option::as_ref).map(|gpu| &gpu.claim) {
        Some(Ok(Some(claim))) => claim,
        Some(Err(source)) => return Err(Refusal::BadClaim { pod, source: source.clone() }),
        Some(Ok(None)) | None => return Err(Refusal::Unclaimed(pod)),
    };
    let mut cards = claim.of(container);
    match (cards.next(), cards.next()) {
        (Some((card, _)), None) => Ok(card.clone()),
        _ => Err(Refusal::NotOneCard { pod, container: container.to_owned() }),
    }
}

/// Ids for `ask` on its claimed card: those it must include, then the lowest free slots.
///
/// # Errors
/// Where the claim or the card does not allow it.
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
        return Err(Refusal::NotOnOneCard(crate::refusal::list(must)));
    }
    let free: Vec<_> = available
        .iter()
        .filter(|id| is_on(cards, card, id) && !in_use.contains(id) && !must.contains(id))
        .collect();
    let missing = wanted.size.saturating_sub(must.len());
    if free.len() < missing {
        return Err(Refusal::CardFull { pod, card: claimed, free: free.len(), asked: wanted.size });
    }
    let ids = must.iter().chain(free.into_iter().take(missing)).cloned().collect();
    Ok(Choice { facts: facts.clone(), container: ask.name.clone(), card: claimed, ids })
}

fn is_on(cards: &Cards, card: &Card, id: &crate::ids::DeviceId) -> bool {
    cards.of(id).is_some_and(|on| on.uuid == card.uuid)
}
