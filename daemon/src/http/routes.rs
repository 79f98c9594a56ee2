//! A router's answers, bounded in time and in what they read.
//!
//! Invariant: what is paid for a bound is paid by the requests that may reach it. Most are answered when first asked,
//! and have no body.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::Limits;

/// The router twice: each layer of a router costs a request several allocations.
#[derive(Clone)]
pub(super) struct Routes {
    without_body: TowerToHyperService<Router>,
    with_body: TowerToHyperService<Router>,
    time: Duration,
}

impl Routes {
    pub(super) fn new(router: Router, limits: &Limits) -> Self {
        let bounded = router.clone().layer(DefaultBodyLimit::max(limits.body));
        Self {
            without_body: TowerToHyperService::new(router),
            with_body: TowerToHyperService::new(bounded),
            time: limits.request,
        }
    }

    /// Always an answer, in time.
    pub(super) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        let empty = request.body().is_end_stream();
        let router = if empty { &self.without_body } else { &self.with_body };
        within(self.time, router.call(request))
    }
}

async fn within(
    time: Duration,
    answer: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    let mut answer = pin!(answer);
    let at_once = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
    if let Poll::Ready(answer) = at_once {
        return answer;
    }
    let answer = tokio::time::timeout(time, answer).await;
    answer.unwrap_or_else(|_| Ok(too_slow(time)))
}

fn too_slow(limit: Duration) -> Response {
    let reason = format!("the request took longer than {limit:?}\n");
    (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
}
