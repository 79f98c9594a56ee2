//! Events about pods, nodes and ConfigMaps, as `kubectl describe` shows them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use placement::units::NodeName;
use serde_json::json;

mod series;

use self::series::{About, EventContent, RecentEvents, Series};
use crate::call::{CallError, within};

/// The API server refuses an event whose note has more bytes.
const MAX_NOTE: usize = 1024;

/// The end of a note that was cut.
const CUT: &str = "…";

/// The API server refuses an event whose writing process has a longer name, in bytes.
const MAX_INSTANCE: usize = 128;

/// The namespace of events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It does not.
    Normal,
    /// It does.
    Warning,
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventText {
    /// One word in PascalCase, at most 128 characters.
    pub reason: &'static str,
    /// What was being done, likewise.
    pub action: &'static str,
    /// What people read. What is longer than 1,024 bytes is cut.
    pub note: String,
}

/// Writes events in the name of one program. Needs the right to create and patch `events.k8s.io/events`.
///
/// An event that was written in the last six minutes with the same text about the same object is counted up (`series`);
/// one with another text is another event. Clones count together.
#[derive(Clone)]
pub struct EventWriter {
    client: Client,
    controller: Arc<str>,
    instance: Arc<str>,
    recent: Arc<Mutex<RecentEvents>>,
}

impl EventWriter {
    /// Writes events as `controller`. The pod's name stands in them too.
    #[must_use]
    pub fn new(client: Client, controller: &str) -> Self {
        let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| controller.to_owned());
        Self {
            client,
            controller: controller.into(),
            instance: Arc::from(&instance[..instance.floor_char_boundary(MAX_INSTANCE)]),
            recent: Arc::default(),
        }
    }

    async fn write(
        &self,
        about: About,
        kind: EventKind,
        text: &EventText,
        limit: Duration,
    ) -> Result<(), CallError> {
        let namespace = about.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE).to_owned();
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let content =
            EventContent { about, kind, text: EventText { note: cut(&text.note), ..text.clone() } };
        let now = Timestamp::now();
        let next = self.recent().next(&content, now);
        if let Some(series) = next {
            let patch = Patch::Merge(json!({ "series": counted(&series) }));
            let params = PatchParams::default();
            match within(limit, events.patch(&series.name, &params, &patch)).await {
                Ok(_) => {
                    self.recent().record(content, series);
                    return Ok(());
                }
                // The object was deleted since.
                Err(CallError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let series = self.recent().first(&content, now);
        let event = self.event(&content, &series, namespace);
        within(limit, events.create(&PostParams::default(), &event)).await?;
        self.recent().record(content, series);
        Ok(())
    }

    /// The object of the first event of a series.
    fn event(&self, content: &EventContent, series: &Series, namespace: String) -> Event {
        let EventContent { about, kind, text } = content;
        let type_ = match kind {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                namespace: Some(namespace),
                name: Some(series.name.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(series.at)),
            type_: Some(type_.to_owned()),
            reason: Some(text.reason.to_owned()),
            action: Some(text.action.to_owned()),
            note: Some(text.note.clone()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(about.kind.to_owned()),
                namespace: about.namespace.clone(),
                name: Some(about.name.clone()),
                uid: about.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(self.controller.to_string()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        }
    }

    // Each change leaves a valid value, so a panic cannot leave a partial change that matters.
    fn recent(&self) -> MutexGuard<'_, RecentEvents> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.write_of_pod(pod, EventKind::Warning, warning, limit).await
    }

    /// Writes an event about a pod, otherwise as [`EventWriter::warn`].
    ///
    /// # Errors
    ///
    /// As [`EventWriter::warn`].
    pub async fn write_of_pod(
        &self,
        pod: &PodReference,
        kind: EventKind,
        text: &EventText,
        limit: Duration,
    ) -> Result<(), CallError> {
        let PodReference { namespace, name, uid } = pod.clone();
        let about = About { kind: "Pod", namespace: Some(namespace), name, uid: Some(uid) };
        self.write(about, kind, text, limit).await
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
        // The kubelet writes the node's name as the UID too, and `kubectl describe node` looks for it.
        let (name, uid) = (node.to_string(), Some(node.to_string()));
        let about = About { kind: "Node", namespace: None, name, uid };
        self.write(about, kind, text, limit).await
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
        let uid = within(limit, maps.get_metadata(&map.name)).await?.metadata.uid;
        let ConfigMapReference { namespace, name } = map.clone();
        let about = About { kind: "ConfigMap", namespace: Some(namespace), name, uid };
        self.write(about, EventKind::Warning, warning, limit).await
    }
}

/// What the object says of a series of more than one event.
fn counted(series: &Series) -> EventSeries {
    EventSeries { count: series.count, last_observed_time: MicroTime(series.at) }
}

/// A note that the API server takes.
fn cut(note: &str) -> String {
    if note.len() <= MAX_NOTE {
        return note.to_owned();
    }
    format!("{}{CUT}", &note[..note.floor_char_boundary(MAX_NOTE - CUT.len())])
}
