//! `/metrics` and `/statistics`. A request only reads; what it costs does not depend on it.

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, VARY};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::render::{Exposition, statistics};
use crate::series::Clock;
use crate::{Metrics, SharedStore};

/// What the handlers need.
#[derive(Clone)]
pub struct Scrape {
    /// Where the readings are.
    pub store: SharedStore,
    /// What time it is.
    pub clock: Clock,
    /// Where requests are counted.
    pub metrics: Metrics,
}

/// The exporter's endpoints.
pub fn router(scrape: Scrape) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/statistics", get(flat_statistics))
        .with_state(scrape)
}

async fn metrics(State(scrape): State<Scrape>, headers: HeaderMap) -> impl IntoResponse {
    scrape.metrics.scraped("/metrics");
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Exposition::negotiate(accept.unwrap_or_default());
    let body = format.render(scrape.store.lock().readings((scrape.clock)()));
    ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], body)
}

async fn flat_statistics(State(scrape): State<Scrape>) -> impl IntoResponse {
    scrape.metrics.scraped("/statistics");
    let body = statistics(scrape.store.lock().readings((scrape.clock)()));
    ([(CONTENT_TYPE, "application/json")], body)
}
