//! The kinds of object that the stand-in serves. All are of the core group, version `v1`.

use serde_json::Value;

/// The API version of every kind.
pub(crate) const API_VERSION: &str = "v1";

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The name in URLs and error messages, e.g. `pods`.
    pub plural: &'static str,
    /// The name in objects, e.g. `Pod`.
    pub name: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What kubectl's users type, e.g. `po`.
    pub(crate) short: &'static str,
}

/// Nodes.
pub const NODES: Kind = Kind { plural: "nodes", name: "Node", namespaced: false, short: "no" };
/// Pods.
pub const PODS: Kind = Kind { plural: "pods", name: "Pod", namespaced: true, short: "po" };
/// ConfigMaps.
pub const CONFIG_MAPS: Kind =
    Kind { plural: "configmaps", name: "ConfigMap", namespaced: true, short: "cm" };
/// Events.
pub const EVENTS: Kind = Kind { plural: "events", name: "Event", namespaced: true, short: "ev" };

/// Every kind served.
pub const KINDS: [Kind; 4] = [NODES, PODS, CONFIG_MAPS, EVENTS];

impl Kind {
    /// The kind with this plural.
    #[must_use]
    pub fn find(plural: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.plural == plural)
    }

    /// The kind that an object's `kind` and `apiVersion` name, if it is served.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let is = |kind: &Kind| object["kind"] == kind.name && object["apiVersion"] == API_VERSION;
        KINDS.into_iter().find(is)
    }
}
