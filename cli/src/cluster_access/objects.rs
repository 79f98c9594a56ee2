//! The parts of Kubernetes' objects that are read. Everything may be absent.

use std::collections::BTreeMap;

use api::stored::{items, time};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A list of objects.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub(crate) struct List<T> {
    #[serde(default = "Vec::new", deserialize_with = "items")]
    pub(crate) items: Vec<T>,
}

/// An object of which its metadata is read.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Object {
    #[serde(default)]
    pub(crate) metadata: Meta,
}

/// What all objects have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    #[serde(deserialize_with = "time")]
    pub(crate) creation_timestamp: Option<Timestamp>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
    pub(crate) managed_fields: Vec<ManagedFields>,
}

/// An owner of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) controller: bool,
}

/// Who wrote which fields of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ManagedFields {
    pub(crate) manager: String,
    #[serde(deserialize_with = "time")]
    pub(crate) time: Option<Timestamp>,
    pub(crate) fields_v1: Value,
}

/// A ConfigMap.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMap {
    pub(crate) metadata: Meta,
    pub(crate) data: BTreeMap<String, String>,
}

/// A Lease.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    pub(crate) metadata: Meta,
    pub(crate) spec: LeaseSpec,
}

/// Who holds a Lease.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseSpec {
    pub(crate) holder_identity: String,
    #[serde(deserialize_with = "time")]
    pub(crate) renew_time: Option<Timestamp>,
}

impl Lease {
    /// The pod that holds it: Plimsoll's identities are the pod's name, `_` and some letters. `None` if nothing does.
    pub(crate) fn holder_pod(&self) -> Option<String> {
        let holder = &self.spec.holder_identity;
        let pod = holder.rsplit_once('_').map_or(holder.as_str(), |(pod, _)| pod);
        (!pod.is_empty()).then(|| pod.to_owned())
    }
}

/// A pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Meta,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

/// A pod's specification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) scheduler_name: String,
    pub(crate) scheduling_gates: Vec<Value>,
    pub(crate) containers: Vec<Container>,
    pub(crate) init_containers: Vec<Container>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<Variable>,
    pub(crate) resources: Resources,
}

/// A variable of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// What a container asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) limits: BTreeMap<String, Value>,
}

/// A pod's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "time")]
    pub(crate) start_time: Option<Timestamp>,
}

/// A container's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) ready: bool,
    pub(crate) restart_count: i64,
    pub(crate) state: Value,
}

/// A condition of a pod or a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    #[serde(deserialize_with = "time")]
    pub(crate) last_heartbeat_time: Option<Timestamp>,
}

impl Pod {
    /// Whether it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        let is_ready = |it: &Condition| it.kind == "Ready" && it.status == "True";
        self.status.conditions.iter().any(is_ready)
    }

    /// Whether it waits for a node.
    pub(crate) fn waits(&self) -> bool {
        self.spec.node_name.is_empty() && matches!(self.status.phase.as_str(), "Pending" | "")
    }

    /// The condition that says why it has no node.
    pub(crate) fn scheduled(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == "PodScheduled")
    }

    /// Its controller, as `deploy/web`: of a ReplicaSet the Deployment. `None` if it has none.
    pub(crate) fn workload(&self) -> Option<String> {
        let owner = self.metadata.owner_references.iter().find(|owner| owner.controller)?;
        let hash = self.metadata.labels.get("pod-template-hash");
        let of_deployment = hash.and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
        Some(match (owner.kind.as_str(), of_deployment) {
            ("ReplicaSet", Some(name)) => workload("Deployment", name),
            (kind, _) => workload(kind, &owner.name),
        })
    }
}

/// A workload as kubectl names it: `deploy/web`.
pub(crate) fn workload(kind: &str, name: &str) -> String {
    match kind {
        "Deployment" => format!("deploy/{name}"),
        "ReplicaSet" => format!("rs/{name}"),
        "StatefulSet" => format!("sts/{name}"),
        "DaemonSet" => format!("ds/{name}"),
        other => format!("{}/{name}", other.to_lowercase()),
    }
}

/// A node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) metadata: Meta,
    pub(crate) spec: NodeSpec,
    pub(crate) status: NodeStatus,
}

/// A node's specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub(crate) taints: Vec<Value>,
}

/// A node's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) capacity: BTreeMap<String, Value>,
    pub(crate) allocatable: BTreeMap<String, Value>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) node_info: NodeInfo,
}

/// The software of a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeInfo {
    pub(crate) kubelet_version: String,
    pub(crate) container_runtime_version: String,
    pub(crate) operating_system: String,
}

/// An event of `v1`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Event {
    pub(crate) metadata: Meta,
    pub(crate) involved_object: Involved,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) reporting_component: String,
    pub(crate) source: EventSource,
    #[serde(deserialize_with = "time")]
    pub(crate) event_time: Option<Timestamp>,
    #[serde(deserialize_with = "time")]
    pub(crate) last_timestamp: Option<Timestamp>,
    pub(crate) count: i64,
    pub(crate) series: Option<Series>,
}

/// The object that an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Involved {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The writer of an older event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct EventSource {
    pub(crate) component: String,
}

/// An event that happened several times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Series {
    pub(crate) count: i64,
    #[serde(deserialize_with = "time")]
    pub(crate) last_observed_time: Option<Timestamp>,
}

impl Event {
    /// When it happened last.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        let of_series = self.series.as_ref().and_then(|series| series.last_observed_time);
        of_series.or(self.last_timestamp).or(self.event_time).or(self.metadata.creation_timestamp)
    }

    /// How often it happened.
    pub(crate) fn times(&self) -> u32 {
        let of_series = self.series.as_ref().map(|series| series.count);
        u32::try_from(of_series.unwrap_or(self.count).max(1)).unwrap_or(u32::MAX)
    }

    /// The program that wrote it.
    pub(crate) fn writer(&self) -> &str {
        let newer = &self.reporting_component;
        if newer.is_empty() { &self.source.component } else { newer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_of_a_lease_stands_before_the_last_underscore() {
        let mut lease = Lease::default();
        assert_eq!(lease.holder_pod(), None);
        lease.spec.holder_identity = "scheduler-extender-7c9f-x2k_4f1d".to_owned();
        assert_eq!(lease.holder_pod().as_deref(), Some("scheduler-extender-7c9f-x2k"));
    }

    #[test]
    fn one_object_that_others_wrote_oddly_hides_no_other() {
        let text = r#"{"items": [
            {"metadata": {"name": "a"}, "status": {"startTime": "9999-12-31T23:59:59Z", "phase": "Running",
                "containerStatuses": [{"restartCount": -1, "ready": true}],
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "9999-12-31T23:59:59Z"}]}},
            {"metadata": {"name": "b"}, "status": {"phase": 7, "startTime": "2026-11-20T09:00:00Z"}},
            {"metadata": {"name": "c"}}
        ]}"#;
        let List { items } = serde_json::from_str::<List<Pod>>(text).unwrap();
        assert_eq!(
            items.iter().map(|pod| &*pod.metadata.name).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
        assert!(items[0].is_ready() && items[0].status.start_time.is_none());
        assert_eq!((&*items[1].status.phase, items[1].status.start_time.is_some()), ("", true));
        let event = r#"{"metadata": {"creationTimestamp": "9999-12-31T23:59:59Z"}, "count": -5}"#;
        let event: Event = serde_json::from_str(event).unwrap();
        assert_eq!((event.times(), event.time()), (1, None));
    }

    #[test]
    fn a_pod_of_a_deployment_is_named_by_it() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata": {"labels": {"pod-template-hash": "7c9f"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-7c9f", "controller": true}]}}"#,
        )
        .unwrap();
        assert_eq!(pod.workload().as_deref(), Some("deploy/web"));
        assert_eq!(Pod::default().workload(), None);
    }
}
