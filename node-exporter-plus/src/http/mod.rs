//! `/metrics`, `/statistics`, `/v1/statistics` and `/v1/pods` on the exporter's own port.
//!
//! Invariant: a request changes no samples, and its cost depends on none of its parameters and headers. Each answer is
//! rendered once for all clients: pages of samples once for each sample, the page of pods once in five seconds.

mod pages;
mod pods;
mod server;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use daemon::follow::Current;
use daemon::http::Handler;
use daemon::token::{Token, refusal};

use crate::SharedStore;
use crate::collectors::UptimeFile;
use crate::render::Node;
use crate::series::Clock;

use pages::{Page, Pages};
use pods::PodsPage;
pub(crate) use server::Server;

/// The handler of the four paths.
pub struct Endpoints {
    store: SharedStore,
    clock: Clock,
    pages: Mutex<Pages>,
    pods_page: Mutex<PodsPage>,
    token: Option<Current<Token>>,
}

impl Endpoints {
    /// Answers with what `store` holds at `clock`'s time. `/v1/statistics` describes the node by `node`, whose time
    /// since boot is read from `uptime`. `/v1/pods` is read from the control groups at `cgroupfs`.
    #[must_use]
    pub fn new(
        store: SharedStore,
        clock: Clock,
        node: Node,
        uptime: UptimeFile,
        cgroupfs: PathBuf,
    ) -> Self {
        Self {
            store,
            clock,
            pages: Mutex::new(Pages::new(node, uptime)),
            pods_page: Mutex::new(PodsPage::new(cgroupfs)),
            token: None,
        }
    }

    /// The same, but requests without this bearer token get 401.
    #[must_use]
    pub(crate) fn with_token(self, token: Option<Current<Token>>) -> Self {
        Self { token, ..self }
    }

    /// The answer to a request: 200 with a page, 401 without the token, 404 for another path and for pods on a node
    /// without their control groups, 405 for another method than GET and HEAD.
    #[must_use]
    pub fn answer(&self, head: &Parts) -> Response {
        if !self.token.as_ref().is_none_or(|token| token.borrow().is_in(&head.headers)) {
            return refusal();
        }
        let path = head.uri.path();
        let page = page(path);
        if page.is_none() && path != PODS {
            return StatusCode::NOT_FOUND.into_response();
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,HEAD")]).into_response();
        }
        page.map_or_else(|| self.serve_pods(), |page| self.serve(page))
    }

    fn serve(&self, page: Page) -> Response {
        let mut store = self.store.lock();
        let bytes = lock(&self.pages).get(page, &mut store, (self.clock)());
        answer(bytes, page.content_type())
    }

    fn serve_pods(&self) -> Response {
        match lock(&self.pods_page).get((self.clock)()) {
            Ok(bytes) => answer(bytes, "application/json"),
            Err(error) => (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
        }
    }
}

impl From<Endpoints> for Handler {
    fn from(endpoints: Endpoints) -> Self {
        Self::FromHead(Arc::new(move |head| endpoints.answer(head)))
    }
}

/// The path of the use of each pod.
const PODS: &str = "/v1/pods";

/// Locks a page. A panic leaves the old page, or none.
fn lock<T>(page: &Mutex<T>) -> MutexGuard<'_, T> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(bytes: Bytes, content_type: &'static str) -> Response {
    let mut answer = Response::new(Body::from(bytes));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The page of samples of a path.
fn page(path: &str) -> Option<Page> {
    match path {
        "/metrics" => Some(Page::Metrics),
        "/statistics" => Some(Page::Statistics),
        "/v1/statistics" => Some(Page::StatisticsV1),
        _ => None,
    }
}
