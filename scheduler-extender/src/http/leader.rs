//! The verbs about cards: answered by the replica that leads, wherever the request came in.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Answer;
use crate::Extender;
use crate::replicas::{ForwardError, Passed};
use crate::wire::{BindingResult, FilterResult};

/// Answers here where this replica leads, and passes on what the leader answers where another does.
pub(super) async fn by_leader(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let waits = ["/bind", "/preempt"].iter().any(|verb| path.ends_with(verb));
    match extender.forwarder.pass(request, waits).await {
        Ok(Passed::Here(request)) => next.run(request).await,
        Ok(Passed::Answer(answer)) => answer,
        Err(error) => refusal(&path, &error).into_response(),
    }
}

/// The error where kube-scheduler reads it; to another replica, and for verbs without room for one, as a status.
fn refusal(path: &str, error: &ForwardError) -> Answer {
    let text = error.to_string();
    match path.rsplit('/').next() {
        _ if matches!(error, ForwardError::NotTheLeader(_)) => {
            Answer::failed(error.status(), &text)
        }
        Some("filter") => Answer::new("error", &FilterResult::failed(&text)),
        Some("bind") => Answer::new("error", &BindingResult { error: text }),
        _ => Answer::failed(error.status(), &text),
    }
}

/// Has clients close their connections once the process is about to end, so that the next request comes over another to a replica
/// that stays.
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
