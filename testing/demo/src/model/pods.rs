//! The pods that the scenario makes.

use serde_json::{Value, json};

use super::nodes::{GPU_RESOURCE, POOL};

/// A pod without a GPU.
pub(crate) fn plain(name: &str) -> Value {
    let mut pod: Value = sim::pod(name).into();
    pod["spec"]["containers"] = json!([{
        "name": "main", "image": "web",
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    }]);
    pod
}

/// A DaemonSet's pod as its controller makes them: with an affinity to one node's name.
pub(crate) fn daemon(name: &str, node: &str) -> Value {
    let mut pod: Value = sim::pod(name).owned_by("DaemonSet", "agent").into();
    pod["spec"]["containers"] = json!([{
        "name": "main", "image": "agent",
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }]);
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    pod["spec"]["tolerations"] = tolerations();
    pod["spec"]["affinity"] = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [field]}],
        },
    }});
    pod
}

/// A pod with a container for each size, in units of GPU memory. Each container asks for every GPU through
/// `NVIDIA_VISIBLE_DEVICES=all`, which must not help it.
pub(crate) fn gpu(name: &str, sizes: &[u64]) -> Value {
    let mut pod: Value = sim::pod(name).into();
    let containers =
        sizes.iter().enumerate().map(|(i, size)| container(&format!("main-{i}"), *size));
    pod["spec"]["containers"] = containers.collect();
    pod["spec"]["tolerations"] = tolerations();
    pod
}

/// A GPU pod with an init container, whose devices the kubelet hands on to the app container.
pub(crate) fn gpu_with_init(name: &str, init: u64, app: u64) -> Value {
    let mut pod = gpu(name, &[app]);
    pod["spec"]["initContainers"] = json!([container("prepare", init)]);
    pod
}

/// A GPU pod that selects one node and requests hardly any CPU.
pub(crate) fn gpu_on_node(name: &str, size: u64, node: &str) -> Value {
    let mut pod = gpu(name, &[size]);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    let requests = &mut pod["spec"]["containers"][0]["resources"]["requests"];
    requests["cpu"] = "100m".into();
    requests["memory"] = "128Mi".into();
    pod
}

/// A GPU pod that selects the nodes of the pool.
pub(crate) fn gpu_in_pool(name: &str, size: u64) -> Value {
    let mut pod = gpu(name, &[size]);
    pod["spec"]["nodeSelector"] = json!({"pool": POOL});
    pod
}

/// Tolerates the taint of GPU nodes, as the admission plugin ExtendedResourceToleration would add it.
fn tolerations() -> Value {
    json!([{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}])
}

fn container(name: &str, size: u64) -> Value {
    let units = size.to_string();
    json!({
        "name": name, "image": "train",
        "resources": {
            "limits": {GPU_RESOURCE: units},
            "requests": {"cpu": "500m", "memory": "1Gi", GPU_RESOURCE: units},
        },
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    })
}
