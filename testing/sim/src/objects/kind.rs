//! The kinds of object that the stand-in serves.

use serde_json::Value;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The `apiVersion` of its objects: `v1`, or the group and the version.
    pub api_version: &'static str,
    /// The name in URLs and error messages, e.g. `pods`.
    pub plural: &'static str,
    /// The name in objects, e.g. `Pod`.
    pub name: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// Nodes.
pub const NODES: Kind =
    Kind { api_version: "v1", plural: "nodes", name: "Node", namespaced: false };
/// Pods.
pub const PODS: Kind = Kind { api_version: "v1", plural: "pods", name: "Pod", namespaced: true };
/// ConfigMaps.
pub const CONFIG_MAPS: Kind =
    Kind { api_version: "v1", plural: "configmaps", name: "ConfigMap", namespaced: true };
/// Events.
pub const EVENTS: Kind =
    Kind { api_version: "v1", plural: "events", name: "Event", namespaced: true };
/// Events as clients of `events.k8s.io` write them. In Kubernetes these are [`EVENTS`] in another version; here they
/// are kept apart.
pub const WRITTEN_EVENTS: Kind =
    Kind { api_version: "events.k8s.io/v1", plural: "events", name: "Event", namespaced: true };
/// Leases.
pub const LEASES: Kind = Kind {
    api_version: "coordination.k8s.io/v1",
    plural: "leases",
    name: "Lease",
    namespaced: true,
};

/// What metrics-server tells of nodes, as if it were installed. The real one takes no writes.
pub const NODE_METRICS: Kind = Kind {
    api_version: "metrics.k8s.io/v1beta1",
    plural: "nodes",
    name: "NodeMetrics",
    namespaced: false,
};

/// PodDisruptionBudgets. No controller fills their status in.
pub const DISRUPTION_BUDGETS: Kind = Kind {
    api_version: "policy/v1",
    plural: "poddisruptionbudgets",
    name: "PodDisruptionBudget",
    namespaced: true,
};

/// EndpointSlices. No controller fills them in.
pub const ENDPOINT_SLICES: Kind = Kind {
    api_version: "discovery.k8s.io/v1",
    plural: "endpointslices",
    name: "EndpointSlice",
    namespaced: true,
};

/// ResourceSlices. The kubelet stand-in, which has no drivers, removes none.
pub const RESOURCE_SLICES: Kind = Kind {
    api_version: "resource.k8s.io/v1",
    plural: "resourceslices",
    name: "ResourceSlice",
    namespaced: false,
};

/// ResourceClaims. Nothing allocates them, and no controller makes them of templates.
pub const RESOURCE_CLAIMS: Kind = Kind {
    api_version: "resource.k8s.io/v1",
    plural: "resourceclaims",
    name: "ResourceClaim",
    namespaced: true,
};

/// Every kind served.
pub const KINDS: [Kind; 11] = [
    NODES,
    PODS,
    CONFIG_MAPS,
    EVENTS,
    WRITTEN_EVENTS,
    LEASES,
    NODE_METRICS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
];

impl Kind {
    /// The kind of this API version with this plural.
    #[must_use]
    pub fn find(api_version: &str, plural: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.api_version == api_version && kind.plural == plural)
    }

    /// The group; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The plural with its group, as messages name it: `leases.coordination.k8s.io`.
    pub(crate) fn qualified(self) -> String {
        match self.group() {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The kind that an object's `kind` and `apiVersion` name, if it is served.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        KINDS
            .into_iter()
            .find(|kind| object["kind"] == kind.name && object["apiVersion"] == kind.api_version)
    }
}
