//! How many requests are read and answered at once, so that bodies and answers fit the container's memory limit.
//!
//! kube-scheduler's requests are small and have a lane of their own: the few large ones that fit beside each other, which a
//! client without good intentions can send as well, do not keep them waiting. A request holds its place until its answer is
//! sent, or its connection is gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::query;

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

/// The lanes, each with its places.
#[derive(Debug)]
pub(super) struct Lanes {
    small_kib: Arc<Semaphore>,
    large: Arc<Semaphore>,
    reports: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            small_kib: Arc::new(Semaphore::new(ALL_SMALL_KIB)),
            large: Arc::new(Semaphore::new(LARGE)),
            reports: Arc::new(Semaphore::new(REPORTS)),
        }
    }
}

impl Lanes {
    /// Waits for a place. `None` where there are no places any more, which does not happen.
    fn enter(
        &self,
        request: &Request,
    ) -> impl Future<Output = Option<OwnedSemaphorePermit>> + use<> {
        let path = request.uri().path();
        let is_report = matches!(path, "/explain" | "/shadow" | query::PATH)
            || path.starts_with("/gpushare-scheduler/inspect");
        // A body of unknown length can be of any.
        let length = request.body().size_hint().upper();
        let kib = length.and_then(|bytes| u32::try_from(bytes.div_ceil(1024)).ok());
        let (lane, places) = match kib {
            _ if is_report => (&self.reports, 1),
            Some(kib) if kib <= SMALL_KIB => (&self.small_kib, kib.max(1)),
            _ => (&self.large, 1),
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
    let place = lanes.enter(&request).await;
    let answer = next.run(request).await;
    answer.map(|body| Body::new(HoldsPlace { body, rest: Bytes::new(), _place: place }))
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

    #[test]
    fn a_large_request_waits_for_another_and_small_ones_do_not() {
        let lanes = Lanes::default();
        let first = lanes.enter(&filter(1 << 20)).now_or_never();
        assert!(first.is_some());
        let second = filter(1 << 20);
        assert!(lanes.enter(&second).now_or_never().is_none());
        assert!(lanes.enter(&filter(200 << 10)).now_or_never().is_some());
        drop(first);
        assert!(lanes.enter(&second).now_or_never().is_some());
    }

    #[test]
    fn small_requests_have_64_mib_together_and_one_without_a_body_has_a_place_too() {
        let lanes = Lanes::default();
        let half_mib = filter(512 << 10);
        let mut places: Vec<_> = (0..128).map(|_| lanes.enter(&half_mib).now_or_never()).collect();
        assert!(places.iter().all(Option::is_some));
        let empty = filter(0);
        assert!(lanes.enter(&empty).now_or_never().is_none());
        places.pop();
        assert!(lanes.enter(&empty).now_or_never().is_some());
    }

    #[test]
    fn a_body_of_unknown_length_is_a_large_one() {
        let lanes = Lanes::default();
        let chunks = futures::stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"{}"))]);
        let unknown = Request::builder().method(Method::POST).body(Body::from_stream(chunks));
        let place = lanes.enter(&unknown.unwrap()).now_or_never();
        assert!(place.is_some());
        assert!(lanes.enter(&filter(1 << 20)).now_or_never().is_none());
    }

    #[test]
    fn two_reports_are_made_at_once() {
        let lanes = Lanes::default();
        let inspect = request(Method::GET, "/gpushare-scheduler/inspect", 0);
        let explain = request(Method::POST, "/explain", 100);
        let places = [lanes.enter(&inspect).now_or_never(), lanes.enter(&explain).now_or_never()];
        assert!(places.iter().all(Option::is_some));
        assert!(lanes.enter(&inspect).now_or_never().is_none());
        assert!(lanes.enter(&request(Method::GET, "/shadow", 0)).now_or_never().is_none());
        assert!(lanes.enter(&filter(100)).now_or_never().is_some());
    }

    #[test]
    fn an_answer_keeps_its_bytes_and_length_and_its_place_until_the_last_piece_is_taken() {
        let lanes = Lanes::default();
        let place = lanes.enter(&filter(1 << 20)).now_or_never().unwrap();
        let bytes: Vec<u8> = (0..PIECE * 2 + 7).map(|n| (n % 251) as u8).collect();
        let mut body =
            HoldsPlace { body: Body::from(bytes.clone()), rest: Bytes::new(), _place: place };
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
