//! An output with a reader that may close it.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of this command's output has closed it.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the reader of this command's output has closed it, so that what goes on without end has none left.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Writes until the reader closes the pipe, as in `plimsoll inspect | head`. Later output is dropped, so that the
/// command still completes its work and returns its own exit code. What has no end asks [`is_closed`].
pub(crate) struct UntilClosed<W> {
    output: W,
    closed: bool,
}

impl<W: Write> UntilClosed<W> {
    /// To this output.
    pub(crate) fn new(output: W) -> Self {
        Self { output, closed: false }
    }

    fn unless_closed<T>(&mut self, done: io::Result<T>, instead: T) -> io::Result<T> {
        match done {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                CLOSED.store(true, Ordering::Relaxed);
                Ok(instead)
            }
            other => other,
        }
    }
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let written = self.output.write(bytes);
        self.unless_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let flushed = self.output.flush();
        self.unless_closed(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_reader_that_goes_is_no_error_and_ends_nothing() {
        let mut output = io::BufWriter::with_capacity(4, UntilClosed::new(Closed));
        for _ in 0..100 {
            writeln!(output, "more than the buffer holds").unwrap();
        }
        output.flush().unwrap();
    }
}
