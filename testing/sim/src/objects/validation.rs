//! The rules that every object must keep before it is stored. Without them one bad object would break every client's
//! list, since clients expect names, labels and annotations of the right types.

use serde_json::Value;

use super::failure::Failure;
use super::kind::{EVENTS, Kind};
use crate::json::{name, namespace, text, uid};

/// Longest name of an object, in bytes.
const MAX_NAME: usize = 253;
/// The most bytes of keys and values that the annotations of an object may have together.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Whether metadata is an object, and spec and status are objects or absent. All other code relies on this.
///
/// # Errors
/// 400 where they are not.
pub(crate) fn check_shape(object: &Value) -> Result<(), Failure> {
    let optional = ["spec", "status"].map(|field| &object[field]);
    let ok = object["metadata"].is_object()
        && optional.iter().all(|part| part.is_null() || part.is_object());
    ok.then_some(()).ok_or_else(|| Failure::bad_request("the body is no object with metadata"))
}

/// Whether the object is of this kind, and its labels and annotations are maps of strings.
///
/// # Errors
/// Why not, beginning as the API server's text does.
pub(crate) fn check_type(kind: Kind, object: &Value) -> Result<(), String> {
    let name = given(object, "kind").unwrap_or(kind.name);
    let version = given(object, "apiVersion").unwrap_or(kind.api_version);
    let refusal = format!("{name} in version \"{version}\" cannot be handled as a {}", kind.name);
    if (name, version) != (kind.name, kind.api_version) {
        return Err(format!("{refusal}: it is of another kind"));
    }
    for field in ["labels", "annotations"] {
        let is_map_of_strings = match &object["metadata"][field] {
            Value::Null => true,
            Value::Object(entries) => entries.values().all(Value::is_string),
            _ => false,
        };
        if !is_map_of_strings {
            return Err(format!("{refusal}: metadata.{field} is no map of strings"));
        }
    }
    Ok(())
}

/// A field that is a text and not empty.
fn given<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object[field].as_str().filter(|text| !text.is_empty())
}

/// Whether a write's object is the one that its path names.
///
/// # Errors
/// 400 where it is another.
pub(crate) fn check_path(
    kind: Kind,
    object: &Value,
    path_namespace: &str,
    path_name: &str,
) -> Result<(), Failure> {
    if kind.namespaced && !["", path_namespace].contains(&namespace(object)) {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match name(object) {
        name if path_name.is_empty() || name == path_name => Ok(()),
        "" => Err(Failure::bad_request(format!(
            "the name of the object ({path_name} based on URL) was undeterminable: \
             name must be provided"
        ))),
        name => Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({path_name})"
        ))),
    }
}

/// Whether an object has the UID that a write wants, if it wants one.
///
/// # Errors
/// 409 where it has another.
pub(crate) fn check_uid(kind: Kind, object: &Value, wanted: &Value) -> Result<(), Failure> {
    if text(wanted).is_empty() || text(wanted) == uid(object) {
        return Ok(());
    }
    let key = match namespace(object) {
        "" => name(object).to_owned(),
        namespace => format!("{namespace}/{}", name(object)),
    };
    Err(Failure::other_uid(kind, &key, name(object), text(wanted), uid(object)))
}

/// Whether an object has the resource version that a write wants, if it wants one.
///
/// # Errors
/// 409 where it has another.
pub(crate) fn check_version(kind: Kind, object: &Value, wanted: &Value) -> Result<(), Failure> {
    if text(wanted).is_empty() || *wanted == object["metadata"]["resourceVersion"] {
        Ok(())
    } else {
        Err(Failure::modified(kind, name(object)))
    }
}

/// Whether a new object may have this name: a DNS subdomain (RFC 1123), for Events any text.
///
/// # Errors
/// 422 where it may not.
pub(crate) fn check_name(kind: Kind, name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return invalid_name(kind, name, "Required value: name or generateName is required");
    }
    if kind == EVENTS {
        return Ok(());
    }
    if name.len() > MAX_NAME {
        let why = format!("Invalid value: \"{name}\": must be no more than {MAX_NAME} characters");
        return invalid_name(kind, name, &why);
    }
    if !name.split('.').all(is_label) {
        return invalid_name(
            kind,
            name,
            &format!(
                "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character"
            ),
        );
    }
    Ok(())
}

/// Whether the annotations of an object that is written are short enough together. A binding's are not checked.
///
/// # Errors
/// 422 where they are too long.
pub(crate) fn check_annotations(kind: Kind, name: &str, object: &Value) -> Result<(), Failure> {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let bytes: usize = annotations.map(|(key, value)| key.len() + text(value).len()).sum();
    if bytes > MAX_ANNOTATIONS {
        let why =
            format!("metadata.annotations: Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        return Err(Failure::invalid(kind, name, &why));
    }
    Ok(())
}

fn invalid_name(kind: Kind, name: &str, why: &str) -> Result<(), Failure> {
    Err(Failure::invalid(kind, name, &format!("metadata.name: {why}")))
}

fn is_label(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('-')
        && !part.ends_with('-')
        && part
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}
