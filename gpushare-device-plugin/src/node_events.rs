//! Events about this node and its pods, as `kubectl describe` shows them.

use std::time::Duration;

use cluster::{EventWriter, PodReference, Warning};
use placement::units::{NodeName, PodUid};

use crate::pods::PodRef;

/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes events about this node and its pods.
#[derive(Clone)]
pub struct NodeEvents {
    writer: EventWriter,
    node: NodeName,
}

impl NodeEvents {
    /// Events about `node`.
    pub fn new(client: cluster::Client, node: NodeName) -> Self {
        Self { writer: EventWriter::new(client, "plimsoll-gpushare-device-plugin"), node }
    }

    /// Warns; an event that cannot be written is logged. `reason` and `action` are one word each.
    pub async fn warn(&self, reason: &'static str, action: &'static str, note: String) {
        let warning = Warning { reason, action, note };
        let written = self.writer.warn_of_node(&self.node, &warning, WRITE_TIMEOUT).await;
        if let Err(error) = written {
            tracing::warn!(reason, "cannot write an event on the node: {error}");
        }
    }

    /// Warns about a pod, as [`NodeEvents::warn`] does about the node.
    pub async fn warn_of_pod(
        &self,
        pod: &PodRef,
        uid: &PodUid,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let PodRef { namespace, name } = pod.clone();
        let about = PodReference { namespace, name, uid: uid.to_string() };
        let warning = Warning { reason, action, note };
        if let Err(error) = self.writer.warn(&about, &warning, WRITE_TIMEOUT).await {
            tracing::warn!(reason, %pod, "cannot write an event on the pod: {error}");
        }
    }
}
