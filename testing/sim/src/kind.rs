//! The kinds of object that the stand-in serves, and where each lives in the API.

use serde_json::{Value, json};

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// The group's version.
    pub version: &'static str,
    /// As in the URL, e.g. `pods`.
    pub plural: &'static str,
    /// As in the objects, e.g. `Pod`.
    pub name: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// Nodes.
pub const NODES: Kind = core("nodes", "Node", false);
/// Pods.
pub const PODS: Kind = core("pods", "Pod", true);
/// Namespaces. Any namespace may be used without one.
pub const NAMESPACES: Kind = core("namespaces", "Namespace", false);
/// ConfigMaps.
pub const CONFIG_MAPS: Kind = core("configmaps", "ConfigMap", true);
/// Events of the core group.
pub const EVENTS: Kind = core("events", "Event", true);
/// Events of `events.k8s.io`: the core group's, under other names.
pub const NEW_EVENTS: Kind = Kind { group: "events.k8s.io", ..EVENTS };
/// Leases.
pub const LEASES: Kind = Kind { group: "coordination.k8s.io", ..core("leases", "Lease", true) };

/// Every kind served.
pub const KINDS: [Kind; 7] = [NODES, PODS, NAMESPACES, CONFIG_MAPS, EVENTS, NEW_EVENTS, LEASES];

const fn core(plural: &'static str, name: &'static str, namespaced: bool) -> Kind {
    Kind { group: "", version: "v1", plural, name, namespaced }
}

impl Kind {
    /// `v1`, or `coordination.k8s.io/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The kind's name in error messages: `pods`, or `leases.coordination.k8s.io`.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The kind itself in error messages: `Pod`, or `Lease.coordination.k8s.io`.
    pub(crate) fn title(&self) -> String {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{}{group}", self.name)
    }

    /// The kind with this plural in a group and version, if it is served.
    #[must_use]
    pub fn find(group: &str, version: &str, plural: &str) -> Option<Self> {
        KINDS
            .into_iter()
            .find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
    }

    /// The kind that an object says it is of, if it is served.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let is = |kind: &Kind| {
            object["kind"] == kind.name && object["apiVersion"] == kind.api_version().as_str()
        };
        KINDS.into_iter().find(is)
    }

    /// Its entry in an `APIResourceList`.
    fn discovery(&self) -> Value {
        let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
        json!({
            "name": self.plural, "singularName": "", "namespaced": self.namespaced,
            "kind": self.name, "verbs": verbs, "shortNames": self.short_names(),
        })
    }

    /// What kubectl's users type.
    fn short_names(&self) -> &'static [&'static str] {
        match self.plural {
            "nodes" => &["no"],
            "pods" => &["po"],
            "namespaces" => &["ns"],
            "configmaps" => &["cm"],
            "events" if self.group.is_empty() => &["ev"],
            _ => &[],
        }
    }
}

/// `GET /apis`.
pub(crate) fn groups() -> Value {
    let groups: Vec<Value> =
        KINDS.iter().filter(|kind| !kind.group.is_empty()).map(group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group(kind: &Kind) -> Value {
    let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
    json!({"name": kind.group, "versions": [version], "preferredVersion": version})
}

/// `GET /api/v1` or `/apis/<group>/<version>`, if anything is there.
pub(crate) fn resources(group: &str, version: &str) -> Option<Value> {
    let here = |kind: &&Kind| (kind.group, kind.version) == (group, version);
    let kinds: Vec<&Kind> = KINDS.iter().filter(here).collect();
    let first = kinds.first()?;
    let resources: Vec<Value> = kinds.iter().map(|kind| kind.discovery()).collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": first.api_version(), "resources": resources,
    }))
}
