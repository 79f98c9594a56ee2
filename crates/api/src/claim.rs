//! The pod annotation `gpu-claim`: which container is on which card with how many units.
//!
//! Any user who may edit the pod can write it, so a reader compares it with the pod's spec.

use std::collections::BTreeMap;

use placement::names::limits;
use placement::units::{CardId, Units};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::cards::MAX_NAME;
use crate::json::{self, JsonError, Unique};

/// Bytes of the text for each asking container: its name, a UUID, 10 digits and 9 signs.
const MAX_CONTAINER: usize = limits::LABEL + MAX_NAME + 10 + 9;

/// Container → card UUID → units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Claim {
    /// The asking containers, by name.
    #[schemars(with = "BTreeMap<String, BTreeMap<String, u32>>")]
    pub containers: BTreeMap<String, BTreeMap<CardId, Units>>,
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Unique(containers) =
            Unique::<String, Unique<CardId, Units>>::deserialize(deserializer)?;
        let containers = containers.into_iter().map(|(name, Unique(cards))| (name, cards));
        Ok(Self { containers: containers.collect() })
    }
}

impl Claim {
    /// Writes the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the annotation of a pod of which `asking` containers ask for units. A text that is longer than
    /// any that Bind writes for so many is refused unread.
    ///
    /// # Errors
    ///
    /// Where the text is too long, not of the schema, or names a container or a card twice.
    ///
    /// # Examples
    ///
    /// ```
    /// use api::claim::Claim;
    /// use placement::units::{CardId, Units};
    ///
    /// let claim = Claim::from_json(r#"{"main":{"GPU-7f2a":3}}"#, 1)?;
    /// assert_eq!(claim.containers["main"][&CardId::from("GPU-7f2a")], Units(3));
    /// assert_eq!(claim.to_json(), r#"{"main":{"GPU-7f2a":3}}"#);
    /// // A container that is named twice makes the text no claim.
    /// assert!(Claim::from_json(r#"{"main":{"GPU-7f2a":3},"main":{"GPU-0b11":1}}"#, 1).is_err());
    /// # Ok::<(), api::JsonError>(())
    /// ```
    pub fn from_json(text: &str, asking: usize) -> Result<Self, JsonError> {
        json::read(text, 2 + asking.saturating_mul(MAX_CONTAINER))
    }
}
