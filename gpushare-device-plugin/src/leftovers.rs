//! Sees to it that ids of pods that are gone become free at once, and not at the next admission.
//!
//! Invariant: nothing is done while ids are on their way into the kubelet's record (see
//! [`Admission::free_leftovers`]), and nothing where nobody is gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::admission::Admission;
use crate::pods::PodCache;

/// After a change. Several pods often go together, and the kubelet takes 100 Lists a second, which
/// admissions need, too.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause while a pod is ending, which takes as long as its grace period.
const LONGEST: Duration = Duration::from_secs(5);

/// Frees what is left over, until the shutdown.
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
    let mut pause = FIRST;
    while admission.has_leftovers() {
        sleep(FIRST).await;
        if let Err(status) = admission.free_leftovers().await {
            tracing::debug!("the kubelet's record cannot be read: {}", status.message());
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(LONGEST),
            _ = changes.changed() => pause = FIRST,
        }
    }
}
