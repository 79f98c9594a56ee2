//! Reading untyped JSON: what is missing or of another type reads as empty.

use serde_json::Value;

/// A string; empty where it is something else.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The elements of a list; none where it is something else.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// An object's name.
pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// An object's namespace; empty for kinds without.
pub(crate) fn namespace(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

/// An object's UID.
pub(crate) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}
