//! The `gpu-share` node annotation: what is allocated and used on each card, for dashboards.
//!
//! Schema: `{"time": "<RFC 3339>", "cards": [{uuid, units, allocated, usedMiB?, utilisation?}]}`.
//! What is unknown is absent, never 0.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::units::{CardId, MiB, Units};

/// One card's share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CardShare {
    /// The card.
    pub uuid: CardId,
    /// All its units.
    pub units: Units,
    /// Units that pods hold.
    pub allocated: Units,
    /// Memory in use as measured, where known.
    #[serde(rename = "usedMiB", default, skip_serializing_if = "Option::is_none")]
    pub used: Option<MiB>,
    /// Fraction of time the card was busy, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
}

/// A node's cards at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeShare {
    /// When this was true.
    pub time: Timestamp,
    /// The cards, by index.
    pub cards: Vec<CardShare>,
}

impl NodeShare {
    /// Writes the annotation.
    pub fn to_json(&self) -> String {
        // Plain fields: serialising them cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// Where the text is not of the schema.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}
