//! Pods that may go to nodes over their limits, since no other was left: told in an event of the pod.
//!
//! Invariant: Filter waits for nothing. Events are written by a task of their own, few a second and one a pod in some
//! minutes; where it is behind, a pod goes without.

use std::collections::HashMap;
use std::time::Duration;

use cluster::{AboutPod, EventWriter, Warning};
use daemon::Shutdown;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::decisions::DecidedPod;

/// Pods that wait for their event at most.
const QUEUE: usize = 256;

/// Between two events: 5 a second.
const PAUSE: Duration = Duration::from_millis(200);

/// A pod gets no second event within this time.
const ONE_EACH: Duration = Duration::from_secs(5 * 60);

/// For one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where such pods are told.
pub struct OverLimits {
    queue: mpsc::Sender<AboutPod>,
}

/// What waits for its event.
pub struct Queue(mpsc::Receiver<AboutPod>);

impl OverLimits {
    /// The place to tell such pods, and what is to be written.
    #[must_use]
    pub fn new() -> (Self, Queue) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, Queue(waiting))
    }

    /// A pod may go to nodes over their limits.
    pub fn report(&self, pod: &DecidedPod) {
        if let Some(pod) = pod.reference() {
            // A full queue means that hundreds of pods are told already; metrics count all.
            let _ = self.queue.try_send(pod);
        }
    }
}

/// Writes the events until the shutdown.
///
/// # Errors
///
/// None: an event that cannot be written is logged.
pub async fn write_events(
    mut queue: Queue,
    writer: EventWriter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut told: HashMap<String, Instant> = HashMap::new();
    while let Some(Some(pod)) = shutdown.run_until_cancelled(queue.0.recv()).await {
        let now = Instant::now();
        told.retain(|_, at| now.duration_since(*at) < ONE_EACH);
        if told.insert(pod.uid.clone(), now).is_some() {
            continue;
        }
        if let Err(error) = writer.warn(&pod, &warning(&pod), TIMEOUT).await {
            let AboutPod { namespace, name, .. } = &pod;
            tracing::warn!(namespace, name, %error, "no event for a pod that may go to nodes over their limits");
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

fn warning(pod: &AboutPod) -> Warning {
    let AboutPod { namespace, name, .. } = pod;
    Warning {
        reason: "AllNodesOverLoadLimit",
        action: "Filter",
        note: format!(
            "Every node that would do is over a load limit; the least loaded of them may take the pod. Ask: kubectl plimsoll \
             explain pod {name} -n {namespace}"
        ),
    }
}
