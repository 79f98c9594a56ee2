//! Events about pods and nodes, as `kubectl describe` shows them.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder};
use placement::units::NodeName;

use crate::call::{CallError, within};

/// Characters of a note. The API server refuses one of more than 1,024 bytes; ours are ASCII but for what they quote.
const MAX_NOTE: usize = 1000;

/// A pod by namespace, name and UID, for calls and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The content of a warning event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// One word in PascalCase, at most 128 characters.
    pub reason: &'static str,
    /// What was being done, likewise.
    pub action: &'static str,
    /// What people read, at most 1 kB.
    pub note: String,
}

/// Writes events in the name of one program. Needs the right to create and patch `events.k8s.io/events`.
#[derive(Clone)]
pub struct EventWriter(Recorder);

impl EventWriter {
    /// Writes events as `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &str) -> Self {
        Self(Recorder::new(client, controller.into()))
    }

    /// Warns about a pod. The same warning within some minutes counts up the event that is there.
    ///
    /// # Errors
    ///
    /// [`CallError`]; with [`CallError::Unknown`] the event may have been written.
    pub async fn warn(
        &self,
        pod: &PodReference,
        warning: &Warning,
        limit: Duration,
    ) -> Result<(), CallError> {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        within(limit, self.0.publish(&event(warning), &about)).await
    }

    /// Warns about a node, as [`EventWriter::warn`] does about a pod. The event lies in the namespace `default`.
    ///
    /// # Errors
    ///
    /// As [`EventWriter::warn`].
    pub async fn warn_of_node(
        &self,
        node: &NodeName,
        warning: &Warning,
        limit: Duration,
    ) -> Result<(), CallError> {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            // The kubelet writes the node's name here too, and `kubectl describe node` looks for it.
            uid: Some(node.to_string()),
            ..ObjectReference::default()
        };
        within(limit, self.0.publish(&event(warning), &about)).await
    }
}

fn event(warning: &Warning) -> Event {
    Event {
        type_: EventType::Warning,
        reason: warning.reason.to_owned(),
        note: Some(warning.note.chars().take(MAX_NOTE).collect()),
        action: warning.action.to_owned(),
        secondary: None,
    }
}
