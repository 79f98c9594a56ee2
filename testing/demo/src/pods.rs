//! The pods that the scenario makes.

use serde_json::{Value, json};

use crate::fleet::{GPU_MEM, POOL};

/// A pod without a GPU.
pub(crate) fn plain(name: &str) -> Value {
    let mut pod: Value = sim::pod(name).into();
    pod["spec"]["containers"] = json!([{
        "name": "main", "image": "web",
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    }]);
    pod
}

/// A pod of a DaemonSet, as its controller makes them: for one node, by its name.
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

/// A pod whose containers ask for so much GPU memory each. Its author tries to see every card.
pub(crate) fn gpu(name: &str, sizes: &[u64]) -> Value {
    let mut pod: Value = sim::pod(name).into();
    let containers =
        sizes.iter().enumerate().map(|(i, size)| container(&format!("main-{i}"), *size));
    pod["spec"]["containers"] = containers.collect();
    pod["spec"]["tolerations"] = tolerations();
    pod
}

/// Of the taint that keeps other pods off nodes with cards, as the admission plugin
/// ExtendedResourceToleration writes it.
fn tolerations() -> Value {
    json!([{"key": GPU_MEM, "operator": "Exists", "effect": "NoSchedule"}])
}

/// One with an init container, whose devices the kubelet hands on to the other.
pub(crate) fn with_init(name: &str, init: u64, app: u64) -> Value {
    let mut pod = gpu(name, &[app]);
    pod["spec"]["initContainers"] = json!([container("prepare", init)]);
    pod
}

/// One that only a certain node may take, and that asks for next to no processor.
pub(crate) fn at_home(name: &str, size: u64, node: &str) -> Value {
    let mut pod = gpu(name, &[size]);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    let requests = &mut pod["spec"]["containers"][0]["resources"]["requests"];
    requests["cpu"] = "100m".into();
    requests["memory"] = "128Mi".into();
    pod
}

/// One for the nodes of the pool.
pub(crate) fn in_pool(name: &str, size: u64) -> Value {
    let mut pod = gpu(name, &[size]);
    pod["spec"]["nodeSelector"] = json!({"pool": POOL});
    pod
}

fn container(name: &str, size: u64) -> Value {
    let gpu = size.to_string();
    json!({
        "name": name, "image": "train",
        "resources": {
            "limits": {GPU_MEM: gpu},
            "requests": {"cpu": "500m", "memory": "1Gi", GPU_MEM: gpu},
        },
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    })
}

/// A pod's name.
pub(crate) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// Whether its containers run.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Whether it asks for GPU memory.
pub(crate) fn asks_gpu(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.into_iter().any(|container| container["resources"]["limits"][GPU_MEM].is_string())
}

/// The reason that a pod waits for, in kube-scheduler's words.
pub(crate) fn reason(pod: &Value) -> &str {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut messages = conditions.filter_map(|condition| condition["message"].as_str());
    messages.next().unwrap_or_default()
}
