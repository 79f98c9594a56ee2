//! One connection, from its first byte to its end.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::rates::Rates;
use super::service::{Client, Service};
use super::slots::{Guard, Phase};
use super::stream::AnswerStream;
use super::transport::{Stream, Transport, has_certificate, move_here};
use super::{Limits, socket};
use crate::{OwnThread, Shutdown};

/// How long a request in flight has to end after the shutdown; less than [`GRACE`](crate::GRACE), so that one that
/// hangs does not turn a clean stop into a failure.
const DRAIN: Duration = Duration::from_secs(8);

/// An accepted connection and what it takes to serve it.
pub(super) struct Connection {
    pub(super) address: IpAddr,
    pub(super) transport: Transport,
    pub(super) service: Service,
    pub(super) limits: Limits,
    pub(super) slot: Guard,
    pub(super) rates: Arc<Rates>,
    pub(super) shutdown: Shutdown,
}

impl Connection {
    /// Does the handshake here, and then answers requests until the client or the server closes the connection: on the
    /// given thread, if there is one.
    pub(super) async fn serve(self, stream: TcpStream, thread: Option<OwnThread>) {
        let Some(mut stream) = self.open(stream).await else { return };
        let Some(thread) = thread else { return self.answer(stream).await };
        let answering = async move {
            match move_here(&mut stream) {
                Ok(()) => self.answer(stream).await,
                Err(error) => tracing::warn!(%error, "cannot answer a connection"),
            }
        };
        thread.run(answering).await;
    }

    /// The stream, once the handshake is done.
    async fn open(&self, stream: TcpStream) -> Option<Stream> {
        socket::configure(&stream, &self.limits);
        let slot = self.slot.slot();
        let opening = self.transport.open(stream, self.limits.handshake);
        let stream = tokio::select! {
            opened = opening => opened?,
            () = slot.asked() => {
                self.transport.count_refused();
                return None;
            }
            () = self.shutdown.cancelled() => return None,
        };
        let has_certificate = has_certificate(&stream);
        if has_certificate {
            self.rates.forget(self.address);
        }
        slot.opened(has_certificate).await;
        Some(stream)
    }

    async fn answer(&self, stream: Stream) {
        if let Err(error) = self.converse(stream).await {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn converse(&self, stream: Stream) -> hyper::Result<()> {
        let slot = self.slot.slot();
        let service = service_fn(|request| async move {
            // Not before this is polled: until then the answer before may still be written.
            slot.begin(Phase::Answering);
            let answer = self.service.answer(request, Client(self.address)).await;
            slot.begin(Phase::Writing);
            answer
        });
        let stream = AnswerStream::new(stream, slot.clone(), self.limits.unread);
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_buf_size(self.limits.head_bytes.max(8 << 10))
            .serve_connection(stream, service);
        let mut connection = pin!(serving);
        let mut drained: Option<Instant> = None;
        loop {
            tokio::select! {
                // In this order, so that a request that has come is seen before its connection is ended.
                biased;
                ended = connection.as_mut() => return ended,
                () = slot.asked() => {
                    if slot.is_idle() {
                        return Ok(());
                    }
                    connection.as_mut().graceful_shutdown();
                }
                () = self.shutdown.cancelled(), if drained.is_none() => {
                    if slot.is_waiting() {
                        return Ok(());
                    }
                    connection.as_mut().graceful_shutdown();
                    drained = Some(Instant::now() + DRAIN);
                }
                () = sleep_until(drained.unwrap_or_else(Instant::now)), if drained.is_some() => {
                    tracing::warn!("a request still ran {DRAIN:?} after the shutdown began: cut off");
                    return Ok(());
                }
            }
        }
    }
}
