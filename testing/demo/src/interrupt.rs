//! The signals that end the program: SIGINT (Ctrl-C), SIGQUIT (Ctrl-\), SIGTERM, and SIGHUP (the terminal was
//! closed). Once an [`Interrupt`] exists, none of them ends the process before it has cleaned up.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for the signals.
pub(crate) struct Interrupt {
    always: [Signal; 3],
    /// SIGHUP; `None` where it is ignored.
    hangup: Option<Signal>,
}

impl Interrupt {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn new() -> io::Result<Self> {
        let [interrupt, quit, terminate] =
            [SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()].map(signal);
        let always = [interrupt?, quit?, terminate?];
        Ok(Self { always, hangup: unless_ignored(SignalKind::hangup())? })
    }

    /// Waits for the first signal.
    pub(crate) async fn received(&mut self) {
        let Self { always: [interrupt, quit, terminate], hangup } = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = terminate.recv() => {}
            Some(()) = async { hangup.as_mut()?.recv().await } => {}
        }
    }
}

/// A listener for a signal. `None` where the process was started with the signal ignored, as `nohup` does with
/// SIGHUP: a handler would undo that.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Whether the signal's bit is set in the line `SigIgn:` of a `/proc/PID/status`.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_in_the_status_of_a_process() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n";
        assert!(is_ignored(status, SignalKind::hangup()));
        assert!(!is_ignored(status, SignalKind::interrupt()));
        assert!(!is_ignored("", SignalKind::hangup()));
    }
}
