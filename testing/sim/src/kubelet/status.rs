//! Pods and nodes as the kubelet reads them from the API and writes them back.

use std::sync::Arc;

use serde_json::{Value, json};

use super::account::{ContainerSpec, Part, PodSpec};
use super::device_manager::DeviceManager;
use super::{KubeletSettings, text};
use crate::kind::{NODES, PODS};
use crate::store::{Store, time};

/// What the pod asks of the resource, in admission order.
pub(super) fn pod_spec(pod: &Value, resource: &str) -> PodSpec {
    let inits = list(&pod["spec"]["initContainers"]).map(|container| {
        let sidecar = container["restartPolicy"] == "Always";
        (container, if sidecar { Part::Sidecar } else { Part::Init })
    });
    let apps = list(&pod["spec"]["containers"]).map(|container| (container, Part::App));
    let spec = |(container, part): (&Value, Part)| ContainerSpec {
        name: text(&container["name"]).to_owned(),
        part,
        size: size(&container["resources"]["limits"][resource]),
    };
    PodSpec {
        namespace: text(&pod["metadata"]["namespace"]).to_owned(),
        name: text(&pod["metadata"]["name"]).to_owned(),
        containers: inits.chain(apps).map(spec).collect(),
    }
}

/// Extended resources are whole numbers.
fn size(quantity: &Value) -> usize {
    let number = quantity.as_u64().and_then(|number| usize::try_from(number).ok());
    quantity.as_str().map_or(number, |text| text.parse().ok()).unwrap_or(0)
}

/// The containers in the order of their start.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["spec"]["initContainers"]).chain(list(&pod["spec"]["containers"]))
}

/// The environment that the pod's author wrote.
pub(super) fn own_env(container: &Value) -> impl Iterator<Item = (String, String)> {
    let pair = |entry: &Value| {
        Some((entry["name"].as_str()?.to_owned(), text(&entry["value"]).to_owned()))
    };
    list(&container["env"]).filter_map(pair)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The first report of a pod that was let in.
pub(super) fn let_in(store: &Store, pod: &Value) {
    let now = time();
    change(store, pod, |status| {
        if status["startTime"].is_null() {
            status["startTime"] = now.into();
        }
    });
}

/// The pod was refused for ever: only a controller can make another.
pub(super) fn refused(store: &Store, pod: &Value, why: &str) {
    let now = time();
    change(store, pod, |status| {
        status["phase"] = "Failed".into();
        status["reason"] = "UnexpectedAdmissionError".into();
        status["message"] = format!("Pod was rejected: {why}").into();
        status["startTime"] = now.into();
    });
}

/// All its containers run.
pub(super) fn running(store: &Store, pod: &Value) {
    let now = time();
    let container = |container: &Value| {
        json!({
            "name": container["name"], "ready": true, "started": true, "restartCount": 0,
            "image": container["image"], "state": {"running": {"startedAt": now}},
        })
    };
    let statuses: Vec<Value> = list(&pod["spec"]["containers"]).map(container).collect();
    change(store, pod, |status| {
        if status["phase"] == "Running" {
            // Of an earlier life.
            return;
        }
        status["phase"] = "Running".into();
        status["containerStatuses"] = statuses.into();
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
        let others = list(&status["conditions"]).filter(|other| other["type"] != "Ready");
        status["conditions"] = others.cloned().chain([ready]).collect();
    });
}

fn change(store: &Store, pod: &Value, change: impl FnOnce(&mut Value)) {
    let meta = &pod["metadata"];
    let (namespace, name) = (text(&meta["namespace"]), text(&meta["name"]));
    // The closure below never fails.
    let _ = store.change(PODS, namespace, name, |before| {
        let mut after = before.cloned();
        if let Some(pod) = after.as_mut().filter(|now| now["metadata"]["uid"] == meta["uid"]) {
            change(&mut pod["status"]);
        }
        Ok(after)
    });
}

/// Keeps the node's capacity in step with what its plugin lists. Without a plugin the capacity stays
/// and nothing of it can be had, as in the real one; a kubelet that has come back remembers no more than
/// that there was one.
pub(super) async fn report_devices(
    store: Store,
    settings: Arc<KubeletSettings>,
    manager: Arc<DeviceManager>,
) {
    let remembered = manager.knows_the_resource();
    let mut last = manager.devices(|devices| remembered || !devices.is_empty()).await;
    let mut capacity = last.len();
    loop {
        let healthy = last.values().filter(|healthy| **healthy).count();
        // The closure below never fails.
        let _ = store.change(NODES, "", &settings.node, |before| {
            let mut node = before.cloned();
            if let Some(status) = node.as_mut().map(|node| &mut node["status"]) {
                status["capacity"][&settings.resource] = capacity.to_string().into();
                status["allocatable"][&settings.resource] = healthy.to_string().into();
            }
            Ok(node)
        });
        last = manager.devices(|devices| *devices != last).await;
        capacity = if last.is_empty() { capacity } else { last.len() };
    }
}
