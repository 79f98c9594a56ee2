//! A pod annotation with one value for all containers that request GPU memory, or a JSON object with a value for each.
//!
//! The values are texts here; `cluster` reads them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use crate::json::{self, JsonError, Unique};

/// The most bytes of the text: enough for some hundred containers.
pub const MAX_TEXT: usize = 8 << 10;

/// Values by container.
///
/// # Examples
///
/// ```
/// use api::per_container::PerContainer;
///
/// assert_eq!(PerContainer::read("2 exclusive")?.of("main"), Some("2 exclusive"));
/// let each = PerContainer::read(r#"{"main":2,"side":"exclusive"}"#)?;
/// assert_eq!((each.of("main"), each.of("side"), each.of("log")), (Some("2"), Some("exclusive"), None));
/// assert!(PerContainer::read(r#"{"main":[2]}"#).is_err());
/// # Ok::<(), api::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerContainer {
    /// The same for all.
    All(String),
    /// For each that is named.
    Each(BTreeMap<String, String>),
}

impl PerContainer {
    /// Reads the annotation: an object where it begins with a brace.
    ///
    /// # Errors
    ///
    /// If the text is too long, or begins with a brace and is not an object of numbers and strings with each name once.
    pub fn read(text: &str) -> Result<Self, JsonError> {
        let value = text.trim();
        if value.starts_with('{') {
            let Unique(values) = json::read::<Unique<String, Value>>(value, MAX_TEXT)?;
            let each = values.into_iter().map(|(name, Value(text))| (name, text)).collect();
            return Ok(Self::Each(each));
        }
        if value.len() > MAX_TEXT {
            return Err(JsonError::TooLong { length: value.len(), limit: MAX_TEXT });
        }
        Ok(Self::All(value.to_owned()))
    }

    /// The value of a container.
    pub fn of(&self, container: &str) -> Option<&str> {
        match self {
            Self::All(value) => Some(value),
            Self::Each(values) => values.get(container).map(String::as_str),
        }
    }

    /// The containers that are named.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let each = match self {
            Self::All(_) => None,
            Self::Each(values) => Some(values),
        };
        each.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }
}

/// A number or a string, as a text.
struct Value(String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a string")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value(value.to_owned()))
    }
}
