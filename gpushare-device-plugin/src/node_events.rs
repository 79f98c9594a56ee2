//! Events about this node and its pods, as `kubectl describe` shows them.

use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter, PodReference};
use placement::units::{NodeName, PodUid};

use crate::pods::PodRef;

/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which what persists is an event again. The API server keeps events for an hour by default.
pub(crate) const REPEAT_AFTER: Duration = Duration::from_secs(1800);

/// Writes events about this node and its pods.
#[derive(Clone)]
pub(crate) struct NodeEvents {
    writer: EventWriter,
    node: NodeName,
}

impl NodeEvents {
    /// Events about `node`.
    pub(crate) fn new(client: cluster::Client, node: NodeName) -> Self {
        Self { writer: EventWriter::new(client, "plimsoll-gpushare-device-plugin"), node }
    }

    /// Warns about the node. An event that cannot be written is logged.
    pub(crate) async fn warn(&self, warning: &EventText) {
        self.write(EventKind::Warning, warning).await;
    }

    /// Writes an event about the node, otherwise as [`NodeEvents::warn`].
    pub(crate) async fn write(&self, kind: EventKind, text: &EventText) {
        let written = self.writer.write_of_node(&self.node, kind, text, WRITE_TIMEOUT).await;
        if let Err(error) = written {
            tracing::warn!(reason = text.reason, "cannot write an event on the node: {error}");
        }
    }

    /// Warns about a pod, as [`NodeEvents::warn`] does about the node.
    pub(crate) async fn warn_of_pod(&self, pod: &PodRef, uid: &PodUid, warning: &EventText) {
        let PodRef { namespace, name } = pod.clone();
        let about = PodReference { namespace, name, uid: uid.to_string() };
        if let Err(error) = self.writer.warn(&about, warning, WRITE_TIMEOUT).await {
            let PodReference { namespace, name: pod, uid } = about;
            let reason = warning.reason;
            tracing::warn!(
                uid,
                namespace,
                pod,
                reason,
                "cannot write an event on the pod: {error}"
            );
        }
    }
}
