//! A connection's stream, watched: its place is told when an answer is all written, and when its client leaves one
//! unread.
//!
//! Invariant: an answer that is not all written after its limit ends the connection, however many bytes of it the client
//! takes at a time. What is cut off leaves nothing behind in the kernel. Who reads costs no timer.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep};

use super::Limits;
use super::kernel::forget;
use super::places::Place;
use super::transport::{Stream, socket};

pub(super) struct Seen {
    stream: TokioIo<Stream>,
    place: Arc<Place>,
    limits: Limits,
    /// Since the kernel took no more of the answer that is being written; none while it takes everything.
    unread: Option<Unread>,
}

struct Unread {
    since: Instant,
    /// Goes off when the patience is over, and at the limit.
    clock: Pin<Box<Sleep>>,
    /// Whether it went off once.
    told: bool,
}

impl Unread {
    fn begin(limits: &Limits) -> Self {
        let clock = Box::pin(sleep(limits.patience.min(limits.unread)));
        Self { since: Instant::now(), clock, told: false }
    }
}

impl Seen {
    pub(super) fn new(stream: Stream, place: Arc<Place>, limits: Limits) -> Self {
        Self { stream: TokioIo::new(stream), place, limits, unread: None }
    }

    fn stream(&mut self) -> Pin<&mut TokioIo<Stream>> {
        Pin::new(&mut self.stream)
    }

    /// What came of writing; an error where it has taken too long.
    fn in_time<T>(
        &mut self,
        wrote: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            return wrote;
        }
        let unread = self.unread.get_or_insert_with(|| Unread::begin(&self.limits));
        while unread.clock.as_mut().poll(context).is_ready() {
            if unread.told {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            unread.told = true;
            unread.clock.as_mut().reset(unread.since + self.limits.unread);
            self.place.unread();
        }
        Poll::Pending
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if self.unread.is_some() {
            forget(socket(self.stream.inner()));
        }
    }
}

impl Read for Seen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl Write for Seen {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = self.stream().poll_write(context, bytes);
        self.in_time(wrote, context)
    }

    /// hyper flushes when its own buffer is empty, and not before.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream().poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.unread = None;
            self.place.written();
        }
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.stream().poll_shutdown(context);
        self.in_time(shut, context)
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
        self.in_time(wrote, context)
    }
}
