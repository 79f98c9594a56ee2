//! Puts every good change of the policy file in force.
//!
//! Invariant: a file that cannot be read or parsed changes nothing but a counter and a log line.

use std::sync::Arc;
use std::time::Duration;

use daemon::Shutdown;
use settings::PolicyFile;

use crate::metrics::Metrics;
use crate::view::View;

/// How often the file is looked at. Kubelets take up to a minute to bring a ConfigMap's change.
const LOOK: Duration = Duration::from_secs(5);

/// Looks at the file again and again, until the shutdown.
pub(crate) async fn follow(
    mut file: PolicyFile,
    view: Arc<View>,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut looks = tokio::time::interval(LOOK);
    while shutdown.run_until_cancelled(looks.tick()).await.is_some() {
        look(&mut file, &view, &metrics);
    }
    Ok(())
}

fn look(file: &mut PolicyFile, view: &View, metrics: &Metrics) {
    match file.reload() {
        None => {}
        Some(Ok(policy)) => {
            view.load.set_policy(policy);
            metrics.policy_read("changed");
            tracing::info!(file = %file.path().display(), "policy changed");
        }
        Some(Err(error)) => {
            metrics.policy_read("refused");
            tracing::error!(%error, "policy refused; the one before it stays in force");
        }
    }
}
