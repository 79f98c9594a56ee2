//! The verbs over HTTP. Each answers 200 with its error inside, as kube-scheduler reads it: any
//! other status would reach users as a bare number.

mod admission;
mod bind;
mod explain;
mod filter;
mod inspect;
mod leader;
mod preempt;
mod prioritize;
mod query;
mod shadow;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use daemon::http::Limits;
use serde::Serialize;
use tokio::runtime::Handle;

use self::admission::{Lanes, admit};
use self::leader::{by_leader, close_at_end};
use crate::{Decider, Extender};

/// What one answer is made of.
pub struct Answer {
    status: StatusCode,
    json: Vec<u8>,
    /// For metrics.
    outcome: &'static str,
}

impl Answer {
    fn new(outcome: &'static str, body: &impl Serialize) -> Self {
        // Strings, numbers and lists: serialising them cannot fail.
        let json = serde_json::to_vec(body).unwrap_or_default();
        Self::of_json(outcome, json)
    }

    fn of_json(outcome: &'static str, json: Vec<u8>) -> Self {
        Self { status: StatusCode::OK, json, outcome }
    }

    /// An answer in whose JSON there is no room for an error.
    fn failed(status: StatusCode, error: &impl ToString) -> Self {
        Self { status, ..Self::new("error", &error.to_string()) }
    }

    /// The body.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// Filter, Prioritize or Preempt: a request's body in, an answer out, without waiting for anything.
pub type Verb = fn(&Decider, &[u8]) -> Answer;

/// The verbs that answer from memory, by path. Preempt for GPU pods and Bind ask the API server.
pub const VERBS: [(&str, Verb); 5] = [
    ("load-aware/filter", filter::by_load),
    ("load-aware/prioritize", prioritize::by_load),
    ("load-aware/preempt", preempt::by_load),
    ("gpushare-scheduler/filter", filter::by_cards),
    ("gpushare-scheduler/prioritize", prioritize::by_cards),
];

/// Where the paths of the verbs about cards begin.
const CARDS: &str = "gpushare-scheduler/";

/// What kube-scheduler is granted. It opens hundreds of connections when it binds in a burst, and
/// sends some 200 KiB for 5,000 names; a pod may add 1.5 MiB.
#[must_use]
pub fn limits() -> Limits {
    Limits { connections: 1024, request: Duration::from_secs(20), ..Limits::default() }
}

/// What each port answers.
pub struct Routers {
    /// Every path, for kube-scheduler.
    pub every: Router,
    /// The paths that only tell, and change nothing.
    pub telling: Router,
}

/// Both, within the same bounds on what is answered at once. What takes long is answered on `elsewhere`, so that it does not keep
/// the thread busy that serves.
pub fn routers(extender: &Arc<Extender>, elsewhere: &Handle) -> Routers {
    let bounded = from_fn_with_state(Arc::new(Lanes::new(elsewhere.clone())), admit);
    let close_at_end = from_fn_with_state(Arc::clone(extender), close_at_end);
    let ready = |router: Router<Arc<Extender>>| {
        router.layer(bounded.clone()).layer(close_at_end.clone()).with_state(Arc::clone(extender))
    };
    Routers { every: ready(verbs(extender).merge(telling())), telling: ready(telling()) }
}

/// kube-scheduler's calls.
fn verbs(extender: &Arc<Extender>) -> Router<Arc<Extender>> {
    let verbs = VERBS.into_iter().fold(Router::new(), |router, (path, verb)| {
        let answer = async move |State(extender): State<Arc<Extender>>, body: Bytes| {
            let decider = &extender.decider;
            timed(decider, path, async { verb(decider, &body) }).await
        };
        let by_leader = from_fn_with_state(Arc::clone(extender), by_leader);
        let answer = match path.starts_with(CARDS) {
            true => post(answer).layer(by_leader),
            false => post(answer),
        };
        router.route(&format!("/{path}"), answer)
    });
    let by_leader = from_fn_with_state(Arc::clone(extender), by_leader);
    let preempt = post(preempt::by_cards).layer(by_leader.clone());
    let bind = post(bind::bind).layer(DefaultBodyLimit::max(bind::MAX_BODY)).layer(by_leader);
    verbs.route(preempt::PATH_BY_CARDS, preempt).route("/gpushare-scheduler/bind", bind)
}

/// Questions of operators and tools.
fn telling() -> Router<Arc<Extender>> {
    let query_body = DefaultBodyLimit::max(query::MAX_BODY);
    Router::new()
        .route(explain::PATH, post(explain::explain))
        .route(shadow::PATH, get(shadow::shadow))
        .route(query::PATH, get(query::query).post(query::query).layer(query_body))
        .route(inspect::PATH, get(inspect::all))
        .route(inspect::PATH_OF_NODE, get(inspect::one))
        // Aliyun's extender answers its version as bare text, and tools of that ecosystem ask for it.
        .route("/version", get(async || env!("CARGO_PKG_VERSION")))
}

async fn timed(
    decider: &Decider,
    path: &'static str,
    answer: impl Future<Output = Answer>,
) -> Answer {
    let start = Instant::now();
    let answer = answer.await;
    decider.metrics.call(path, answer.outcome, start.elapsed().as_secs_f64());
    answer
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let json = [(CONTENT_TYPE, "application/json")];
        (self.status, json, self.json).into_response()
    }
}
