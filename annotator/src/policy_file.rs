//! Follows the policy file.
//!
//! Invariant: the policy in force is valid; a faulty file changes nothing but a counter and the log.

use std::sync::Arc;

use daemon::Shutdown;
use jiff::SignedDuration;
use placement::policy::LoadPolicy;
use settings::PolicyFile;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::metrics::Metrics;

/// How often the file is read. The kubelet takes up to a minute to bring a changed ConfigMap into a pod. It replaces a
/// symbolic link, so the file itself has no events to wait for.
const EVERY: SignedDuration = SignedDuration::from_secs(5);

/// Reads the file again and again until the shutdown, and sends each changed, valid policy to `policies`.
///
/// # Errors
///
/// None; the type suits [`daemon::Context::spawn`].
pub async fn follow(
    mut file: PolicyFile,
    policies: watch::Sender<Arc<LoadPolicy>>,
    clock: Clock,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    loop {
        let next = clock.now().checked_add(EVERY).ok();
        if shutdown.run_until_cancelled(clock.wait(next)).await.is_none() {
            return Ok(());
        }
        let Some(reloaded) = file.reload() else { continue };
        metrics.policy_read(reloaded.is_ok());
        match reloaded {
            Ok(policy) => {
                tracing::info!(path = %file.path().display(), "policy read again");
                policies.send_replace(Arc::new(policy));
            }
            Err(error) => tracing::error!("{error}; the policy before stays in force"),
        }
    }
}
