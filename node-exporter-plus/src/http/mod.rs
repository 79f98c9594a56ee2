//! `/metrics`, `/statistics` and `/v1/statistics` on the exporter's own port.
//!
//! Invariant: a request changes nothing, and its cost depends on no parameter or header of it.

mod pages;
mod server;

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, VARY};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use daemon::follow::Current;
use daemon::http::Handler;
use daemon::token::{Token, refusal};
use prometheus_client::metrics::counter::Counter;

use crate::collectors::UptimeFile;
use crate::render::{Exposition, Node};
use crate::series::Clock;
use crate::{Metrics, SharedStore};

use pages::{Page, Pages};
pub(crate) use server::Server;

/// The handler of the three paths.
pub struct Endpoints {
    store: SharedStore,
    clock: Clock,
    metrics: Counter,
    statistics: Counter,
    statistics_v1: Counter,
    pages: Mutex<Pages>,
    token: Option<Current<Token>>,
}

impl Endpoints {
    /// Answers with what `store` holds at `clock`'s time, and counts requests in `metrics`. `/v1/statistics` describes
    /// the node by `node`, whose time since boot is read from `uptime`.
    #[must_use]
    pub fn new(
        store: SharedStore,
        clock: Clock,
        metrics: &Metrics,
        node: Node,
        uptime: UptimeFile,
    ) -> Self {
        Self {
            store,
            clock,
            metrics: metrics.requests("/metrics"),
            statistics: metrics.requests("/statistics"),
            statistics_v1: metrics.requests("/v1/statistics"),
            pages: Mutex::new(Pages::new(node, uptime)),
            token: None,
        }
    }

    /// The same, but requests without this bearer token get 401.
    #[must_use]
    pub(crate) fn with_token(self, token: Option<Current<Token>>) -> Self {
        Self { token, ..self }
    }

    /// The answer to a request: 200 with a page, 401 without the token, 404 for another path, 405 for another method
    /// than GET and HEAD.
    #[must_use]
    pub fn answer(&self, head: &Parts) -> Response {
        let admits = |token: &Current<Token>| token.borrow().is_in(&head.headers);
        if !self.token.as_ref().is_none_or(admits) {
            return refusal();
        }
        let Some(page) = page(head) else { return StatusCode::NOT_FOUND.into_response() };
        if head.method == Method::GET || head.method == Method::HEAD {
            self.serve(page)
        } else {
            (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,HEAD")]).into_response()
        }
    }

    fn serve(&self, page: Page) -> Response {
        self.counter(page).inc();
        let mut store = self.store.lock();
        // A panic leaves the page that was there before, or none.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = pages.get(page, &mut store, (self.clock)());
        let mut answer = Response::new(Body::from(bytes));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type()));
        if matches!(page, Page::Metrics(_)) {
            headers.insert(VARY, HeaderValue::from_static("accept"));
        }
        answer
    }

    fn counter(&self, page: Page) -> &Counter {
        match page {
            Page::Metrics(_) => &self.metrics,
            Page::Statistics => &self.statistics,
            Page::StatisticsV1 => &self.statistics_v1,
        }
    }
}

impl From<Endpoints> for Handler {
    fn from(endpoints: Endpoints) -> Self {
        Self::FromHead(Arc::new(move |head| endpoints.answer(head)))
    }
}

/// The page that a request names by its path and, for `/metrics`, its `Accept` headers.
fn page(head: &Parts) -> Option<Page> {
    match head.uri.path() {
        "/metrics" => Some(Page::Metrics(format(head))),
        "/statistics" => Some(Page::Statistics),
        "/v1/statistics" => Some(Page::StatisticsV1),
        _ => None,
    }
}

fn format(head: &Parts) -> Exposition {
    let accepts = head.headers.get_all(ACCEPT).iter();
    Exposition::negotiate(accepts.filter_map(|accept| accept.to_str().ok()))
}
