//! Passing a request about cards on to the leader, and its answer back.
//!
//! Invariants: a request is passed on once at most; requests and answers are bounded in size, number and time. While no leader
//! answers, requests wait for one for [`PATIENCE`] in all, counted from the first of them, and not each: kube-scheduler places one
//! pod after the other, and pods that ask for no card wait behind those that do.

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

use super::leader_client::LeaderClient;
use super::{Replicas, Role};
use crate::http;
use crate::http_client::{self, AnswerError};
use crate::metrics::Metrics;

/// Marks a request that another replica has passed on.
pub const FORWARDED: HeaderName = HeaderName::from_static("plimsoll-forwarded");

/// For how long requests wait in all while no leader answers. A takeover in order takes less.
const PATIENCE: Duration = Duration::from_secs(3);

/// From a request to its answer. Below the 5 s that kube-scheduler waits.
const WHOLE: Duration = Duration::from_millis(4_500);

/// For the leader's answer from memory.
const ANSWER: Duration = Duration::from_secs(1);

/// As [`ANSWER`], while no leader answers.
const ANSWER_OF_NONE: Duration = Duration::from_millis(250);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Requests that are passed on at once. kube-scheduler binds up to 478 pods at once.
pub(super) const AT_ONCE: usize = 512;

/// The largest answer: Filter's for 5,000 nodes with a reason each takes 1 MiB.
const MAX_ANSWER: usize = 16 << 20;

/// Passes requests on.
pub struct Forwarder {
    replicas: Arc<Replicas>,
    client: LeaderClient,
    metrics: Metrics,
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
        "no replica of scheduler-extender gives out cards now ({0}); see `kubectl -n plimsoll get lease plimsoll-scheduler-extender`"
    )]
    NoLeader(String),
    #[error("the leader has not answered in time; a binding goes on there")]
    Slow,
}

/// What became of a request.
pub(crate) enum Passed {
    /// This replica is to answer it.
    Here(Request),
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
    /// One that asks the leader with this client.
    #[must_use]
    pub fn new(replicas: Arc<Replicas>, client: LeaderClient, metrics: Metrics) -> Self {
        Self { replicas, client, metrics, at_once: Semaphore::new(AT_ONCE) }
    }

    /// Has the leader answer, wherever it is. `waits` says whether the verb waits for the API server.
    pub(crate) async fn pass(&self, request: Request, waits: bool) -> Result<Passed, ForwardError> {
        if self.replicas.leads() {
            return Ok(Passed::Here(request));
        }
        let passed = self.pass_on(request, waits).await;
        self.metrics.forwarded(match &passed {
            Ok(Passed::Here(_)) => "here",
            Ok(Passed::Answer(_)) => "ok",
            Err(error) => error.label(),
        });
        passed
    }

    async fn pass_on(&self, request: Request, waits: bool) -> Result<Passed, ForwardError> {
        if request.headers().contains_key(FORWARDED) {
            return match self.replicas.role() {
                Role::Leads => Ok(Passed::Here(request)),
                Role::Follows(_) => Err(ForwardError::NotTheLeader("another holds the Lease")),
                Role::Waits(why) => Err(ForwardError::NotTheLeader(why)),
            };
        }
        let deadline = Instant::now() + WHOLE;
        let (head, body) = request.into_parts();
        let body = to_bytes(body, http::limits().body).await.map_err(ForwardError::Body)?;
        let here = |body: Bytes| Request::from_parts(head.clone(), Body::from(body));
        loop {
            let why = match self.replicas.role() {
                Role::Leads => {
                    self.replicas.note_answer(true);
                    return Ok(Passed::Here(here(body)));
                }
                Role::Waits(why) => why.to_owned(),
                Role::Follows(leader) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let path = head.uri.path();
                    match self.ask(leader, path, body.clone(), self.limit(waits, left)).await {
                        Ok(answer) => {
                            self.replicas.note_answer(true);
                            return Ok(Passed::Answer(answer));
                        }
                        Err(Failure::Silent) if waits => return Err(ForwardError::Slow),
                        Err(failure) => format!("{leader}: {failure}"),
                    }
                }
            };
            self.replicas.note_answer(false);
            if self.replicas.leaderless_for() >= PATIENCE || Instant::now() + PAUSE >= deadline {
                return Err(ForwardError::NoLeader(why));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// For one answer. A leader that hangs must not hold up kube-scheduler for long at each pod.
    fn limit(&self, waits: bool, left: Duration) -> Duration {
        let answer = match self.replicas.leaderless_for().is_zero() {
            _ if waits => return left,
            true => ANSWER,
            false => ANSWER_OF_NONE,
        };
        answer.min(left)
    }

    async fn ask(
        &self,
        leader: SocketAddr,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Response, Failure> {
        let call = async {
            let _place = self.at_once.acquire().await;
            let request = self.client.post(leader, path).body(body);
            let request = request.header(CONTENT_TYPE, "application/json").header(FORWARDED, "1");
            read(request.send().await.map_err(AnswerError::from)?).await
        };
        timeout(limit, call).await.unwrap_or(Err(Failure::Silent))
    }
}

/// Why a replica gave no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer in time")]
    Silent,
    #[error("it does not lead")]
    NotTheLeader,
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

async fn read(answer: reqwest::Response) -> Result<Response, Failure> {
    let status = answer.status();
    if status == StatusCode::MISDIRECTED_REQUEST {
        return Err(Failure::NotTheLeader);
    }
    let kind = answer.headers().get(CONTENT_TYPE).cloned();
    let body = http_client::body(answer, MAX_ANSWER).await?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = kind.unwrap_or(HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}
