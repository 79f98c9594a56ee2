//! Writes an event for each pod that may go to nodes over their limits, since all nodes are, with the cause. Only a
//! cluster whose nodes are over their limits by measurement is short of room: that alone is a warning.
//!
//! Invariant: Filter does not wait for it. A task of its own writes the events: few a second, and one for each pod in
//! some minutes. If its queue is full, a pod gets no event.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter, PodReference};
use daemon::Shutdown;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::decisions::{DecidedPod, OverLimitCause};

/// Pods in the queue at most.
const QUEUE: usize = 256;

/// The pause between two events: 5 a second.
const PAUSE: Duration = Duration::from_millis(200);

/// A pod gets no second event of the same reason within this time.
const ONE_EACH: Duration = Duration::from_secs(5 * 60);

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The sender of such pods.
pub struct OverLimits {
    queue: mpsc::Sender<OverLimitPod>,
}

/// The queue of such pods.
pub struct OverLimitsQueue(mpsc::Receiver<OverLimitPod>);

type OverLimitPod = (PodReference, OverLimitCause);

impl OverLimits {
    /// The sender and the queue.
    #[must_use]
    pub fn new() -> (Self, OverLimitsQueue) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, OverLimitsQueue(waiting))
    }

    /// Queues an event for a pod that may go to nodes over their limits.
    pub fn report(&self, pod: &DecidedPod, cause: OverLimitCause) {
        if let Some(pod) = pod.reference() {
            // A full queue means that hundreds of events wait already; metrics count all such pods.
            let _ = self.queue.try_send((pod, cause));
        }
    }
}

/// Writes the events until the shutdown.
///
/// # Errors
///
/// None: an event that cannot be written is logged.
pub async fn write_events(
    mut queue: OverLimitsQueue,
    writer: EventWriter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut warned: HashMap<(String, &str), Instant> = HashMap::new();
    while let Some(Some((pod, cause))) = shutdown.run_until_cancelled(queue.0.recv()).await {
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
