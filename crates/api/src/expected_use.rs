//! The pod annotation `expected-use`: what a pod will use, as its author states.
//!
//! Quantities are texts here; `cluster` reads them. Any user who may create the pod can write it. It has an effect on
//! that pod only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text. Two quantities take some 40.
pub const MAX_TEXT: usize = 256;

/// What the whole pod will use. An absent resource is estimated in another way.
///
/// # Examples
///
/// ```
/// use api::expected_use::ExpectedUse;
///
/// let expected = ExpectedUse::from_json(r#"{"cpu":"500m"}"#)?;
/// assert_eq!((expected.cpu.as_deref(), expected.memory), (Some("500m"), None));
/// // A misspelt resource is an error.
/// assert!(ExpectedUse::from_json(r#"{"mem":"1Gi"}"#).is_err());
/// # Ok::<(), api::JsonError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedUse {
    /// CPU, a Kubernetes quantity of cores such as `500m` or `1.5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Memory, a Kubernetes quantity of bytes such as `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

impl ExpectedUse {
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
