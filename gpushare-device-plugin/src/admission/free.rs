//! Frees the ids of pods that are gone, before the next admission does.
//!
//! Invariant: nothing is done while the kubelet allocates ids of ours, nor where no gone pod holds ids.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::Admission;
use crate::pods::PodCache;

/// Pause after a change. Several pods often go together, and the kubelet's limit of 100 Lists a second
/// is shared with admissions.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause while a pod is ending, which takes as long as its grace period.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Frees ids of gone pods until the shutdown.
pub async fn run(admission: Arc<Admission>, pods: Arc<PodCache>, shutdown: daemon::Shutdown) {
    let free = async {
        let mut changes = pods.changes();
        while changes.changed().await.is_ok() {
            free(&admission, &mut changes).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = free => {}
    }
}

/// A change cuts a long pause short: a pod that was ending may be gone.
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
