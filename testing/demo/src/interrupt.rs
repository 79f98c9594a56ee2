//! What ends a command from outside: Ctrl-C, Ctrl-\, SIGTERM, and a terminal that is closed. From the moment
//! an [`Interrupt`] is made none of them ends the process before it has cleaned up.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a command.
pub(crate) struct Interrupt {
    always: [Signal; 3],
    hangup: Option<Signal>,
}

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        let [interrupt, quit, terminate] =
            [SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()].map(signal);
        let always = [interrupt?, quit?, terminate?];
        Ok(Self { always, hangup: unless_ignored(SignalKind::hangup())? })
    }

    /// Waits for the first.
    pub(crate) async fn came(&mut self) {
        let Self { always: [interrupt, quit, terminate], hangup } = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = terminate.recv() => {}
            Some(()) = async { hangup.as_mut()?.recv().await } => {}
        }
    }
}

/// `None` where the process was started with it ignored: nohup(1) wants SIGHUP to stay so.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Whether a process of this `/proc/PID/status` ignores it.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}
