//! `GET /v1/readings`: the last readings of all nodes; with `?since=VERSION` those that are newer than an earlier
//! answer.
//!
//! A replica that does not lead polls no node. It answers 503 instead of old readings.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cluster::Leadership;

use super::SharedReadings;
use crate::clock::Clock;
use crate::pod_use::serve::STANDBY;

const PATH: &str = "/v1/readings";

/// The server's state.
#[derive(Clone)]
struct Server {
    readings: SharedReadings,
    leadership: Leadership,
    clock: Clock,
}

/// The path of the port.
pub(crate) fn router(readings: SharedReadings, leadership: Leadership, clock: Clock) -> Router {
    Router::new().route(PATH, get(newer_readings)).with_state(Server {
        readings,
        leadership,
        clock,
    })
}

async fn newer_readings(State(server): State<Server>, uri: Uri) -> Response {
    if !server.leadership.is_held() {
        return (StatusCode::SERVICE_UNAVAILABLE, STANDBY).into_response();
    }
    let since = uri.query().and_then(|query| query.strip_prefix("since="));
    let answer = server.readings.lock().answer(since, server.clock.now());
    ([(CONTENT_TYPE, "application/json")], answer.to_json()).into_response()
}
