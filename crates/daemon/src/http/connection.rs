//! One connection, from its first byte to its end.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::Response;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;

use super::Limits;
use super::kernel::tune;
use super::places::{Place, Taken};
use super::routes::Routes;
use super::seen::Seen;
use super::transport::Transport;

/// How long the requests in flight have to end after the shutdown; less than the process's own grace, so that a
/// hung one does not turn a clean stop into a failure.
const DRAIN: Duration = Duration::from_secs(8);

pub(super) async fn converse(
    stream: TcpStream,
    transport: Transport,
    routes: Routes,
    limits: Limits,
    taken: Taken,
) {
    tune(&stream, &limits);
    let place = taken.place().clone();
    let opened = transport.open(stream, limits.handshake);
    let Some(stream) = place.asked_back().run_until_cancelled(opened).await.flatten() else {
        return;
    };
    let stream = Seen::new(stream, place.clone(), limits);
    let told = place.clone();
    let service = service_fn(move |request| {
        let (told, answer) = (told.clone(), routes.answer(request));
        async move {
            // When first asked, not before: until then the answer before is being written.
            told.answering();
            let answer = answer.await;
            let last = told.answered();
            answer.map(|answer| close_after(answer, last))
        }
    });
    let connection = http1::Builder::new()
        .timer(Patience::new(limits.first_head))
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes.max(8 << 10))
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        // First, so that a head that has come is seen before its connection is ended.
        biased;
        ended = connection.as_mut() => ended,
        () = place.asked_back().cancelled() => {
            connection.as_mut().graceful_shutdown();
            give_up(connection, &place).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Nobody keeps a place with requests that are refused.
fn close_after(mut answer: Response, last: bool) -> Response {
    if last || answer.status().is_client_error() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Lets the request in flight end, where there is one. Half a head is none, and an answer that is left unread is its
/// client's end.
async fn give_up(
    mut connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
    place: &Place,
) -> hyper::Result<()> {
    let answered = poll_fn(|context| match connection.as_mut().poll(context) {
        Poll::Pending if place.waits() => Poll::Ready(Ok(())),
        other => other,
    });
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        biased;
        ended = answered.as_mut() => ended,
        () = place.shutdown().cancelled() => drain(answered).await,
    }
}

/// hyper's timer, which it asks each time it waits for a head; the first has a limit of its own.
struct Patience {
    first_head: Duration,
    is_first: AtomicBool,
}

impl Patience {
    fn new(first_head: Duration) -> Self {
        Self { first_head, is_first: AtomicBool::new(true) }
    }
}

impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let is_first = self.is_first.swap(false, Ordering::Relaxed);
        let sooner = is_first.then(|| deadline.min(self.now() + self.first_head));
        TokioTimer::new().sleep_until(sooner.unwrap_or(deadline))
    }

    fn now(&self) -> Instant {
        TokioTimer::new().now()
    }
}

async fn drain(connection: impl Future<Output = hyper::Result<()>>) -> hyper::Result<()> {
    let ended = tokio::time::timeout(DRAIN, connection).await;
    ended.unwrap_or_else(|_| {
        tracing::warn!("a request still ran {DRAIN:?} after the shutdown began: cut off");
        Ok(())
    })
}
