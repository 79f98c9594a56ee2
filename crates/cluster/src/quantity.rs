//! Kubernetes quantities of an object's JSON, read as whole numbers, or as amounts.

use std::collections::BTreeMap;

use placement::quantity::{BytesError, QuantityError, amount, bytes, count};
use placement::resources::PerResource;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Quantities by resource.
pub(crate) type Quantities = BTreeMap<String, Quantity>;

/// A quantity; the API server writes strings, people and tests numbers too.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Quantity {
    Text(String),
    Number(serde_json::Number),
    /// Neither; it cannot be read.
    Other(IgnoredAny),
}

impl Quantity {
    /// The quantity as a whole number.
    pub(crate) fn count(&self) -> Result<u32, QuantityError> {
        match self {
            Self::Text(text) => count(text),
            Self::Number(number) => count(&number.to_string()),
            Self::Other(_) => Err(QuantityError("another type".to_owned())),
        }
    }

    /// The quantity as bytes.
    pub(crate) fn bytes(&self) -> Result<u64, BytesError> {
        match self {
            Self::Text(text) => bytes(text),
            Self::Number(number) => bytes(&number.to_string()),
            Self::Other(_) => Err(BytesError("another type".to_owned())),
        }
    }

    /// The quantity as a number; `None` where it cannot be read.
    pub(crate) fn amount(&self) -> Option<f64> {
        match self {
            Self::Text(text) => amount(text),
            Self::Number(number) => amount(&number.to_string()),
            Self::Other(_) => None,
        }
    }
}

/// CPU and memory of `quantities`, in cores and bytes; `None` where one is not there or cannot be read.
pub(crate) fn amounts(quantities: &Quantities) -> PerResource<Option<f64>> {
    PerResource {
        cpu: quantities.get("cpu").and_then(Quantity::amount),
        memory: quantities.get("memory").and_then(Quantity::amount),
    }
}
