//! Checks of request fields that must be Kubernetes names: they become parts of URL paths, and are kept in memory.

use placement::names::{is_of_label, limits};

/// A field that is not a valid Kubernetes name.
#[derive(Debug, thiserror::Error)]
#[error("{field} must be {form} of 1 to {limit} bytes; this one has {length}")]
pub(crate) struct FieldError {
    field: &'static str,
    form: &'static str,
    limit: usize,
    length: usize,
}

/// A namespace: a DNS label.
pub(crate) fn label(name: &'static str, text: &str) -> Result<(), FieldError> {
    check(name, "a DNS label", text, limits::LABEL, is_of_label)
}

/// A pod's or node's name: a DNS subdomain.
pub(crate) fn subdomain(name: &'static str, text: &str) -> Result<(), FieldError> {
    check(name, "a DNS subdomain", text, limits::NAME, |b| is_of_label(b) || b == b'.')
}

/// A UID.
pub(crate) fn uid(name: &'static str, text: &str) -> Result<(), FieldError> {
    check(name, "a UID", text, limits::UID, |b| b.is_ascii_graphic())
}

fn check(
    field: &'static str,
    form: &'static str,
    text: &str,
    limit: usize,
    is_legal: impl Fn(u8) -> bool,
) -> Result<(), FieldError> {
    let length = text.len();
    if (1..=limit).contains(&length) && text.bytes().all(is_legal) {
        Ok(())
    } else {
        Err(FieldError { field, form, limit, length })
    }
}
