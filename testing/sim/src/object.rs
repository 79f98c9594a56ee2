//! Nodes and pods, built in the words of a test.

use serde_json::{Value, json};

/// A Ready node without an address. See [`NodeBuilder`].
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

/// A pending pod in namespace `default`, without containers. See [`PodBuilder`].
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
        /// With an annotation.
        pub fn annotation(mut self, key: &str, value: impl Into<String>) -> Self {
            self.0["metadata"]["annotations"][key] = value.into().into();
            self
        }

        /// With a label.
        pub fn label(mut self, key: &str, value: &str) -> Self {
            self.0["metadata"]["labels"][key] = value.into();
            self
        }

        /// With a UID of the test's choice.
        pub fn uid(mut self, uid: &str) -> Self {
            self.0["metadata"]["uid"] = uid.into();
            self
        }

        /// Created at an RFC 3339 time.
        pub fn created_at(mut self, time: &str) -> Self {
            self.0["metadata"]["creationTimestamp"] = time.into();
            self
        }
    };
}

/// A node in the making. Hand it to [`Sim::put`](crate::Sim::put) as it is.
#[derive(Debug, Clone)]
#[must_use]
pub struct NodeBuilder(Value);

impl NodeBuilder {
    metadata!();

    /// With an InternalIP; may be said more than once.
    pub fn address(mut self, ip: &str) -> Self {
        let address = json!({"type": "InternalIP", "address": ip});
        push(&mut self.0["status"]["addresses"], address);
        self
    }

    /// Whose kubelet has stopped reporting.
    pub fn not_ready(mut self) -> Self {
        self.0["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        self
    }

    /// With so much of a resource, as capacity and allocatable.
    pub fn with(mut self, resource: &str, amount: u32) -> Self {
        for field in ["capacity", "allocatable"] {
            self.0["status"][field][resource] = amount.to_string().into();
        }
        self
    }
}

/// A pod in the making. Hand it to [`Sim::put`](crate::Sim::put) as it is.
#[derive(Debug, Clone)]
#[must_use]
pub struct PodBuilder(Value);

impl PodBuilder {
    metadata!();

    /// In a namespace.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = namespace.into();
        self
    }

    /// With one container, `main`, that asks for so much of a resource.
    pub fn asking(self, resource: &str, amount: u32) -> Self {
        self.container("main", resource, amount)
    }

    /// With a container of this name that asks for so much of a resource.
    pub fn container(mut self, name: &str, resource: &str, amount: u32) -> Self {
        push(&mut self.0["spec"]["containers"], container(name, resource, amount));
        self
    }

    /// With an init container.
    pub fn init_container(mut self, name: &str, resource: &str, amount: u32) -> Self {
        let container = container(name, resource, amount);
        push(&mut self.0["spec"]["initContainers"], container);
        self
    }

    /// With an init container that keeps running.
    pub fn sidecar(mut self, name: &str, resource: &str, amount: u32) -> Self {
        let mut container = container(name, resource, amount);
        container["restartPolicy"] = "Always".into();
        push(&mut self.0["spec"]["initContainers"], container);
        self
    }

    /// Bound to a node.
    pub fn on(mut self, node: &str) -> Self {
        self.0["spec"]["nodeName"] = node.into();
        self
    }

    /// Bound at an RFC 3339 time, as the PodScheduled condition tells.
    pub fn scheduled_at(mut self, time: &str) -> Self {
        let condition =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": time});
        push(&mut self.0["status"]["conditions"], condition);
        self
    }

    /// In a phase, e.g. `Running`.
    pub fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = phase.into();
        self
    }

    /// Owned by a controller of this kind.
    pub fn owned_by(mut self, kind: &str, name: &str) -> Self {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true,
        });
        push(&mut self.0["metadata"]["ownerReferences"], owner);
        self
    }

    /// Being deleted since an RFC 3339 time.
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
