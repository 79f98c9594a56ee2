//! Middleware for several replicas: forwards the verbs about GPUs to the leader, and closes connections at the
//! shutdown.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Answer;
use crate::Extender;
use crate::replicas::{ForwardError, Forwarded};
use crate::wire::{BindingResult, FilterResult};

/// Runs the handler if this replica leads, and otherwise returns the leader's answer.
pub(super) async fn forward_to_leader(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let waits = ["/bind", "/preempt"].iter().any(|verb| path.ends_with(verb));
    match extender.forwarder.forward(request, waits).await {
        Ok(Forwarded::NotNeeded(request)) => next.run(request).await,
        Ok(Forwarded::Answer(answer)) => answer,
        Err(error) => failed(&path, &error).into_response(),
    }
}

/// The error where kube-scheduler reads it. For another replica, and for verbs whose answer has no field for it, a
/// status.
fn failed(path: &str, error: &ForwardError) -> Answer {
    let text = error.to_string();
    if matches!(error, ForwardError::NotTheLeader(_)) {
        return Answer::failed(error.status(), &text);
    }
    match path.rsplit('/').next() {
        Some("filter") => Answer::new("error", &FilterResult::failed(&text)),
        Some("bind") => Answer::new("error", &BindingResult { error: text }),
        _ => Answer::failed(error.status(), &text),
    }
}

/// Adds `Connection: close` to answers after the shutdown began, so that the client's next request goes to another
/// replica.
pub(super) async fn close_at_end(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let mut answer = next.run(request).await;
    if extender.ending.is_cancelled() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
