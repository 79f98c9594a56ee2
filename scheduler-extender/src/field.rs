//! Texts of a request that must be names of Kubernetes: they become parts of a path, and are kept.

use placement::names::limits;

/// A field that holds no name of Kubernetes.
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

fn is_of_label(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'
}

fn check(
    field: &'static str,
    form: &'static str,
    text: &str,
    limit: usize,
    is_legal: impl Fn(u8) -> bool,
) -> Result<(), FieldError> {
    let length = text.len();
    match (1..=limit).contains(&length) && text.bytes().all(is_legal) {
        true => Ok(()),
        false => Err(FieldError { field, form, limit, length }),
    }
}
