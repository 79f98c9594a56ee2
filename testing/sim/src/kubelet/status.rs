//! What the kubelet reads of pods, and the status that it writes to pods and its node.

use std::sync::Arc;

use serde_json::{Value, json};

use super::KubeletSettings;
use super::account::{ContainerSpec, Part, PodSpec};
use super::device_manager::DeviceManager;
use crate::json::{list, name, namespace, text, uid};
use crate::objects::kind::{NODES, PODS};
use crate::objects::store::{Store, time};

/// The pod with the number of devices that each container asks for, in the order of admission.
pub(super) fn pod_spec(pod: &Value, resource: &str) -> PodSpec {
    let inits = list(&pod["spec"]["initContainers"]).map(|container| {
        let sidecar = container["restartPolicy"] == "Always";
        (container, if sidecar { Part::Sidecar } else { Part::Init })
    });
    let apps = list(&pod["spec"]["containers"]).map(|container| (container, Part::App));
    PodSpec {
        namespace: namespace(pod).to_owned(),
        name: name(pod).to_owned(),
        uid: text(&pod["metadata"]["uid"]).to_owned(),
        containers: inits
            .chain(apps)
            .map(|(container, part): (&Value, Part)| ContainerSpec {
                name: text(&container["name"]).to_owned(),
                part,
                size: whole_number(&container["resources"]["limits"][resource]),
            })
            .collect(),
    }
}

/// An amount of an extended resource, which is a whole number; 0 where it is none.
fn whole_number(quantity: &Value) -> usize {
    let number = quantity.as_u64().and_then(|number| usize::try_from(number).ok());
    quantity.as_str().map_or(number, |text| text.parse().ok()).unwrap_or(0)
}

/// The containers in the order of their start.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["spec"]["initContainers"]).chain(list(&pod["spec"]["containers"]))
}

/// The environment in the container's spec.
pub(super) fn own_env(container: &Value) -> impl Iterator<Item = (String, String)> {
    list(&container["env"]).filter_map(name_and_value)
}

fn name_and_value(entry: &Value) -> Option<(String, String)> {
    Some((entry["name"].as_str()?.to_owned(), text(&entry["value"]).to_owned()))
}

/// Writes the status of an admitted pod.
pub(super) fn admitted(store: &Store, pod: &Value) {
    let now = time();
    change(store, pod, |status| {
        if status["startTime"].is_null() {
            status["startTime"] = now.into();
        }
    });
}

/// Writes the status of a pod that was not admitted. It never runs: only a controller can make another.
pub(super) fn rejected(store: &Store, pod: &Value, why: &str) {
    let now = time();
    change(store, pod, |status| {
        status["phase"] = "Failed".into();
        status["reason"] = "UnexpectedAdmissionError".into();
        status["message"] = format!("Pod was rejected: {why}").into();
        status["startTime"] = now.into();
    });
}

/// Writes the status of a pod all of whose containers run.
pub(super) fn running(store: &Store, pod: &Value) {
    let now = time();
    let statuses: Vec<Value> =
        list(&pod["spec"]["containers"]).map(|one| running_status(one, &now)).collect();
    change(store, pod, |status| {
        if status["phase"] == "Running" {
            // It has run since before the kubelet's restart.
            return;
        }
        status["phase"] = "Running".into();
        status["containerStatuses"] = statuses.into();
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
        let others = list(&status["conditions"]).filter(|other| other["type"] != "Ready");
        status["conditions"] = others.cloned().chain([ready]).collect();
    });
}

fn running_status(container: &Value, now: &str) -> Value {
    json!({
        "name": container["name"], "ready": true, "started": true, "restartCount": 0,
        "image": container["image"], "state": {"running": {"startedAt": now}},
    })
}

fn change(store: &Store, pod: &Value, change: impl FnOnce(&mut Value)) {
    // A pod of the same name with another UID is left alone. The closure cannot fail.
    let _ = store.change(PODS, namespace(pod), name(pod), |before| {
        let mut after = before.cloned();
        if let Some(now) = after.as_mut().filter(|now| uid(now) == uid(pod)) {
            change(&mut now["status"]);
        }
        Ok(after)
    });
}

/// Keeps the node's capacity and allocatable in step with the plugin's device list. Where the plugin is gone, the
/// capacity stays and the allocatable amount is 0. After the kubelet's restart both are 0 until the plugin registers
/// again.
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
        // The closure cannot fail.
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
