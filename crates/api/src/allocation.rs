//! The pod annotation `scheduler.framework.gpushare.allocation`, which Aliyun's `kubectl inspect gpushare` reads.
//!
//! Plimsoll writes it and believes nothing of it.

use std::collections::BTreeMap;

use placement::units::Units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// Bytes of the text: an object of annotations holds 256 KiB in all.
pub const MAX_TEXT: usize = 64 << 10;

/// Position in `spec.containers` → card index → units. Both keys are whole numbers, written as JSON strings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Allocation {
    /// The asking containers, by position.
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
    /// Where the text is too long, or not of the schema.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        json::read(text, MAX_TEXT)
    }
}
