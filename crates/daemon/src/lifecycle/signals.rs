//! The signals that end a process.

use std::fs;
use std::io;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Shutdown;

/// Begins the shutdown at the first SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// When a handler cannot be installed.
pub(super) fn cancel_on_end(shutdown: Shutdown) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let mut hangup = unless_ignored(SignalKind::hangup()).context("cannot handle SIGHUP")?;
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            Some(()) = async { hangup.as_mut()?.recv().await } => "SIGHUP",
        };
        tracing::info!("{name}: stopping");
        shutdown.cancel();
    });
    Ok(())
}

/// Installs a handler for a signal. `None`, and no handler, where the process was started with the signal ignored, as
/// nohup(1) does with SIGHUP: a handler would undo that.
///
/// # Errors
/// When the handler cannot be installed.
pub fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Whether a process with this `/proc/PID/status` ignores the signal.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_the_parent_had_ignored_stays_ignored() {
        for (mask, ignored) in [("1", true), ("4001", true), ("1002", false), ("0", false)] {
            let status = format!("SigBlk:\tffffffffffffffff\nSigIgn:\t{mask:0>16}\n");
            assert_eq!(is_ignored(&status, SignalKind::hangup()), ignored, "{mask}");
        }
        assert!(!is_ignored("", SignalKind::hangup()));
    }
}
