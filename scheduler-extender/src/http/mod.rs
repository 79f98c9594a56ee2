//! The HTTP handlers. Filter and Bind answer 200 with the error in the body, where kube-scheduler reads it: of any
//! other status, users would see only the number.

mod admission;
mod answer;
mod bind;
mod explain;
mod filter;
mod host;
mod inspect;
mod leader;
mod moves;
#[cfg(test)]
mod never_ran;
mod page;
mod preempt;
mod prioritize;
mod query;
mod report;
mod shadow;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use daemon::http::Limits;
use tokio::runtime::Handle;

use self::admission::{Admission, admit};
pub use self::answer::Answer;
use self::answer::timed;
use self::leader::{close_at_end, forward_to_leader};
pub use self::write::{Cause, Rejections};
use crate::{Decider, Extender};

/// A handler of Filter, Prioritize or Preempt: takes a request's body, and does no I/O.
pub type Verb = fn(&Decider, &[u8]) -> Answer;

/// The verbs that answer from memory, by path. Preempt for GPU pods and Bind call the API server.
pub const VERBS: [(&str, Verb); 5] = [
    ("load-aware/filter", filter::by_load),
    ("load-aware/prioritize", prioritize::by_load),
    ("load-aware/preempt", preempt::by_load),
    ("gpushare-scheduler/filter", filter::by_gpus),
    ("gpushare-scheduler/prioritize", prioritize::by_gpus),
];

/// The prefix of the paths of the verbs about GPUs.
const GPUS_PREFIX: &str = "gpushare-scheduler/";

/// The server's limits. kube-scheduler opens hundreds of connections when it binds in a burst, and
/// sends some 200 KiB for 5,000 names; a pod may add 1.5 MiB.
#[must_use]
pub fn limits() -> Limits {
    let request = Duration::from_secs(20);
    Limits { connections: 1024, handshakes: 256, request, ..Limits::default() }
}

/// The limits of `--inspect-address`: it is plain HTTP for a few tools, and shares the container's memory with
/// kube-scheduler's port. 32 connections hold at most 8 MiB of buffers in the kernel. A slow reader of a report keeps
/// the next one waiting, so it has 10 s.
#[must_use]
pub fn inspect_limits() -> Limits {
    Limits {
        connections: 32,
        request: Duration::from_secs(20),
        unread: Duration::from_secs(10),
        unread_bytes: 64 << 10,
        unseen_bytes: Some(64 << 10),
        ..Limits::default()
    }
}

/// The routes of each port.
pub struct Routers {
    /// All paths: for `--listen-address`.
    pub all: Router,
    /// The paths that change nothing: for `--inspect-address`.
    pub read_only: Router,
}

/// The routes of both ports, with common limits on concurrent requests. Slow requests run on the runtime `workers`, so
/// that they do not block the thread that serves.
pub fn routers(extender: &Arc<Extender>, workers: &Handle) -> Routers {
    let bounded = from_fn_with_state(Arc::new(Admission::new(workers.clone())), admit);
    let close_at_end = from_fn_with_state(Arc::clone(extender), close_at_end);
    let verbs = verb_routes(extender).merge(read_only_routes());
    let all = verbs.layer(bounded.clone()).layer(close_at_end.clone());
    let own_host = from_fn_with_state(Arc::clone(extender), host::is_own);
    let inspected = read_only_routes().merge(page::routes());
    let read_only = inspected.layer(bounded).layer(close_at_end).layer(own_host);
    Routers {
        all: all.with_state(Arc::clone(extender)),
        read_only: read_only.with_state(Arc::clone(extender)),
    }
}

/// The routes of kube-scheduler's requests.
fn verb_routes(extender: &Arc<Extender>) -> Router<Arc<Extender>> {
    let forward_to_leader = from_fn_with_state(Arc::clone(extender), forward_to_leader);
    let mut routes = Router::new();
    for (path, verb) in VERBS {
        let mut route = post(async move |State(extender): State<Arc<Extender>>, body: Bytes| {
            let decider = &extender.decider;
            timed(decider, path, async { verb(decider, &body) }).await
        });
        if path.starts_with(GPUS_PREFIX) {
            route = route.layer(forward_to_leader.clone());
        }
        routes = routes.route(&format!("/{path}"), route);
    }
    let preempt = post(preempt::by_gpus).layer(forward_to_leader.clone());
    let bind =
        post(bind::bind).layer(DefaultBodyLimit::max(bind::MAX_BODY)).layer(forward_to_leader);
    routes.route(preempt::PATH_BY_GPUS, preempt).route("/gpushare-scheduler/bind", bind)
}

/// The routes for operators and tools.
fn read_only_routes() -> Router<Arc<Extender>> {
    let query_body = DefaultBodyLimit::max(query::MAX_BODY);
    Router::new()
        .route(explain::PATH, post(explain::explain))
        .route(shadow::PATH, get(shadow::shadow))
        .route(query::PATH, get(query::query).post(query::query).layer(query_body))
        .route(inspect::PATH, get(inspect::all))
        .route(inspect::PATH_OF_NODE, get(inspect::one))
        .route(moves::PATH, get(moves::moves))
        .merge(report::routes())
        // As Aliyun's extender answers it, in plain text, for tools of that ecosystem.
        .route("/version", get(async || env!("CARGO_PKG_VERSION")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel uses twice the memory of a buffer, and counts it as the container's, which has 640 MiB.
    #[test]
    fn all_connections_of_the_inspect_port_buffer_at_most_8_mib() {
        let limits = inspect_limits();
        let unseen = limits.unseen_bytes.unwrap();
        assert!(2 * (limits.unread_bytes + unseen) * limits.connections <= 8 << 20);
    }
}
