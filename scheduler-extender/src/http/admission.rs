//! Limits concurrent requests, so that bodies and answers fit the container's memory limit.
//!
//! kube-scheduler's requests are small and have permits of their own, so large requests, which a malicious client can
//! send too, do not delay them. A request holds its permit until its answer is sent or its connection is closed. Large
//! requests and reports run on another runtime: the one that serves has one thread, which a report of thousands of
//! nodes would block for a tenth of a second and more. The rate of connections and of small requests is not limited
//! here: the NetworkPolicy and TLS keep other clients out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::{explain, inspect, moves, preempt, query, report, shadow};
use crate::replicas::FORWARDED;

/// The largest body of a small request, in KiB: 5,000 names take 200 KiB, a usual pod 10 KiB.
const SMALL_KIB: u32 = 512;

/// The bodies of all concurrent small requests at most, in KiB.
const ALL_SMALL_KIB: usize = 64 << 10;

/// Concurrent large requests. One of 8 MiB takes up to 232 MiB while it is read and answered.
const LARGE: usize = 1;

/// Concurrent answers about the whole cluster, of each of their five classes: explain, moves, capacity, other reports,
/// and what another replica asks for. One takes 70 MiB for 5,000 nodes of 8 GPUs.
const REPORTS: usize = 1;

/// Concurrent answers that wait for the other replicas and are small.
const MERGED: usize = 1;

/// Bytes of an answer that the connection receives at a time, so that the permit is held until most of the answer is
/// sent.
const FRAME: usize = 256 << 10;

/// The class of a request, by which it takes permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestClass {
    /// A small request, with the KiB of its body: it takes this number of permits.
    Small(u32),
    Large,
    /// Slow readers of other reports do not keep explain waiting.
    Explain,
    Report,
    /// It reads nodes from the API server, for up to 10 s.
    Moves,
    /// It tries pods on the GPUs of all nodes, or on a new node, for up to 5 s.
    Capacity,
    /// It waits for other replicas, and so for seconds where one is lost. Reports of this replica alone do not wait
    /// for it.
    Merged,
    /// From another replica, which holds a permit of its own while it waits: two replicas that ask each other do not
    /// wait for each other's permits.
    Forwarded,
}

impl RequestClass {
    fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let is_merged = path == shadow::PATH || report::MERGED.contains(&path);
        let is_report = path == query::PATH
            || path.starts_with(inspect::PATH)
            || path.starts_with(report::PREFIX);
        let asks_others = is_merged || path == explain::PATH;
        // `None` for a body of unknown length, which counts as large.
        let length = request.body().size_hint().upper();
        let kib = length.and_then(|bytes| u32::try_from(bytes.div_ceil(1024)).ok());
        if asks_others && request.headers().contains_key(FORWARDED) {
            Self::Forwarded
        } else if path == explain::PATH {
            Self::Explain
        } else if path == moves::PATH {
            Self::Moves
        } else if [report::CAPACITY_PATH, report::SIMULATE_PATH].contains(&path) {
            Self::Capacity
        } else if is_merged {
            Self::Merged
        } else if is_report {
            Self::Report
        } else {
            match kib {
                Some(kib) if kib <= SMALL_KIB => Self::Small(kib.max(1)),
                _ => Self::Large,
            }
        }
    }
}

/// The permits of each class.
#[derive(Debug)]
pub(super) struct Admission {
    small_kib: Arc<Semaphore>,
    large: Arc<Semaphore>,
    explain: Arc<Semaphore>,
    reports: Arc<Semaphore>,
    moves: Arc<Semaphore>,
    capacity: Arc<Semaphore>,
    merged: Arc<Semaphore>,
    forwarded: Arc<Semaphore>,
    /// The runtime for large requests and reports.
    workers: Handle,
}

impl Admission {
    pub(super) fn new(workers: Handle) -> Self {
        Self {
            small_kib: Arc::new(Semaphore::new(ALL_SMALL_KIB)),
            large: Arc::new(Semaphore::new(LARGE)),
            explain: Arc::new(Semaphore::new(REPORTS)),
            reports: Arc::new(Semaphore::new(REPORTS)),
            moves: Arc::new(Semaphore::new(REPORTS)),
            capacity: Arc::new(Semaphore::new(REPORTS)),
            merged: Arc::new(Semaphore::new(MERGED)),
            forwarded: Arc::new(Semaphore::new(REPORTS)),
            workers,
        }
    }

    /// Waits for the permits of a request. `None` if a semaphore is closed, which does not happen.
    fn acquire(
        &self,
        class: RequestClass,
    ) -> impl Future<Output = Option<OwnedSemaphorePermit>> + use<> {
        let (semaphore, permits) = match class {
            RequestClass::Small(kib) => (&self.small_kib, kib),
            RequestClass::Large => (&self.large, 1),
            RequestClass::Explain => (&self.explain, 1),
            RequestClass::Report => (&self.reports, 1),
            RequestClass::Moves => (&self.moves, 1),
            RequestClass::Capacity => (&self.capacity, 1),
            RequestClass::Merged => (&self.merged, 1),
            RequestClass::Forwarded => (&self.forwarded, 1),
        };
        let acquired = Arc::clone(semaphore).acquire_many_owned(permits);
        async { acquired.await.ok() }
    }
}

/// Middleware: runs the handler once the request has a permit.
pub(super) async fn admit(
    State(admission): State<Arc<Admission>>,
    request: Request,
    next: Next,
) -> Response {
    let class = RequestClass::of(&request);
    // Preempt for GPU pods reads pods and budgets of many nodes from the API server.
    let is_quick =
        matches!(class, RequestClass::Small(_)) && request.uri().path() != preempt::PATH_BY_GPUS;
    let permit = admission.acquire(class).await;
    // The permit moves into the handler's task, which may outlive the connection.
    let answer = async move {
        let answer = next.run(request).await;
        answer.map(|body| Body::new(BodyWithPermit { body, rest: Bytes::new(), _permit: permit }))
    };
    if is_quick {
        return answer.await;
    }
    // An error means that the process ends. A panic ends it too in a release (`panic = "abort"`), and is answered in
    // other builds.
    let answer = AbortOnDropHandle::new(admission.workers.spawn(answer)).await;
    answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// An answer's body in frames of at most [`FRAME`] bytes, with the request's permit.
struct BodyWithPermit {
    body: Body,
    /// Bytes taken from `body` and not sent yet.
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpBody for BodyWithPermit {
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
        let length = FRAME.min(self.rest.len());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
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
    use axum::http::{HeaderValue, Method};
    use futures::FutureExt as _;

    use super::*;

    fn request(method: Method, path: &str, body: usize) -> Request {
        let request = Request::builder().method(method).uri(path);
        request.body(Body::from(vec![b' '; body])).unwrap()
    }

    fn filter(body: usize) -> Request {
        request(Method::POST, "/load-aware/filter", body)
    }

    /// The permit that a request gets without waiting.
    fn try_acquire(
        admission: &Admission,
        request: &Request,
    ) -> Option<Option<OwnedSemaphorePermit>> {
        admission.acquire(RequestClass::of(request)).now_or_never()
    }

    fn admission() -> Admission {
        // These tests run no handlers.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Admission::new(runtime.handle().clone())
    }

    #[test]
    fn a_large_request_waits_for_another_and_small_ones_do_not() {
        let admission = admission();
        let first = try_acquire(&admission, &filter(1 << 20));
        assert!(first.is_some());
        let second = filter(1 << 20);
        assert!(try_acquire(&admission, &second).is_none());
        assert!(try_acquire(&admission, &filter(200 << 10)).is_some());
        drop(first);
        assert!(try_acquire(&admission, &second).is_some());
    }

    #[test]
    fn small_requests_have_64_mib_together_and_one_without_a_body_takes_a_permit_too() {
        let admission = admission();
        let half_mib = filter(512 << 10);
        let mut permits: Vec<_> = (0..128).map(|_| try_acquire(&admission, &half_mib)).collect();
        assert!(permits.iter().all(Option::is_some));
        let empty = filter(0);
        assert!(try_acquire(&admission, &empty).is_none());
        permits.pop();
        assert!(try_acquire(&admission, &empty).is_some());
    }

    #[test]
    fn a_body_of_unknown_length_is_a_large_one() {
        let admission = admission();
        let chunks = futures::stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"{}"))]);
        let unknown = Request::builder().method(Method::POST).body(Body::from_stream(chunks));
        let taken = try_acquire(&admission, &unknown.unwrap());
        assert!(taken.is_some());
        assert!(try_acquire(&admission, &filter(1 << 20)).is_none());
    }

    #[test]
    fn readers_of_other_reports_do_not_keep_explain_waiting() {
        let admission = admission();
        let inspect = request(Method::GET, "/gpushare-scheduler/inspect", 0);
        let explain = request(Method::POST, "/explain", 100);
        let held = try_acquire(&admission, &inspect);
        assert!(held.is_some());
        let state = request(Method::GET, "/v1/state", 0);
        assert!(try_acquire(&admission, &state).is_none(), "one at a time");
        let explained = try_acquire(&admission, &explain);
        assert!(explained.is_some());
        assert!(try_acquire(&admission, &explain).is_none(), "one at a time");
        assert!(try_acquire(&admission, &filter(100)).is_some());
    }

    #[test]
    fn a_report_that_waits_for_other_replicas_keeps_neither_other_reports_nor_their_questions_waiting()
     {
        let admission = admission();
        for path in ["/v1/decisions", "/v1/pending", "/shadow"] {
            let own = request(Method::GET, path, 0);
            let mut forwarded = request(Method::GET, path, 0);
            forwarded.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
            let held = try_acquire(&admission, &own);
            assert!(held.is_some() && try_acquire(&admission, &own).is_none(), "{path}");
            let asked = try_acquire(&admission, &forwarded);
            assert!(asked.is_some() && try_acquire(&admission, &forwarded).is_none(), "{path}");
            assert!(try_acquire(&admission, &request(Method::GET, "/v1/state", 0)).is_some());
        }
        // The header alone makes no other class of a report.
        let mut state = request(Method::GET, "/v1/state", 0);
        state.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
        assert_eq!(RequestClass::of(&state), RequestClass::Report);
    }

    #[test]
    fn an_answer_keeps_its_bytes_and_length_and_its_permit_until_the_last_frame_is_taken() {
        let admission = admission();
        let taken = try_acquire(&admission, &filter(1 << 20)).unwrap();
        let bytes: Vec<u8> = (0..FRAME * 2 + 7).map(|n| (n % 251) as u8).collect();
        let mut body =
            BodyWithPermit { body: Body::from(bytes.clone()), rest: Bytes::new(), _permit: taken };
        let mut read = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((bytes.len() - read.len()) as u64));
            assert_eq!(admission.large.available_permits(), 0);
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
                panic!("no frame after {} bytes", read.len());
            };
            let data = frame.into_data().unwrap();
            assert!(data.len() <= FRAME);
            read.extend_from_slice(&data);
        }
        assert_eq!(read, bytes);
        drop(body);
        assert_eq!(admission.large.available_permits(), 1);
    }
}
