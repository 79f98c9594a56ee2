//! What an API server asks of every object before it stores it, in its own words: without it, one bad
//! object would break every real client's list.

use serde_json::Value;

use crate::error::Failure;
use crate::event::home;
use crate::kind::{EVENTS, Kind};
use crate::request::Request;

/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// Whether the body is an object of this kind, as Go's types would have it.
///
/// # Errors
/// The API server's words for why not.
pub(crate) fn typed(kind: Kind, object: &Value) -> Result<(), String> {
    let (own, own_version) = (kind.name, kind.api_version());
    let given = |field: &str| object[field].as_str().filter(|text| !text.is_empty());
    let (name, version) =
        (given("kind").unwrap_or(own), given("apiVersion").unwrap_or(&own_version));
    let unlike = |why: &str| {
        Err(format!("{name} in version \"{version}\" cannot be handled as a {own}: {why}"))
    };
    if (name, version) != (own, &own_version) {
        return unlike(&format!("only {own} in version \"{own_version}\" is taken here"));
    }
    for field in ["labels", "annotations"] {
        if let Some((found, wanted)) = no_texts(&object["metadata"][field]) {
            return unlike(&format!(
                "json: cannot unmarshal {found} into Go struct field ObjectMeta.metadata.{field} \
                 of type {wanted}"
            ));
        }
    }
    Ok(())
}

/// What is found where a map of texts should be, and what should be there.
fn no_texts(map: &Value) -> Option<(&'static str, &'static str)> {
    match map {
        Value::Null => None,
        Value::Object(entries) => {
            let other = entries.values().find(|value| !value.is_string())?;
            Some((go_name(other), "string"))
        }
        other => Some((go_name(other), "map[string]string")),
    }
}

fn go_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a write's object is the one that its path names.
///
/// # Errors
/// 400 where it is not.
pub(crate) fn addressed(kind: Kind, object: &Value, request: &Request) -> Result<(), Failure> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (wanted, name) = (request.name.as_str(), text("name"));
    if kind.namespaced && !["", request.namespace.as_str()].contains(&text("namespace")) {
        let why =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(why));
    }
    match name {
        _ if wanted.is_empty() || name == wanted => Ok(()),
        "" => Err(Failure::bad_request(format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        ))),
        _ => Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({wanted})"
        ))),
    }
}

/// Whether an object may be called so. Events may be called anything.
///
/// # Errors
/// 422 where it may not.
pub(crate) fn named(kind: Kind, name: &str) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::invalid(kind, name, &format!("metadata.name: {why}")));
    if name.is_empty() {
        return refused("Required value: name or generateName is required");
    }
    if home(kind) == EVENTS {
        return Ok(());
    }
    if name.len() > LONGEST_NAME {
        let why =
            format!("Invalid value: \"{name}\": must be no more than {LONGEST_NAME} characters");
        return refused(&why);
    }
    if !name.split('.').all(is_label) {
        return refused(&format!(
            "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ));
    }
    Ok(())
}

fn is_label(part: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.bytes().all(inside)
}
