//! Keeps the way to exporters up to date with the files of its credentials.
//!
//! Invariant: the credentials in force are the last good ones; a faulty file changes nothing but a
//! counter and the log.

use std::sync::Arc;

use daemon::Shutdown;
use jiff::SignedDuration;
use tokio::sync::watch;

use crate::channel::Channel;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::tls::{Files, Sources, TrustError};

/// How often the files are read, as the policy is.
const EVERY: SignedDuration = SignedDuration::from_secs(5);

/// The files, and what was last found in them.
#[derive(Debug)]
pub struct Follower {
    sources: Sources,
    /// What they held, or why that is not known: each is told of once.
    seen: Result<Files, String>,
    channel: watch::Sender<Arc<Channel>>,
}

impl Follower {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Where they do not hold what they should: nothing could be asked.
    pub fn open(sources: Sources) -> Result<(Self, watch::Receiver<Arc<Channel>>), TrustError> {
        let files = sources.read()?;
        let channel = Channel::Secure(Box::new(sources.trust(&files)?));
        let (channel, receiver) = watch::channel(Arc::new(channel));
        Ok((Self { sources, seen: Ok(files), channel }, receiver))
    }

    /// Reads the files again; `None` where they are as they were the last time, good or bad.
    fn reload(&mut self) -> Option<Result<(), TrustError>> {
        let read = self.sources.read();
        let seen = read.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if self.seen == seen {
            return None;
        }
        self.seen = seen;
        Some(self.take_over(read))
    }

    fn take_over(&self, read: Result<Files, TrustError>) -> Result<(), TrustError> {
        let trust = self.sources.trust(&read?)?;
        self.channel.send_replace(Arc::new(Channel::Secure(Box::new(trust))));
        Ok(())
    }

    /// Reads the files again and again, until the shutdown.
    ///
    /// # Errors
    /// None; the type suits [`daemon::Context::spawn`].
    pub async fn follow(
        mut self,
        clock: Clock,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        loop {
            let next = clock.now().checked_add(EVERY).ok();
            if shutdown.run_until_cancelled(clock.wait(next)).await.is_none() {
                return Ok(());
            }
            let Some(reloaded) = self.reload() else { continue };
            metrics.credentials_read(reloaded.is_ok());
            match reloaded {
                Ok(()) => tracing::info!("the exporters' CA and token were read again"),
                Err(error) => tracing::error!("{error}; the CA and token before stay in force"),
            }
        }
    }
}
