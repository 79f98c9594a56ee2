//! The pod annotation `scheduler.framework.gpushare.allocation`, which Aliyun's `kubectl inspect gpushare` reads.
//!
//! Plimsoll writes it and never reads it to decide.

use std::collections::BTreeMap;

use placement::units::Units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text: all annotations of an object together may have 256 KiB.
pub const MAX_TEXT: usize = 64 << 10;

/// The most bytes of the text for each share: a GPU's index, units, and signs.
pub const MAX_SHARE: usize = 10 + 10 + 4;

/// The most bytes of the text for each container, but for its shares: its position, and signs.
pub const MAX_CONTAINER: usize = 20 + 6;

/// Position in `spec.containers` → GPU index → units. Both keys are whole numbers, written as JSON strings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Allocation {
    /// The containers that request GPU memory, by position.
    #[schemars(with = "BTreeMap<usize, BTreeMap<u32, u32>>")]
    pub containers: BTreeMap<usize, BTreeMap<u32, Units>>,
}

impl Allocation {
    /// Writes the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// If the text is too long, or not of the schema.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        json::read(text, MAX_TEXT)
    }
}
