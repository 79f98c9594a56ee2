//! Reading a bounded JSON text.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The most characters of serde's message in an error: it may quote the text, and logs contain the error.
const MESSAGE: usize = 200;

/// Why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Longer than any text that Plimsoll writes; it was not parsed.
    #[error("{length} bytes, where at most {limit} are accepted")]
    TooLong {
        /// Bytes of the text.
        length: usize,
        /// Bytes accepted.
        limit: usize,
    },
    /// Not JSON of the schema.
    #[error("{0}")]
    Malformed(String),
}

/// Parses `text`, unless it is longer than `limit` bytes.
pub(crate) fn read<T: DeserializeOwned>(text: &str, limit: usize) -> Result<T, JsonError> {
    if text.len() > limit {
        return Err(JsonError::TooLong { length: text.len(), limit });
    }
    serde_json::from_str(text)
        .map_err(|error| JsonError::Malformed(error.to_string().chars().take(MESSAGE).collect()))
}

/// Writes fields, lists, and maps whose keys are strings or numbers, which cannot fail.
pub(crate) fn write(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A JSON object in which each key occurs once. serde itself keeps the last of two values.
pub(crate) struct Unique<K, V>(pub(crate) BTreeMap<K, V>);

impl<'de, K, V> Deserialize<'de> for Unique<K, V>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<K, V>(PhantomData<(K, V)>);

impl<'de, K, V> Visitor<'de> for UniqueVisitor<K, V>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    type Value = Unique<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = access.next_entry()? {
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key stands in an object twice"));
            }
        }
        Ok(Unique(map))
    }
}
