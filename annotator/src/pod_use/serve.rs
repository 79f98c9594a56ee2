//! `GET /v1/workloads`: the learned use of workloads, for the extender.
//!
//! A replica that does not lead has no observations. It answers 503 instead of an empty list. A new leader goes on from
//! the list of the one before ([`super::leaders_list`]).
//!
//! Invariant: the answer is rendered at most once in [`RENEW_AFTER`], for any number of requests; a request with the
//! ETag of the current answer gets 304.

use std::sync::{Arc, PoisonError};

use api::workloads::{Workload, Workloads};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cluster::Leadership;
use daemon::http::Limits;
use jiff::{SignedDuration, Timestamp};
use placement::learning::Stats;
use tokio::sync::Mutex;

use super::leaders_list::{LeadersList, take_over};
use super::{PATH, SharedLearner};
use crate::clock::Clock;

/// The age at which the answer is rendered again if there are new observations.
const RENEW_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// The text of a replica that does not lead.
pub(crate) const STANDBY: &str = "a standby: ask the replica that holds the Lease\n";

/// Extenders are few, and their answers are megabytes.
pub(crate) fn limits() -> Limits {
    Limits { connections: 16, body: 1 << 10, ..Limits::default() }
}

/// The server's state.
struct WorkloadsServer {
    learner: SharedLearner,
    /// The list of the leader before.
    list: LeadersList,
    leadership: Leadership,
    clock: Clock,
    /// The start of this process, which makes its ETags unique.
    started: Timestamp,
    last: Mutex<Option<RenderedList>>,
}

/// The list of workloads as text.
#[derive(Debug, Clone)]
struct RenderedList {
    rendered_at: Timestamp,
    /// What the learner counted at that time.
    stats: Stats,
    tag: String,
    body: Bytes,
}

/// The paths of the port.
pub(crate) fn router(
    (learner, list): (SharedLearner, LeadersList),
    leadership: Leadership,
    clock: Clock,
) -> Router {
    let started = clock.now();
    let server =
        WorkloadsServer { learner, list, leadership, clock, started, last: Mutex::default() };
    Router::new().route(PATH, get(workloads)).with_state(Arc::new(server))
}

async fn workloads(State(server): State<Arc<WorkloadsServer>>, headers: HeaderMap) -> Response {
    if !server.leadership.is_held() {
        return (StatusCode::SERVICE_UNAVAILABLE, STANDBY).into_response();
    }
    let Some(RenderedList { tag, body, .. }) = server.current_list().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    let headers = [(ETAG, tag), (CONTENT_TYPE, "application/json".to_owned())];
    (headers, body).into_response()
}

impl WorkloadsServer {
    /// The current list; `None` if its rendering was interrupted, as when the process ends.
    async fn current_list(self: &Arc<Self>) -> Option<RenderedList> {
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        if !last.as_ref().is_some_and(|list| list.is_fresh(now)) {
            let server = Arc::clone(self);
            let known = last.clone();
            // 10,000 workloads take some tenths of a second.
            let rendered = tokio::task::spawn_blocking(move || server.render(known, now)).await;
            *last = Some(rendered.ok()?);
        }
        last.clone()
    }

    /// `known` if there are no new observations, otherwise a new list.
    fn render(&self, known: Option<RenderedList>, now: Timestamp) -> RenderedList {
        take_over(&self.learner, &self.list, now);
        // Statistics are computed after the lock is released, so that polls do not wait for them.
        let (stats, learned) = {
            let learner = self.learner.lock().unwrap_or_else(PoisonError::into_inner);
            let stats = learner.stats();
            if let Some(known) = known
                && known.stats == stats
            {
                return RenderedList { rendered_at: now, ..known };
            }
            (stats, learner.snapshot())
        };
        let workloads = learned
            .iter()
            .map(|one| Workload::new(&one.id, &one.used, one.pod_minutes, one.last_seen))
            .collect();
        let body = Bytes::from(Workloads { time: now, workloads }.to_json());
        let Stats { observations, restored, .. } = stats;
        let started = self.started.as_nanosecond();
        let tag = format!("\"{started:x}-{observations:x}-{restored:x}\"");
        RenderedList { rendered_at: now, stats, tag, body }
    }
}

impl RenderedList {
    fn is_fresh(&self, now: Timestamp) -> bool {
        let age = now.duration_since(self.rendered_at);
        !age.is_negative() && age < RENEW_AFTER
    }
}
