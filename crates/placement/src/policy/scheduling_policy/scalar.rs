//! Values of single fields: read as they come, and checked where the field's path is known.

use std::fmt;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{self, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::super::fields::{Checked, fault};

/// A number or a text.
#[derive(Clone, Debug)]
pub(super) enum Scalar {
    Number(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "the text `{}`", text.escape_debug()),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }
}

/// The number, where `fits` accepts it. `wanted` says what would be right: `a number of at least 0`.
pub(super) fn number(
    field: &str,
    given: &Spanned<Scalar>,
    wanted: &str,
    fits: impl Fn(f64) -> bool,
) -> Checked<f64> {
    match given.value {
        Scalar::Number(number) if number.is_finite() && fits(number) => Ok(number),
        _ => Err(fault(given, field, format!("expected {wanted}, found {}", given.value))),
    }
}

/// The value of an enum. An unknown value is kept as the text of its error, which lists the valid ones.
#[derive(Clone, Debug)]
pub(super) struct EnumValue<T>(Result<T, String>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for EnumValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known: StrDeserializer<'_, Error> = text.as_str().into_deserializer();
        let word = T::deserialize(known).map_err(|error| {
            let error = error.to_string();
            let words = error.split_once(", expected ").map_or(&*error, |(_, words)| words);
            format!("expected {words}, found `{}`", text.escape_debug())
        });
        Ok(Self(word))
    }
}

impl<T: Clone> EnumValue<T> {
    /// The value, or `default` for an absent field.
    pub(super) fn or(field: &str, given: &Option<Spanned<Self>>, default: T) -> Checked<T> {
        given.as_ref().map_or(Ok(default), |given| Self::get(field, given))
    }

    /// The value.
    pub(super) fn get(field: &str, given: &Spanned<Self>) -> Checked<T> {
        given.value.0.clone().map_err(|problem| fault(given, field, problem))
    }
}
