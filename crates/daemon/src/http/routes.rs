//! A handler's answers, bounded in time and in what they read.
//!
//! Invariant: what is paid for a bound is paid by the requests that may reach it. Most are answered when first asked,
//! and have no body.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio_util::either::Either;

use super::Limits;

/// Answers by the head alone.
type AtOnce = Arc<dyn Fn(&Parts) -> Response + Send + Sync>;

/// What answers a server's requests.
#[derive(Clone)]
pub enum Handler {
    /// A router.
    Router(Router),
    /// A function that looks at the head alone and has its answer ready. It costs a request half of what a router does.
    AtOnce(AtOnce),
}

impl From<Router> for Handler {
    fn from(router: Router) -> Self {
        Self::Router(router)
    }
}

/// A handler within its limits.
#[derive(Clone)]
pub(super) enum Routes {
    /// The router twice: each layer of a router costs a request several allocations.
    Router {
        without_body: TowerToHyperService<Router>,
        with_body: TowerToHyperService<Router>,
        time: Duration,
    },
    AtOnce(AtOnce),
}

impl Routes {
    pub(super) fn new(handler: Handler, limits: &Limits) -> Self {
        match handler {
            Handler::Router(router) => {
                let bounded = router.clone().layer(DefaultBodyLimit::max(limits.body));
                Self::Router {
                    without_body: TowerToHyperService::new(router),
                    with_body: TowerToHyperService::new(bounded),
                    time: limits.request,
                }
            }
            Handler::AtOnce(answer) => Self::AtOnce(answer),
        }
    }

    /// Always an answer, in time. None is made before it is asked for: what waits to be written is held.
    pub(super) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        match self {
            Self::Router { without_body, with_body, time } => {
                let empty = request.body().is_end_stream();
                let router = if empty { without_body } else { with_body };
                Either::Left(within(*time, router.call(request)))
            }
            Self::AtOnce(answer) => {
                let (answer, head) = (answer.clone(), request.into_parts().0);
                Either::Right(async move { Ok(answer(&head)) })
            }
        }
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
