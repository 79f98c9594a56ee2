//! A connection's stream that detects when the kernel has accepted a whole answer, and bounds the time until then.
//!
//! Invariants: the connection ends if an answer is not written completely within its limit, even if the client reads
//! slowly. A connection that ends with a partly written answer is reset, so that the kernel keeps none of it. A client
//! that reads without a stall needs no timer.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::time::{Sleep, sleep};

use super::slots::Slot;
use super::socket::reset_on_close;
use super::transport::{Stream, socket};

/// The stream of one connection, as hyper reads and writes it.
pub(super) struct AnswerStream {
    stream: TokioIo<Stream>,
    slot: Arc<Slot>,
    /// For the client to read an answer.
    limit: Duration,
    /// Runs since the kernel took no more of the answer that is being written.
    blocked: Option<Pin<Box<Sleep>>>,
}

impl AnswerStream {
    pub(super) fn new(stream: Stream, slot: Arc<Slot>, limit: Duration) -> Self {
        Self { stream: TokioIo::new(stream), slot, limit, blocked: None }
    }

    fn stream(&mut self) -> Pin<&mut TokioIo<Stream>> {
        Pin::new(&mut self.stream)
    }

    /// The outcome of a write; an error where the client has not read for too long.
    fn within_limit<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        let clock = self.blocked.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        clock.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        if self.blocked.is_some() {
            reset_on_close(socket(self.stream.inner()));
        }
    }
}

impl Read for AnswerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl Write for AnswerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = self.stream().poll_write(context, bytes);
        self.within_limit(wrote, context)
    }

    /// hyper flushes once it has written the whole of an answer.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream().poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.blocked = None;
            self.slot.flushed();
        }
        self.within_limit(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.stream().poll_shutdown(context);
        self.within_limit(shut, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = self.stream().poll_write_vectored(context, slices);
        self.within_limit(wrote, context)
    }
}
