//! Makes the kubelet free the ids of deleted pods before its next admission.
//!
//! Invariant: it does nothing while the kubelet allocates ids of ours, or if no deleted pod holds ids.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::Admission;
use crate::pods::PodCache;

/// Pause after a change. Several pods are often deleted together, and admissions share the kubelet's
/// limit of 100 Lists a second.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause while a pod terminates, which takes up to its grace period.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Frees ids of deleted pods until the shutdown.
pub(crate) async fn run(
    admission: Arc<Admission>,
    pods: Arc<PodCache>,
    shutdown: daemon::Shutdown,
) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = follow(&admission, &pods) => {}
    }
}

async fn follow(admission: &Admission, pods: &PodCache) {
    let mut changes = pods.changes();
    while changes.changed().await.is_ok() {
        free(admission, &mut changes).await;
    }
}

/// A change ends a long pause: a terminating pod may be deleted now.
async fn free(admission: &Admission, changes: &mut watch::Receiver<u64>) {
    let mut pause = FIRST_PAUSE;
    while admission.gone_pods_hold_ids() {
        sleep(FIRST_PAUSE).await;
        if let Err(status) = admission.free_ids_of_gone_pods().await {
            tracing::debug!("PodResources List: {}", status.message());
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
            _ = changes.changed() => pause = FIRST_PAUSE,
        }
    }
}
