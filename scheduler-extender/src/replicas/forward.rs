//! Forwards a request about GPUs to the leader, and returns the leader's answer.
//!
//! Invariants: a request is forwarded once at most; requests and answers are bounded in size, number and time. While no
//! leader answers, requests wait for one for [`LEADER_WAIT`] in total, counted from the first of them, not each:
//! kube-scheduler places one pod after the other, so pods that request no GPU would wait too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::leader_client::{AT_ONCE, LeaderClient};
use super::{ReplicaMetrics, Replicas, Role};
use crate::http_client::{self, AnswerError};

/// The header of a request that another replica has forwarded.
pub const FORWARDED: HeaderName = HeaderName::from_static("plimsoll-forwarded");

/// How long requests wait in total while no leader answers. An orderly takeover takes less.
const LEADER_WAIT: Duration = Duration::from_secs(3);

/// The timeout of a forwarded request, retries included. Below kube-scheduler's timeout of 5 s.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(4_500);

/// The timeout of one call to the leader, for verbs that answer from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// As [`ANSWER_TIMEOUT`], while no leader answers.
const LEADERLESS_ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The largest answer: Filter's for 5,000 nodes with a reason each takes 1 MiB.
const MAX_ANSWER: usize = 16 << 20;

/// Forwards requests to the leader.
pub struct Forwarder {
    replicas: Arc<Replicas>,
    client: LeaderClient,
    metrics: ReplicaMetrics,
    /// The largest body of a request.
    max_body: usize,
    at_once: Semaphore,
}

/// Why a request was not answered by a leader.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("the request cannot be read: {0}")]
    Body(axum::Error),
    #[error("this replica does not lead: {0}")]
    NotTheLeader(&'static str),
    #[error(
        "no replica of scheduler-extender gives out GPUs now ({0}); \
         see `kubectl -n plimsoll get lease plimsoll-scheduler-extender`"
    )]
    NoLeader(String),
    #[error("the leader has not answered in time; a binding goes on there")]
    Slow,
}

/// The outcome of [`Forwarder::forward`].
pub(crate) enum Forwarded {
    /// This replica leads and has to answer the request itself.
    NotNeeded(Request),
    /// The leader's answer.
    Answer(Response),
}

impl ForwardError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::NotTheLeader(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::NoLeader(_) | Self::Slow => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Body(_) => "bad-request",
            Self::NotTheLeader(_) => "not-the-leader",
            Self::NoLeader(_) => "no-leader",
            Self::Slow => "slow",
        }
    }
}

impl Forwarder {
    /// A forwarder that calls the leader with this client, with bodies of at most `max_body` bytes.
    #[must_use]
    pub fn new(
        replicas: Arc<Replicas>,
        client: LeaderClient,
        metrics: ReplicaMetrics,
        max_body: usize,
    ) -> Self {
        Self { replicas, client, metrics, max_body, at_once: Semaphore::new(AT_ONCE) }
    }

    /// Forwards a request unless this replica leads. `waits`: whether the verb waits for the API server.
    pub(crate) async fn forward(
        &self,
        request: Request,
        waits: bool,
    ) -> Result<Forwarded, ForwardError> {
        if self.replicas.leads() {
            return Ok(Forwarded::NotNeeded(request));
        }
        let forwarded = self.try_forward(request, waits).await;
        self.metrics.count_forwarded(match &forwarded {
            Ok(Forwarded::NotNeeded(_)) => "here",
            Ok(Forwarded::Answer(_)) => "ok",
            Err(error) => error.label(),
        });
        forwarded
    }

    async fn try_forward(&self, request: Request, waits: bool) -> Result<Forwarded, ForwardError> {
        if request.headers().contains_key(FORWARDED) {
            return match self.replicas.role() {
                Role::Leads => Ok(Forwarded::NotNeeded(request)),
                Role::Follows(_) => Err(ForwardError::NotTheLeader("another holds the Lease")),
                Role::Waits(why) => Err(ForwardError::NotTheLeader(why)),
            };
        }
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let (head, body) = request.into_parts();
        let body = to_bytes(body, self.max_body).await.map_err(ForwardError::Body)?;
        loop {
            let why = match self.replicas.role() {
                Role::Leads => {
                    self.replicas.record_answer(true);
                    let request = Request::from_parts(head, Body::from(body));
                    return Ok(Forwarded::NotNeeded(request));
                }
                Role::Waits(why) => why.to_owned(),
                Role::Follows(leader) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let path = head.uri.path();
                    match self.call(leader, path, body.clone(), self.timeout(waits, left)).await {
                        Ok(answer) => {
                            self.replicas.record_answer(true);
                            return Ok(Forwarded::Answer(answer));
                        }
                        Err(CallError::Silent) if waits => return Err(ForwardError::Slow),
                        Err(error) => format!("{leader}: {error}"),
                    }
                }
            };
            self.replicas.record_answer(false);
            if self.replicas.leaderless_for() >= LEADER_WAIT
                || Instant::now() + RETRY_PAUSE >= deadline
            {
                return Err(ForwardError::NoLeader(why));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The timeout of one call. A leader that hangs must not delay kube-scheduler for long at each pod.
    fn timeout(&self, waits: bool, left: Duration) -> Duration {
        if waits {
            left
        } else if self.replicas.leaderless_for().is_zero() {
            ANSWER_TIMEOUT.min(left)
        } else {
            LEADERLESS_ANSWER_TIMEOUT.min(left)
        }
    }

    async fn call(
        &self,
        leader: SocketAddr,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Response, CallError> {
        let call = async {
            let _permit = self.at_once.acquire().await;
            let request = self.client.post(leader, path).header(CONTENT_TYPE, "application/json");
            let answer = request.header(FORWARDED, "1").body(body).send().await;
            read(answer.map_err(AnswerError::from)?).await
        };
        timeout(limit, call).await.unwrap_or(Err(CallError::Silent))
    }
}

/// Why a call to the leader failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("no answer in time")]
    Silent,
    #[error("it does not lead")]
    NotTheLeader,
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

async fn read(answer: reqwest::Response) -> Result<Response, CallError> {
    let status = answer.status();
    if status == StatusCode::MISDIRECTED_REQUEST {
        return Err(CallError::NotTheLeader);
    }
    let json = HeaderValue::from_static("application/json");
    let kind = answer.headers().get(CONTENT_TYPE).cloned().unwrap_or(json);
    let body = http_client::body(answer, MAX_ANSWER).await?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}
