//! How many requests are read and answered at once, so that bodies and answers fit the container's memory limit.
//!
//! kube-scheduler's requests are small and have a lane of their own: the few large ones that fit beside each other, which a
//! client without good intentions can send as well, do not keep them waiting. A request holds its place until its answer is
//! sent, or its connection is gone. Large requests and reports are answered on another runtime: the one that serves has one
//! thread, and a report of thousands of nodes takes it for a tenth of a second and more. What is not bounded here is how often a
//! client opens a connection or sends small requests: the NetworkPolicy and TLS keep other clients out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::{explain, inspect, preempt, query, shadow};

/// The largest body of the lane of small requests, in KiB: 5,000 names take 200 KiB, a usual pod 10 KiB.
const SMALL_KIB: u32 = 512;

/// What the bodies of small requests may take together, in KiB.
const ALL_SMALL_KIB: usize = 64 << 10;

/// Larger requests at once. One of 8 MiB takes up to 232 MiB while it is read and answered.
const LARGE: usize = 1;

/// Answers about the whole cluster at once (inspect, explain, shadow, query). One takes 70 MiB for 5,000 nodes of 8 cards.
const REPORTS: usize = 2;

/// Bytes of an answer that are handed to the connection at a time. So the place is held until most of it is sent.
const PIECE: usize = 256 << 10;

/// Which places a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// So many of those of small requests: the KiB of its body.
    Small(u32),
    Large,
    Report,
}

impl Lane {
    fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let is_report = matches!(path, explain::PATH | shadow::PATH | query::PATH)
            || path.starts_with(inspect::PATH);
        // A body of unknown length can be of any.
        let length = request.body().size_hint().upper();
        let kib = length.and_then(|bytes| u32::try_from(bytes.div_ceil(1024)).ok());
        match kib {
            _ if is_report => Self::Report,
            Some(kib) if kib <= SMALL_KIB => Self::Small(kib.max(1)),
            _ => Self::Large,
        }
    }
}

/// The lanes, each with its places.
#[derive(Debug)]
pub(super) struct Lanes {
    small_kib: Arc<Semaphore>,
    large: Arc<Semaphore>,
    reports: Arc<Semaphore>,
    /// Answers what takes long.
    elsewhere: Handle,
}

impl Lanes {
    pub(super) fn new(elsewhere: Handle) -> Self {
        Self {
            small_kib: Arc::new(Semaphore::new(ALL_SMALL_KIB)),
            large: Arc::new(Semaphore::new(LARGE)),
            reports: Arc::new(Semaphore::new(REPORTS)),
            elsewhere,
        }
    }

    /// Waits for a place. `None` where there are no places any more, which does not happen.
    fn enter(&self, lane: Lane) -> impl Future<Output = Option<OwnedSemaphorePermit>> + use<> {
        let (lane, places) = match lane {
            Lane::Small(kib) => (&self.small_kib, kib),
            Lane::Large => (&self.large, 1),
            Lane::Report => (&self.reports, 1),
        };
        Arc::clone(lane).acquire_many_owned(places).map(Result::ok)
    }
}

/// Answers a request once it has a place.
pub(super) async fn admit(
    State(lanes): State<Arc<Lanes>>,
    request: Request,
    next: Next,
) -> Response {
    let lane = Lane::of(&request);
    // Preempt for GPU pods reads pods and budgets of many nodes from the API server.
    let is_quick = matches!(lane, Lane::Small(_)) && request.uri().path() != preempt::PATH_BY_CARDS;
    let place = lanes.enter(lane).await;
    // The place goes along, for an answer that is being made takes it whether or not its client still waits.
    let answer = async move {
        let answer = next.run(request).await;
        answer.map(|body| Body::new(HoldsPlace { body, rest: Bytes::new(), _place: place }))
    };
    if is_quick {
        return answer.await;
    }
    // It fails where the handler panics, and where the process ends.
    let answer = AbortOnDropHandle::new(lanes.elsewhere.spawn(answer)).await;
    answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// An answer's body, in pieces.
struct HoldsPlace {
    body: Body,
    /// Taken from `body` and not handed on yet.
    rest: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for HoldsPlace {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = PIECE.min(self.rest.len());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    fn request(method: Method, path: &str, body: usize) -> Request {
        let request = Request::builder().method(method).uri(path);
        request.body(Body::from(vec![b' '; body])).unwrap()
    }

    fn filter(body: usize) -> Request {
        request(Method::POST, "/load-aware/filter", body)
    }

    /// The place that a request gets now.
    fn place(lanes: &Lanes, request: &Request) -> Option<Option<OwnedSemaphorePermit>> {
        lanes.enter(Lane::of(request)).now_or_never()
    }

    fn lanes() -> Lanes {
        // These tests answer nothing.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Lanes::new(runtime.handle().clone())
    }

    #[test]
    fn a_large_request_waits_for_another_and_small_ones_do_not() {
        let lanes = lanes();
        let first = place(&lanes, &filter(1 << 20));
        assert!(first.is_some());
        let second = filter(1 << 20);
        assert!(place(&lanes, &second).is_none());
        assert!(place(&lanes, &filter(200 << 10)).is_some());
        drop(first);
        assert!(place(&lanes, &second).is_some());
    }

    #[test]
    fn small_requests_have_64_mib_together_and_one_without_a_body_has_a_place_too() {
        let lanes = lanes();
        let half_mib = filter(512 << 10);
        let mut places: Vec<_> = (0..128).map(|_| place(&lanes, &half_mib)).collect();
        assert!(places.iter().all(Option::is_some));
        let empty = filter(0);
        assert!(place(&lanes, &empty).is_none());
        places.pop();
        assert!(place(&lanes, &empty).is_some());
    }

    #[test]
    fn a_body_of_unknown_length_is_a_large_one() {
        let lanes = lanes();
        let chunks = futures::stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"{}"))]);
        let unknown = Request::builder().method(Method::POST).body(Body::from_stream(chunks));
        let taken = place(&lanes, &unknown.unwrap());
        assert!(taken.is_some());
        assert!(place(&lanes, &filter(1 << 20)).is_none());
    }

    #[test]
    fn two_reports_are_made_at_once() {
        let lanes = lanes();
        let inspect = request(Method::GET, "/gpushare-scheduler/inspect", 0);
        let explain = request(Method::POST, "/explain", 100);
        let places = [place(&lanes, &inspect), place(&lanes, &explain)];
        assert!(places.iter().all(Option::is_some));
        assert!(place(&lanes, &inspect).is_none());
        assert!(place(&lanes, &request(Method::GET, "/shadow", 0)).is_none());
        assert!(place(&lanes, &filter(100)).is_some());
    }

    #[test]
    fn an_answer_keeps_its_bytes_and_length_and_its_place_until_the_last_piece_is_taken() {
        let lanes = lanes();
        let taken = place(&lanes, &filter(1 << 20)).unwrap();
        let bytes: Vec<u8> = (0..PIECE * 2 + 7).map(|n| (n % 251) as u8).collect();
        let mut body =
            HoldsPlace { body: Body::from(bytes.clone()), rest: Bytes::new(), _place: taken };
        let (mut read, mut context) = (Vec::new(), Context::from_waker(std::task::Waker::noop()));
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((bytes.len() - read.len()) as u64));
            assert_eq!(lanes.large.available_permits(), 0);
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
                panic!("no piece after {} bytes", read.len());
            };
            let piece = frame.into_data().unwrap();
            assert!(piece.len() <= PIECE);
            read.extend_from_slice(&piece);
        }
        assert_eq!(read, bytes);
        drop(body);
        assert_eq!(lanes.large.available_permits(), 1);
    }
}
