//! `/metrics`, `/statistics` and `/v1/statistics`. A request only reads; what it costs does not depend on it.

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
use crate::pages::{Page, Pages};
use crate::render::{Exposition, Node};
use crate::series::Clock;
use crate::{Metrics, SharedStore};

/// What it takes to answer.
pub struct Scrape {
    store: SharedStore,
    clock: Clock,
    counted: [Counter; 3],
    pages: Mutex<Pages>,
    token: Option<Current<Token>>,
}

impl Scrape {
    /// Answers from `store`, as of `clock`, counted in `metrics`. The node's time since boot comes from `uptime`.
    #[must_use]
    pub fn new(
        store: SharedStore,
        clock: Clock,
        metrics: &Metrics,
        node: Node,
        uptime: UptimeFile,
    ) -> Self {
        let counted = ["/metrics", "/statistics", "/v1/statistics"];
        let counted = counted.map(|endpoint| metrics.scrapes(endpoint));
        Self { store, clock, counted, pages: Mutex::new(Pages::new(node, uptime)), token: None }
    }

    /// The same, for those alone who show the token.
    #[must_use]
    pub(crate) fn guarded(self, token: Option<Current<Token>>) -> Self {
        Self { token, ..self }
    }

    /// The answer to a request.
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
        self.count(page);
        let mut store = self.store.lock();
        // A page half made is made again.
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

    fn count(&self, page: Page) {
        let [metrics, flat, detailed] = &self.counted;
        match page {
            Page::Metrics(_) => metrics.inc(),
            Page::Statistics => flat.inc(),
            Page::StatisticsV1 => detailed.inc(),
        };
    }
}

impl From<Scrape> for Handler {
    fn from(scrape: Scrape) -> Self {
        Self::FromHead(Arc::new(move |head| scrape.answer(head)))
    }
}

/// What is asked for.
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
