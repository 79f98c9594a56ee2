//! `/v1`: what the page and `plimsoll` show of the cluster, and what would fit. The JSON is that of `api`'s modules
//! `state`, `node`, `decisions`, `policy_check`, `capacity` and `simulate`.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::decisions::{Decided, Decisions};
use api::policy_check::{PolicyCheck, effective};
use api::state::Replica;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use placement::policy::ReadingSource;
use placement::units::PodUid;
use serde::Serialize;
use tokio::time::timeout;
use tower_http::compression::{CompressionLayer, CompressionLevel};

use super::Answer;
use crate::Extender;
use crate::decisions::{MAX_PODS, Which};
use crate::field;
use crate::report::{all_gpus, in_words, node_detail};
use crate::wire;

/// The beginning of all paths.
pub(super) const PREFIX: &str = "/v1/";

/// The paths whose answers are merged from those of all replicas.
pub(super) const MERGED: [&str; 2] = [DECISIONS_PATH, PENDING_PATH];

/// Of one answer that tries pods on GPUs. Beyond it nobody waits for one.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const CAPACITY_PATH: &str = "/v1/capacity";
pub(super) const SIMULATE_PATH: &str = "/v1/simulate";
const DECISIONS_PATH: &str = "/v1/decisions";
const PENDING_PATH: &str = "/v1/pending";

/// Decisions in an answer without `limit`.
const DECISIONS: usize = 100;

/// Of gzip, 1 to 9: a twentieth smaller than its default of 6.
const LEVEL: i32 = 8;

/// Bytes of a request about capacity at most: it may name all nodes.
const MAX_QUESTION: usize = 1 << 20;

/// Bytes of a request of simulate at most: 4 KiB for each of a thousand pods.
const MAX_PODS_BODY: usize = 4 << 20;

/// The label of the metric.
const REPORT: &str = "report";

/// The routes. Answers are compressed for clients that accept it.
pub(super) fn routes() -> Router<Arc<Extender>> {
    Router::new()
        .route("/v1/state", get(state))
        .route("/v1/nodes/{node}", get(node))
        .route("/v1/cards", get(gpus))
        .route(CAPACITY_PATH, post(capacity).layer(DefaultBodyLimit::max(MAX_QUESTION)))
        .route(SIMULATE_PATH, post(simulate).layer(DefaultBodyLimit::max(MAX_PODS_BODY)))
        .route(DECISIONS_PATH, get(decisions))
        .route(PENDING_PATH, get(pending))
        .route("/v1/policy", get(policy))
        .layer(CompressionLayer::new().quality(CompressionLevel::Precise(LEVEL)))
}

impl Extender {
    fn replica(&self) -> Replica {
        self.replicas.described(self.decider.view.is_complete())
    }

    /// Counts an answer that began at `start`.
    fn counted(&self, start: Instant, answer: Answer) -> Response {
        let seconds = start.elapsed().as_secs_f64();
        self.decider.metrics.count_call(REPORT, answer.outcome, seconds);
        (no_store(), answer).into_response()
    }
}

/// A browser keeps no answer: they are of this moment.
fn no_store() -> [(axum::http::HeaderName, HeaderValue); 1] {
    [(CACHE_CONTROL, HeaderValue::from_static("no-store"))]
}

/// A field of the request's query.
fn query_field(uri: &Uri, wanted: &str) -> Option<String> {
    let mut fields = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    fields.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}

/// All nodes and GPUs, or those that have changed. 304 for a client that has this version.
async fn state(State(extender): State<Arc<Extender>>, uri: Uri, headers: HeaderMap) -> Response {
    let start = Instant::now();
    let decider = &extender.decider;
    let now = decider.now();
    let version = extender.state.refresh(&decider.view, extender.replica(), now);
    let tag = format!("\"{version}\"");
    let is_current = |known: &str| known.trim().trim_start_matches("W/") == tag;
    for tags in headers.get_all(IF_NONE_MATCH) {
        if tags.to_str().is_ok_and(|tags| tags.split(',').any(is_current)) {
            return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
        }
    }
    let since = query_field(&uri, "since");
    let state = extender.state.since(since.as_deref(), now);
    let tag = format!("\"{}\"", state.version);
    ([(ETAG, tag)], extender.counted(start, Answer::new("ok", &state))).into_response()
}

/// Everything about one node.
async fn node(State(extender): State<Arc<Extender>>, Path(name): Path<String>) -> Response {
    let start = Instant::now();
    let answer = match field::subdomain("node", &name) {
        Err(error) => Answer::failed(StatusCode::BAD_REQUEST, &error),
        Ok(()) => match node_detail(&extender.decider, &name, extender.replica()) {
            Some(detail) => Answer::new("ok", &detail),
            None => Answer::failed(StatusCode::NOT_FOUND, &format!("there is no node {name}")),
        },
    };
    extender.counted(start, answer)
}

/// The GPUs of all nodes, with their pods.
async fn gpus(State(extender): State<Arc<Extender>>) -> Response {
    let start = Instant::now();
    let decider = &extender.decider;
    let gpus = all_gpus(&decider.view, extender.replica(), decider.now());
    extender.counted(start, Answer::new("ok", &gpus))
}

/// How many more pods fit on GPUs.
async fn capacity(State(extender): State<Arc<Extender>>, body: Bytes) -> Response {
    let start = Instant::now();
    let (view, now) = (&extender.decider.view, extender.decider.now());
    let replica = extender.replica();
    let answer = match serde_json::from_slice(&body) {
        Err(error) => Answer::failed(StatusCode::BAD_REQUEST, &error),
        Ok(asked) => {
            let found = crate::report::capacity(view, &replica, &asked, now);
            in_time(found, "ask for fewer sizes, or for fewer nodes").await
        }
    };
    extender.counted(start, answer)
}

/// Which pods would fit on a new node.
async fn simulate(State(extender): State<Arc<Extender>>, body: Bytes) -> Response {
    let start = Instant::now();
    let decider = &extender.decider;
    let answer = match wire::read_simulation(&body) {
        Err(error) => Answer::failed(StatusCode::BAD_REQUEST, &error),
        Ok(asked) => {
            let found = crate::report::simulation(decider, asked, decider.now());
            in_time(found, "ask about fewer pods").await
        }
    };
    extender.counted(start, answer)
}

/// What is found within [`TRY_TIMEOUT`]; an error of it is the request's. `instead`: what takes less time.
async fn in_time<T: Serialize>(
    found: impl Future<Output = Result<T, String>>,
    instead: &str,
) -> Answer {
    match timeout(TRY_TIMEOUT, found).await {
        Ok(Ok(found)) => Answer::new("ok", &found),
        Ok(Err(error)) => Answer::failed(StatusCode::BAD_REQUEST, &error),
        Err(_) => {
            let error = format!("it takes too long: {instead}");
            Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &error)
        }
    }
}

/// The last decisions of all replicas.
async fn decisions(
    State(extender): State<Arc<Extender>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let most = match query_field(&uri, "limit").map(|limit| limit.parse::<usize>()) {
        None => DECISIONS,
        Some(Ok(limit)) => limit.clamp(1, MAX_PODS),
        Some(Err(_)) => {
            let error = "limit: expected a number of decisions, as in limit=100";
            return Answer::failed(StatusCode::BAD_REQUEST, &error).into_response();
        }
    };
    let path = format!("{DECISIONS_PATH}?limit={most}");
    summarised(&extender, Which::Newest(most), &path, &headers).await
}

/// The pods that wait, of all replicas.
async fn pending(State(extender): State<Arc<Extender>>, headers: HeaderMap) -> Response {
    let which = Which::Waiting(extender.decider.now());
    summarised(&extender, which, PENDING_PATH, &headers).await
}

/// Decisions of this replica and, with `path`, of the others: kube-scheduler sends its requests to one, and after a
/// restart to another.
async fn summarised(
    extender: &Extender,
    which: Which,
    path: &str,
    headers: &HeaderMap,
) -> Response {
    let start = Instant::now();
    let decider = &extender.decider;
    let mut decisions = decider.decisions.summaries(which);
    let mut missing = Vec::new();
    if let Some(others) = extender.others_to_ask(headers) {
        let answers = others.query(path, None).await;
        for answer in answers.bodies {
            if let Ok(other) = serde_json::from_slice::<Decisions>(&answer) {
                decisions.extend(other.decisions);
            }
        }
        missing = answers.missing;
        newest_of_each(&mut decisions);
    }
    if let Which::Newest(most) = which {
        decisions.truncate(most);
    }
    let snapshot = decider.view.read();
    for decided in &mut decisions {
        let Decided { nearest, asks, .. } = &*decided;
        decided.fits_if = nearest.as_ref().map(|nearest| in_words(nearest, asks.as_ref()));
        let gpus = decided.node.as_ref().and_then(|node| snapshot.gpus(node));
        let pod = PodUid::from(decided.pod.uid.as_str());
        for account in gpus.into_iter().flat_map(|gpus| gpus.accounts()) {
            if account.charges.iter().any(|charge| charge.is_of(&pod)) {
                decided.gpus.push(account.gpu.index);
            }
        }
    }
    let (time, replica) = (decider.now(), extender.replica());
    let answer = Answer::new("ok", &Decisions { time, replica, missing, decisions });
    extender.counted(start, answer)
}

/// The newest decision about each pod, the newest first.
fn newest_of_each(decisions: &mut Vec<Decided>) {
    decisions.sort_by_key(|decided| Reverse(decided.time));
    let mut seen = HashSet::new();
    decisions.retain(|decided| seen.insert(decided.pod.uid.clone()));
    // What another replica says of GPUs is computed here anew.
    decisions.iter_mut().for_each(|decided| decided.gpus.clear());
}

/// The policy in force, with its warnings.
async fn policy(State(extender): State<Arc<Extender>>) -> Response {
    let start = Instant::now();
    let snapshot = extender.decider.view.read();
    // The extender does not know where the annotator has the readings from, so the answer is for node-exporter-plus.
    let check = PolicyCheck {
        refused: extender.policy_fault.borrow().clone(),
        ..effective(&snapshot.policy.policy, None, &ReadingSource::Exporters)
    };
    extender.counted(start, Answer::new("ok", &check))
}
