//! Writes an event for each pod that may go to nodes over their limits, since all nodes are, with the cause. Only a
//! cluster whose nodes are over their limits by measurement is short of room: that alone is a warning.
//!
//! Invariant: Filter does not wait for it. A task of its own writes the events: few a second, in turns of the pods'
//! namespaces, and one for each pod in some minutes. If its queue is full, a pod gets no event.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter, PodReference};
use daemon::Shutdown;
use placement::units::PodUid;
use tokio::time::Instant;

use crate::decisions::{DecidedPod, OverLimitCause};
use crate::tables::{Table, TurnQueue};

/// The pause between two events: 5 a second.
const PAUSE: Duration = Duration::from_millis(200);

/// A pod gets no second event of the same reason within this time.
const ONE_EACH: Duration = Duration::from_secs(5 * 60);

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The queue of such pods.
#[derive(Debug, Clone)]
pub struct OverLimits(Arc<TurnQueue<PodUid, (PodReference, OverLimitCause)>>);

impl Default for OverLimits {
    fn default() -> Self {
        Self(Arc::new(TurnQueue::new(Table::OverLimits)))
    }
}

impl OverLimits {
    /// Queues an event for a pod that may go to nodes over their limits.
    pub fn report(&self, pod: &DecidedPod, cause: OverLimitCause) {
        if let Some(reference) = pod.reference() {
            // Where hundreds of events wait already, one is dropped; metrics count all such pods.
            self.0.push(&pod.namespace, pod.uid.clone(), (reference, cause));
        }
    }
}

/// Writes the events until the shutdown.
///
/// # Errors
///
/// None: an event that cannot be written is logged.
pub async fn write_events(
    queue: OverLimits,
    writer: EventWriter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut warned: HashMap<(String, &str), Instant> = HashMap::new();
    while let Some((_, (pod, cause))) = shutdown.run_until_cancelled(queue.0.next()).await {
        let now = Instant::now();
        warned.retain(|_, at| now.duration_since(*at) < ONE_EACH);
        let (kind, text) = event(&pod, cause);
        let Entry::Vacant(unwarned) = warned.entry((pod.uid.clone(), text.reason)) else {
            continue;
        };
        unwarned.insert(now);
        if let Err(error) = writer.write_of_pod(&pod, kind, &text, TIMEOUT).await {
            let PodReference { namespace, name: pod, uid } = &pod;
            tracing::warn!(uid, namespace, pod, %error, "cannot write the event {}", text.reason);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

fn event(pod: &PodReference, cause: OverLimitCause) -> (EventKind, EventText) {
    let (kind, reason, why) = match cause {
        OverLimitCause::Measured => (
            EventKind::Warning,
            "AllNodesOverLoadLimit",
            "Every node that would do is over a load limit",
        ),
        OverLimitCause::Estimates => (
            EventKind::Normal,
            "PlacedOverLoadLimit",
            "Every node that would do is over a load limit with what pods will probably use that is not measured yet",
        ),
        OverLimitCause::NoNodeLargeEnough => (
            EventKind::Normal,
            "PlacedOverLoadLimit",
            "This pod alone is over a load limit on every node that would do, and they carry more",
        ),
        OverLimitCause::FewCandidates => (
            EventKind::Normal,
            "PlacedOverLoadLimit",
            "The few nodes that meet what else the pod asks for are over a load limit; others are not",
        ),
        OverLimitCause::NotMeasured => (
            EventKind::Normal,
            "PlacedOverLoadLimit",
            "No node that would do is measured, and the policy rejects nodes for that",
        ),
    };
    let PodReference { namespace, name, .. } = pod;
    let note = format!(
        "{why}; one of the least loaded of them takes the pod. Ask: kubectl plimsoll why {name} -n {namespace}"
    );
    (kind, EventText { reason, action: "Filter", note })
}
