//! Events about pods, nodes and ConfigMaps, as `kubectl describe` shows them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client};
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

/// A ConfigMap by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whether an event tells of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It does not.
    Normal,
    /// It does.
    Warning,
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventText {
    /// One word in PascalCase, at most 128 characters.
    pub reason: &'static str,
    /// What was being done, likewise.
    pub action: &'static str,
    /// What people read, at most 1 kB.
    pub note: String,
}

/// Writes events in the name of one program. Needs the right to create and patch `events.k8s.io/events`.
#[derive(Clone)]
pub struct EventWriter {
    recorder: Recorder,
    client: Client,
}

impl EventWriter {
    /// Writes events as `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &str) -> Self {
        Self { recorder: Recorder::new(client.clone(), controller.into()), client }
    }

    async fn write(
        &self,
        kind: EventKind,
        text: &EventText,
        about: &ObjectReference,
        limit: Duration,
    ) -> Result<(), CallError> {
        let event = Event {
            type_: match kind {
                EventKind::Normal => EventType::Normal,
                EventKind::Warning => EventType::Warning,
            },
            reason: text.reason.to_owned(),
            note: Some(text.note.chars().take(MAX_NOTE).collect()),
            action: text.action.to_owned(),
            secondary: None,
        };
        within(limit, self.recorder.publish(&event, about)).await
    }

    /// Warns about a pod. The same warning within some minutes counts up the event that is there.
    ///
    /// # Errors
    ///
    /// [`CallError`]; with [`CallError::Unknown`] the event may have been written.
    pub async fn warn(
        &self,
        pod: &PodReference,
        warning: &EventText,
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
        self.write(EventKind::Warning, warning, &about, limit).await
    }

    /// Writes an event about a node, otherwise as [`EventWriter::warn`]. It lies in the namespace `default`.
    ///
    /// # Errors
    ///
    /// As [`EventWriter::warn`].
    pub async fn write_of_node(
        &self,
        node: &NodeName,
        kind: EventKind,
        text: &EventText,
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
        self.write(kind, text, &about, limit).await
    }

    /// Warns about a ConfigMap, as [`EventWriter::warn`] does about a pod. Needs the right to get it:
    /// `kubectl describe` finds events by the object's UID.
    ///
    /// # Errors
    ///
    /// As [`EventWriter::warn`].
    pub async fn warn_of_config_map(
        &self,
        map: &ConfigMapReference,
        warning: &EventText,
        limit: Duration,
    ) -> Result<(), CallError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &map.namespace);
        let found = within(limit, maps.get_metadata(&map.name)).await?;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: Some(map.namespace.clone()),
            name: Some(map.name.clone()),
            uid: found.metadata.uid,
            ..ObjectReference::default()
        };
        self.write(EventKind::Warning, warning, &about, limit).await
    }
}
