//! Sees to it that ids of pods that are gone become free at once, and not at the next admission.
//!
//! Invariant: nothing is done while ids are on their way into the kubelet's record (see
//! [`Admission::free_leftovers`]), and nothing where nobody is gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::admission::Admission;
use crate::pods::PodCache;

/// After a pod has gone: several of them often go together.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause. A pod that was deleted by force stays in the kubelet's record until its
/// containers have stopped.
const LONGEST: Duration = Duration::from_secs(5);

/// Frees what is left over, until the shutdown.
pub async fn run(admission: Arc<Admission>, pods: Arc<PodCache>, shutdown: daemon::Shutdown) {
    let mut changes = pods.changes();
    let free = async {
        loop {
            free(&admission).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = free => {}
    }
}

async fn free(admission: &Admission) {
    let mut pause = FIRST;
    while admission.has_leftovers() {
        sleep(pause).await;
        if let Err(status) = admission.free_leftovers().await {
            tracing::debug!("the kubelet's record cannot be read: {}", status.message());
        }
        pause = (pause * 2).min(LONGEST);
    }
}
