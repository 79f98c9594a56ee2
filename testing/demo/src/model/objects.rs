//! How API objects are read: claims, requests, the plugins' records and readings, each from its documented form.
//!
//! This is a second implementation on purpose: the checker must not share the code that it checks.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;
use sim::kubelet::Process;

use super::nodes::{self, GPU_RESOURCE};
use super::policy::{Limits, MEMORY_METRIC, Overload, Policy};

/// The GPU of a device node that a process sees, as a UUID. A path that is none of its node's GPUs stays a path.
pub(crate) fn gpu_of(process: &Process, device: &str) -> String {
    let plan = nodes::find(&process.node);
    let gpu = plan.and_then(|(index, plan)| {
        let gpu = (0..plan.gpus).find(|gpu| nodes::device_path(*gpu) == device)?;
        Some(nodes::gpu_uuid(index, gpu))
    });
    gpu.unwrap_or_else(|| device.to_owned())
}

/// The GPUs of each container by the pod's claim: `{"<container>": {"<uuid>": units}}`.
pub(crate) fn claim(pod: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let parsed = embedded_json(&pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"]);
    let containers = parsed.as_object().into_iter().flatten();
    containers.map(|(container, of)| (container.clone(), gpus_of(of))).collect()
}

fn gpus_of(gpus: &Value) -> BTreeSet<String> {
    gpus.as_object().into_iter().flatten().map(|(gpu, _)| gpu.clone()).collect()
}

/// The most units of GPU memory that a pod holds at one time: its app containers together, or its largest init
/// container. The demo's pods have no sidecars.
pub(crate) fn peak_units(pod: &Value) -> u64 {
    let apps: u64 = list(&pod["spec"]["containers"]).map(units_of).sum();
    let init = list(&pod["spec"]["initContainers"]).map(units_of).max().unwrap_or(0);
    apps.max(init)
}

fn units_of(container: &Value) -> u64 {
    text(&container["resources"]["limits"][GPU_RESOURCE]).parse().unwrap_or(0)
}

/// Whether a DaemonSet owns the pod: such a pod belongs on its node, whatever the load there.
pub(crate) fn is_daemon(pod: &Value) -> bool {
    list(&pod["metadata"]["ownerReferences"]).any(|owner| owner["kind"] == "DaemonSet")
}

/// The node that a DaemonSet's pod is for.
pub(crate) fn daemon_node(pod: &Value) -> Option<&str> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    terms[0]["matchFields"][0]["values"][0].as_str()
}

/// A measured value of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// A fraction; of the hot value a whole number.
    pub(crate) value: f64,
    /// When it was taken.
    pub(crate) at: Timestamp,
}

/// The reading of a node's CPU. Each policy has an annotation of its own for it; the newer one counts.
pub(crate) fn cpu_reading(node: &Value) -> Option<Reading> {
    let metrics = [Policy::Shipped, Policy::Crane].map(Policy::cpu_metric);
    let readings = metrics.iter().filter_map(|metric| reading(node, metric));
    readings.max_by_key(|reading| reading.at)
}

/// A node's use of its CPU and of its memory by its annotations, as fractions.
pub(crate) fn annotated_load(node: &Value) -> (Option<f64>, Option<f64>) {
    let cpu = cpu_reading(node).map(|reading| reading.value);
    (cpu, reading(node, MEMORY_METRIC).map(|reading| reading.value))
}

/// crane's hot value of a node, which the annotator writes under a policy of crane's kind: each 1 costs the node a
/// tenth of the whole score.
pub(crate) fn hot_value(node: &Value) -> Option<u64> {
    reading(node, "node_hot_value").map(|reading| reading.value as u64)
}

/// The annotation `VALUE,TIME`.
fn reading(node: &Value, metric: &str) -> Option<Reading> {
    let (value, at) = text(&node["metadata"]["annotations"][metric]).split_once(',')?;
    Some(Reading { value: value.parse().ok()?, at: at.parse().ok()? })
}

/// The limits that a node's annotations show it over.
pub(crate) fn annotated_overload(node: &Value, limits: Limits) -> Overload {
    let (cpu, memory) = annotated_load(node);
    limits.exceeded_by(cpu, memory)
}

/// The pods on each GPU as the node's device plugin found them in the kubelet's records: pairs of GPU UUID and
/// pod UID.
pub(crate) fn recorded_pods(node: &Value) -> BTreeSet<(String, String)> {
    let gpus = embedded_json(&node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"]);
    list(&gpus)
        .flat_map(|gpu| {
            let pods = gpu["pods"].as_object().into_iter().flatten();
            let gpu = text(&gpu["uuid"]).to_owned();
            pods.map(|(uid, _)| (gpu.clone(), uid.clone())).collect::<Vec<_>>()
        })
        .collect()
}

/// The same pairs by the claims of the pods on the node that have not ended.
pub(crate) fn claimed_pods<'a>(
    pods: impl IntoIterator<Item = &'a Value>,
    node: &str,
) -> BTreeSet<(String, String)> {
    let mut claimed = BTreeSet::new();
    for pod in pods.into_iter().filter(|pod| pod["spec"]["nodeName"] == node && !has_ended(pod)) {
        for gpu in claim(pod).into_values().flatten() {
            claimed.insert((gpu, uid(pod).to_owned()));
        }
    }
    claimed
}

/// An object's name.
pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// An object's UID.
pub(crate) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

/// Whether a pod's phase is Running.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Whether a pod's phase is one that it never leaves.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded")
}

/// Whether an app container asks for GPU memory.
pub(crate) fn asks_gpu(pod: &Value) -> bool {
    list(&pod["spec"]["containers"])
        .any(|container| container["resources"]["limits"][GPU_RESOURCE].is_string())
}

/// Why a pod waits, in kube-scheduler's words: the message of its first condition that has one.
pub(crate) fn waiting_reason(pod: &Value) -> &str {
    let messages = list(&pod["status"]["conditions"]).filter_map(|c| c["message"].as_str());
    messages.into_iter().next().unwrap_or_default()
}

/// The elements of a JSON array; none where it is something else.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A JSON string; empty where it is something else.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The JSON inside an annotation; `Null` where there is none.
fn embedded_json(annotation: &Value) -> Value {
    serde_json::from_str(text(annotation)).unwrap_or_default()
}
