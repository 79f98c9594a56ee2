//! Keeps the way to exporters up to date with the files of its credentials, at the annotator's own time.
//!
//! Invariant: the credentials in force are the last good ones; a faulty file changes nothing but a
//! counter and the log.

use daemon::Shutdown;
use daemon::follow::Follower;
use jiff::SignedDuration;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::tls::Sources;

/// How often the files are read, as the policy is.
const EVERY: SignedDuration = SignedDuration::from_secs(5);

/// Reads the files again and again, until the shutdown.
///
/// # Errors
/// None; the type suits [`daemon::Context::spawn`].
pub async fn follow(
    mut follower: Follower<Sources>,
    clock: Clock,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    loop {
        let next = clock.now().checked_add(EVERY).ok();
        if shutdown.run_until_cancelled(clock.wait(next)).await.is_none() {
            return Ok(());
        }
        let Some(reloaded) = follower.reload() else { continue };
        metrics.credentials_read(reloaded.is_ok());
        match reloaded {
            Ok(()) => tracing::info!("the exporters' CA and token were read again"),
            Err(error) => tracing::error!("{error}; the CA and token before stay in force"),
        }
    }
}
