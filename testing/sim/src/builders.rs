//! Builders of nodes and pods for tests.

use serde_json::{Value, json};

/// A Ready node without an address.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

/// A pending pod in namespace `default`, without containers.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": []},
        "status": {"phase": "Pending"},
    }))
}

macro_rules! metadata {
    () => {
        /// Adds an annotation.
        pub fn annotation(mut self, key: &str, value: impl Into<String>) -> Self {
            self.0["metadata"]["annotations"][key] = value.into().into();
            self
        }

        /// Adds a label.
        pub fn label(mut self, key: &str, value: &str) -> Self {
            self.0["metadata"]["labels"][key] = value.into();
            self
        }

        /// Sets the UID.
        pub fn uid(mut self, uid: &str) -> Self {
            self.0["metadata"]["uid"] = uid.into();
            self
        }

        /// Sets the creation time, in RFC 3339.
        pub fn created_at(mut self, time: &str) -> Self {
            self.0["metadata"]["creationTimestamp"] = time.into();
            self
        }
    };
}

/// Builds a Node object, e.g. for [`Sim::put`](crate::Sim::put).
#[derive(Debug, Clone)]
#[must_use]
pub struct NodeBuilder(Value);

impl NodeBuilder {
    metadata!();

    /// Adds an InternalIP.
    pub fn address(mut self, ip: &str) -> Self {
        let address = json!({"type": "InternalIP", "address": ip});
        push(&mut self.0["status"]["addresses"], address);
        self
    }

    /// Sets the condition of a node whose kubelet has stopped reporting.
    pub fn not_ready(mut self) -> Self {
        self.0["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        self
    }

    /// Sets capacity and allocatable of a resource.
    pub fn with(mut self, resource: &str, amount: u32) -> Self {
        for field in ["capacity", "allocatable"] {
            self.0["status"][field][resource] = amount.to_string().into();
        }
        self
    }
}

/// Builds a Pod object, e.g. for [`Sim::put`](crate::Sim::put).
#[derive(Debug, Clone)]
#[must_use]
pub struct PodBuilder(pub(crate) Value);

impl PodBuilder {
    metadata!();

    /// Sets the namespace.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = namespace.into();
        self
    }

    /// Adds a container `main` with this limit of a resource.
    pub fn asking(self, resource: &str, amount: u32) -> Self {
        self.container("main", resource, amount)
    }

    /// Adds a container with this limit of a resource.
    pub fn container(mut self, name: &str, resource: &str, amount: u32) -> Self {
        push(&mut self.0["spec"]["containers"], container(name, resource, amount));
        self
    }

    /// Adds an init container with this limit of a resource.
    pub fn init_container(mut self, name: &str, resource: &str, amount: u32) -> Self {
        let container = container(name, resource, amount);
        push(&mut self.0["spec"]["initContainers"], container);
        self
    }

    /// Adds an init container that keeps running, with this limit of a resource.
    pub fn sidecar(mut self, name: &str, resource: &str, amount: u32) -> Self {
        let mut container = container(name, resource, amount);
        container["restartPolicy"] = "Always".into();
        push(&mut self.0["spec"]["initContainers"], container);
        self
    }

    /// Mounts a volume of memory at this path into the containers that it has by now.
    pub fn mounting(mut self, path: &str) -> Self {
        push(
            &mut self.0["spec"]["volumes"],
            json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
        );
        for container in self.0["spec"]["containers"].as_array_mut().into_iter().flatten() {
            push(&mut container["volumeMounts"], json!({"name": "v", "mountPath": path}));
        }
        self
    }

    /// Sets the condition that a binding sets: a scheduler chose its node.
    pub fn scheduled(mut self) -> Self {
        self.0["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z",
        }]);
        self
    }

    /// Sets the node that it is bound to.
    pub fn on(mut self, node: &str) -> Self {
        self.0["spec"]["nodeName"] = node.into();
        self
    }

    /// Adds the condition PodScheduled with this time, in RFC 3339.
    pub fn scheduled_at(mut self, time: &str) -> Self {
        let condition =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": time});
        push(&mut self.0["status"]["conditions"], condition);
        self
    }

    /// Has all of its containers run since this time, in RFC 3339.
    pub fn running_since(mut self, time: &str) -> Self {
        let containers = self.0["spec"]["containers"].as_array().into_iter().flatten();
        let state = json!({"running": {"startedAt": time}});
        let statuses: Value = containers
            .map(|container| json!({"name": container["name"], "state": state}))
            .collect();
        self.0["status"]["containerStatuses"] = statuses;
        self
    }

    /// Sets the phase, e.g. `Running`.
    pub fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = phase.into();
        self
    }

    /// Adds an owner that is a controller of this kind.
    pub fn owned_by(mut self, kind: &str, name: &str) -> Self {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true,
        });
        push(&mut self.0["metadata"]["ownerReferences"], owner);
        self
    }

    /// Sets the deletion time, in RFC 3339.
    pub fn deleting_since(mut self, time: &str) -> Self {
        self.0["metadata"]["deletionTimestamp"] = time.into();
        self
    }
}

fn container(name: &str, resource: &str, amount: u32) -> Value {
    let amount = amount.to_string();
    json!({
        "name": name, "image": "image",
        "resources": {"limits": {resource: amount}, "requests": {resource: amount}},
    })
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

impl From<NodeBuilder> for Value {
    fn from(builder: NodeBuilder) -> Self {
        builder.0
    }
}

impl From<PodBuilder> for Value {
    fn from(builder: PodBuilder) -> Self {
        builder.0
    }
}
