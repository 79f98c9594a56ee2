//! `/metrics`, `/statistics` and `/v1/statistics`. A request only reads; what it costs does not depend on it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, VARY};
use axum::response::Response;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;

use crate::pages::{Page, Pages};
use crate::render::{Exposition, Node};
use crate::series::Clock;
use crate::{Metrics, SharedStore};

/// What the handlers need.
pub struct Scrape {
    store: SharedStore,
    clock: Clock,
    counted: [Counter; 3],
    pages: Mutex<Pages>,
}

impl Scrape {
    /// Answers from `store`, as of `clock`, counted in `metrics`.
    #[must_use]
    pub fn new(store: SharedStore, clock: Clock, metrics: &Metrics, node: Node) -> Self {
        let counted = ["/metrics", "/statistics", "/v1/statistics"];
        let counted = counted.map(|endpoint| metrics.scrapes(endpoint));
        Self { store, clock, counted, pages: Mutex::new(Pages::new(node)) }
    }

    fn answer(&self, page: Page) -> Response {
        let [metrics, flat, detailed] = &self.counted;
        match page {
            Page::Metrics(_) => metrics.inc(),
            Page::Statistics => flat.inc(),
            Page::StatisticsV1 => detailed.inc(),
        };
        let mut store = self.store.lock();
        // A page half made is made again.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = pages.get(page, &mut store, (self.clock)());
        let mut answer = Response::new(Body::from(bytes));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type()));
        answer
    }
}

/// The exporter's endpoints.
pub fn router(scrape: Scrape) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/statistics", get(flat_statistics))
        .route("/v1/statistics", get(detailed_statistics))
        .with_state(Arc::new(scrape))
}

async fn metrics(State(scrape): State<Arc<Scrape>>, request: Request) -> Response {
    // Looked at where it is: the extractor of headers would copy them all.
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Exposition::negotiate(accept.unwrap_or_default());
    let mut answer = scrape.answer(Page::Metrics(format));
    answer.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    answer
}

async fn flat_statistics(State(scrape): State<Arc<Scrape>>) -> Response {
    scrape.answer(Page::Statistics)
}

async fn detailed_statistics(State(scrape): State<Arc<Scrape>>) -> Response {
    scrape.answer(Page::StatisticsV1)
}
