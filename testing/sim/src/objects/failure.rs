//! Failed requests, as the `Status` objects that an API server answers with.

use serde_json::{Value, json};

use super::kind::Kind;

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// Kubernetes' machine-readable reason, e.g. `Conflict`.
    pub reason: &'static str,
    /// The text for people.
    pub message: String,
}

impl Failure {
    /// Any failure.
    #[must_use]
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    /// The answer of an overloaded API server.
    #[must_use]
    pub fn too_many_requests() -> Self {
        let message = "too many requests, please try again later";
        Self::new(429, "TooManyRequests", message)
    }

    /// The answer of an API server that has an error of its own, such as a lost etcd.
    #[must_use]
    pub fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// 409 on `resource`, which may carry a subresource.
    #[must_use]
    pub fn conflict(resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_found(kind: Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified()))
    }

    pub(crate) fn already_exists(kind: Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.qualified()))
    }

    /// A write that is based on an older version of the object.
    pub(crate) fn modified(kind: Kind, name: &str) -> Self {
        let why = "the object has been modified; \
                   please apply your changes to the latest version and try again";
        Self::conflict(&kind.qualified(), name, why)
    }

    /// A write for a deleted object of the same name. `key` is `NAMESPACE/NAME`, or the name alone.
    pub(crate) fn other_uid(kind: Kind, key: &str, name: &str, wanted: &str, found: &str) -> Self {
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{key}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, \
             UID in object meta: {found}",
            kind.plural
        );
        Self::conflict(&kind.qualified(), name, &why)
    }

    /// A deletion of a deleted object of the same name. Here the API server names the kind instead of the resource
    /// (`BeforeDelete` in registry/rest/delete.go).
    pub(crate) fn recreated(kind: Kind, name: &str, wanted: &str, found: &str) -> Self {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({found}). \
             The object might have been deleted and then recreated"
        );
        Self::conflict(kind.name, name, &why)
    }

    /// An object that breaks a rule. `why` begins with the field's path.
    pub(crate) fn invalid(kind: Kind, name: &str, why: &str) -> Self {
        Self::new(422, "Invalid", format!("{} \"{name}\" is invalid: {why}", kind.name))
    }

    /// A patch whose result is no object of its kind.
    pub(crate) fn unusable_patch(patch: &Value, why: &str) -> Self {
        let message = format!(" \"\" is invalid: patch: Invalid value: {patch}: {why}");
        Self::new(422, "Invalid", message)
    }

    /// A body whose type is not read here.
    pub(crate) fn unknown_format(found: &str, accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {} \
             (not {found})",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// A watch from a version before the history's first.
    pub(crate) fn too_old(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Self::new(410, "Expired", message)
    }

    /// The `Status` object.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.code == 429 {
            status["details"] = json!({"retryAfterSeconds": 1});
        }
        status
    }
}
