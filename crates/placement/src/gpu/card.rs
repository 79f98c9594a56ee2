//! A card as its node reports it, and the codec of the `gpu-cards` annotation.
//!
//! Schema: a JSON list of objects `{uuid, index, model, memoryMiB, units, numaNode?, healthy,
//! pods}`, where `pods` maps pod UID to the units that the kubelet's own records put on the card.
//! The annotation is the node's claim about itself: untrusted, bounded, checked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{CardId, MiB, PodUid, Units};

/// More cards than any machine holds; an annotation with more is refused.
const MAX_CARDS: usize = 64;

/// One GPU card of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Card {
    /// NVML's UUID, the card's lasting name.
    pub uuid: CardId,
    /// NVML's index on this boot; what Aliyun's annotations speak of.
    pub index: u32,
    /// The product's name, e.g. `NVIDIA A10`.
    pub model: String,
    /// The card's memory.
    #[serde(rename = "memoryMiB")]
    pub memory: MiB,
    /// Units of it that pods can ask for.
    pub units: Units,
    /// The NUMA node that the card is attached to, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Whether pods may be placed on it now.
    pub healthy: bool,
    /// Units that the kubelet's records say each pod holds here.
    #[serde(default)]
    pub pods: BTreeMap<PodUid, Units>,
}

/// Why a `gpu-cards` annotation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CardsError {
    /// Not JSON of the schema.
    #[error("not a list of cards: {0}")]
    Json(String),
    /// Too many cards.
    #[error("{0} cards, where at most {MAX_CARDS} are accepted")]
    TooMany(usize),
    /// Two entries with one UUID.
    #[error("card {0} is listed twice")]
    Twice(CardId),
}

/// Writes the annotation.
pub fn cards_to_json(cards: &[Card]) -> String {
    // Maps with string keys and plain fields: serialising them cannot fail.
    serde_json::to_string(cards).unwrap_or_default()
}

/// Reads the annotation.
///
/// # Errors
///
/// Says what is wrong; the caller keeps the last good list.
pub fn cards_from_json(text: &str) -> Result<Vec<Card>, CardsError> {
    let mut cards: Vec<Card> =
        serde_json::from_str(text).map_err(|e| CardsError::Json(e.to_string()))?;
    if cards.len() > MAX_CARDS {
        return Err(CardsError::TooMany(cards.len()));
    }
    cards.sort_by_key(|card| card.index);
    for (i, card) in cards.iter().enumerate() {
        if cards[..i].iter().any(|other| other.uuid == card.uuid) {
            return Err(CardsError::Twice(card.uuid.clone()));
        }
    }
    Ok(cards)
}
