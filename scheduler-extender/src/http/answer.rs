//! An HTTP answer, and its count in the metrics.

use std::time::Instant;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::Decider;

/// An HTTP answer.
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) json: Vec<u8>,
    /// The label of the metric.
    pub(super) outcome: &'static str,
}

impl Answer {
    pub(super) fn new(outcome: &'static str, body: &impl Serialize) -> Self {
        // Strings, numbers and lists: serialising them cannot fail.
        let json = serde_json::to_vec(body).unwrap_or_default();
        Self::of_json(outcome, json)
    }

    pub(super) fn of_json(outcome: &'static str, json: Vec<u8>) -> Self {
        Self { status: StatusCode::OK, json, outcome }
    }

    /// An error with its own status, for answers whose JSON has no field for an error.
    pub(super) fn failed(status: StatusCode, error: &impl ToString) -> Self {
        Self { status, ..Self::new("error", &error.to_string()) }
    }

    /// The body.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// Awaits an answer, and counts it with its duration.
pub(super) async fn timed(
    decider: &Decider,
    path: &'static str,
    call: impl Future<Output = Answer>,
) -> Answer {
    let start = Instant::now();
    let answer = call.await;
    decider.metrics.count_call(path, answer.outcome, start.elapsed().as_secs_f64());
    answer
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let json = [(CONTENT_TYPE, "application/json")];
        (self.status, json, self.json).into_response()
    }
}
