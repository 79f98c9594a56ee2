//! One connection, from its first byte to its end.

use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::Limits;
use super::routes::Routes;
use super::transport::Transport;
use crate::Shutdown;

/// How long the requests in flight have to end after the shutdown; less than the process's own grace, so that a
/// hung one does not turn a clean stop into a failure.
const DRAIN: Duration = Duration::from_secs(8);

pub(super) async fn converse(
    stream: TcpStream,
    transport: Transport,
    routes: Routes,
    limits: Limits,
    shutdown: Shutdown,
) {
    tune(&stream, limits.head);
    let opened = shutdown.run_until_cancelled(transport.open(stream, limits.handshake)).await;
    let Some(stream) = opened.flatten() else { return };
    let service = service_fn(move |request| routes.answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes.max(8 << 10))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drain(connection).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

fn tune(stream: &TcpStream, patience: Duration) {
    // Answers are whole: waiting to fill a segment would only add latency.
    let _ = stream.set_nodelay(true);
    // A client that never reads its answer, or is gone without a word, must not hold its place for ever.
    let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, patience);
}

async fn drain(connection: impl Future<Output = hyper::Result<()>>) -> hyper::Result<()> {
    let ended = tokio::time::timeout(DRAIN, connection).await;
    ended.unwrap_or_else(|_| {
        tracing::warn!("a request still ran {DRAIN:?} after the shutdown began: cut off");
        Ok(())
    })
}
