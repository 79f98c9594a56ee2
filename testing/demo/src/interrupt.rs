//! The signals that end the program: SIGINT (Ctrl-C), SIGQUIT (Ctrl-\), SIGTERM, and SIGHUP (the terminal was
//! closed). Once an [`Interrupt`] exists, none of them ends the process before it has cleaned up.

use std::io;

use daemon::unless_ignored;
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
