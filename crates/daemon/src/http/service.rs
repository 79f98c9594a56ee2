//! A handler's answers, within the limits on a request's time and body.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONNECTION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::Limits;

type FromHead = Arc<dyn Fn(&Parts) -> Response + Send + Sync>;

/// The address of the client, which the requests of a router have as an extension.
#[derive(Debug, Clone, Copy)]
pub struct Client(pub IpAddr);

/// The handler of a server's requests.
#[derive(Clone)]
pub enum Handler {
    /// A router.
    Router(Router),
    /// A function of the request's head that never waits. A request costs half of what it costs with a router.
    FromHead(FromHead),
}

impl From<Router> for Handler {
    fn from(router: Router) -> Self {
        Self::Router(router)
    }
}

/// A handler within its limits.
#[derive(Clone)]
pub(super) enum Service {
    Router { router: TowerToHyperService<Router>, time: Duration },
    FromHead(FromHead),
}

impl Service {
    pub(super) fn new(handler: Handler, limits: &Limits) -> Self {
        match handler {
            Handler::Router(router) => {
                let bounded = router.layer(DefaultBodyLimit::max(limits.body));
                Self::Router { router: TowerToHyperService::new(bounded), time: limits.request }
            }
            Handler::FromHead(answer) => Self::FromHead(answer),
        }
    }

    /// The answer; 503 if the handler takes longer than its limit. The handler starts when the future is polled, and
    /// hyper polls it after the previous answer is written.
    pub(super) async fn answer(
        &self,
        mut request: Request<Incoming>,
        client: Client,
    ) -> Result<Response, Infallible> {
        let mut answer = match self {
            Self::Router { router, time } => {
                request.extensions_mut().insert(client);
                let answer = tokio::time::timeout(*time, router.call(request)).await;
                answer.unwrap_or_else(|_| Ok(too_slow(*time)))?
            }
            Self::FromHead(answer) => answer(&request.into_parts().0),
        };
        // A client without the token needs a new connection for each try, which slows down guessing.
        if answer.status() == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    }
}

fn too_slow(limit: Duration) -> Response {
    let reason = format!("the request took longer than {limit:?}\n");
    (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
}
