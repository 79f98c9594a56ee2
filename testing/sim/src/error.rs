//! The API's failures, as the `Status` objects that a real API server answers with.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use crate::kind::Kind;

/// A failed request: status code, machine-readable reason, message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// A reason of Kubernetes, e.g. `Conflict`.
    pub reason: &'static str,
    /// What people read.
    pub message: String,
}

impl Failure {
    /// Any failure.
    #[must_use]
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    /// What an overloaded API server says.
    #[must_use]
    pub fn too_many_requests() -> Self {
        let message = "too many requests, please try again later";
        Self::new(429, "TooManyRequests", message)
    }

    /// What an API server says that has lost its etcd.
    #[must_use]
    pub fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// 409 on `resource` (which may carry a subresource), in the API server's words.
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
        let message = format!("{} \"{name}\" not found", kind.qualified());
        Self::new(404, "NotFound", message)
    }

    pub(crate) fn already_exists(kind: Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message)
    }

    /// A write based on an older version of the object.
    pub(crate) fn modified(kind: Kind, name: &str) -> Self {
        let why = "the object has been modified; \
                   please apply your changes to the latest version and try again";
        Self::conflict(&kind.qualified(), name, why)
    }

    /// A write meant for an object of the same name that is gone.
    pub(crate) fn other_uid(kind: Kind, key: &str, name: &str, wanted: &str, found: &str) -> Self {
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{key}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, \
             UID in object meta: {found}",
            kind.plural
        );
        Self::conflict(&kind.qualified(), name, &why)
    }

    /// A deletion meant for an object of the same name that is gone. The API server names the kind
    /// here instead of the resource (`BeforeDelete` in registry/rest/delete.go).
    pub(crate) fn recreated(kind: Kind, name: &str, wanted: &str, found: &str) -> Self {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({found}). \
             The object might have been deleted and then recreated"
        );
        Self::conflict(&kind.title(), name, &why)
    }

    /// An object that breaks a rule; `why` begins with the field.
    pub(crate) fn invalid(kind: Kind, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is invalid: {why}", kind.title());
        Self::new(422, "Invalid", message)
    }

    /// A dry run of another manner than there is; `options` is the kind of the request's options.
    pub(crate) fn unknown_dry_run(options: &str, values: &[&str]) -> Self {
        let found = json!(values);
        let message = format!(
            "{options}.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: {found}: \
             supported values: \"All\""
        );
        Self::new(422, "Invalid", message)
    }

    /// A patch that makes something else of an object than one of its kind.
    pub(crate) fn unusable_patch(patch: &Value, why: &str) -> Self {
        let message = format!(" \"\" is invalid: patch: Invalid value: {patch}: {why}");
        Self::new(422, "Invalid", message)
    }

    /// A body of another type than those that are read here.
    pub(crate) fn unknown_format(found: &str, accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {} \
             (not {found})",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// A watch from before what is still remembered.
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

    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = json_response(self.code, &self.status());
        if self.code == 429 {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, second);
        }
        response
    }
}

pub(crate) fn json_response(code: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = axum::http::StatusCode::from_u16(code).unwrap_or_default();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
