//! `POST …/pods/NAME/binding`: node, annotations and condition in one write.
//!
//! After the API server's code (`pkg/registry/core/pod/storage/storage.go` of 1.36): the Binding's annotations are
//! merged over the pod's in the write that sets `spec.nodeName`; UID and resource version are preconditions.

use serde_json::{Value, json};

use crate::json::{list, name, text};
use crate::objects::failure::Failure;
use crate::objects::kind::PODS;
use crate::objects::merge::merge;
use crate::objects::validation::{check_uid, check_version};

/// The pod as it is once bound. `now` is the time of its condition.
///
/// # Errors
/// The API server's refusals.
pub(crate) fn bind(pod: &Value, binding: &Value, now: &str) -> Result<Value, Failure> {
    check_uid(PODS, pod, &binding["metadata"]["uid"])?;
    check_version(PODS, pod, &binding["metadata"]["resourceVersion"])?;
    let node = target(binding)?;
    if let Some(why) = refusal(pod) {
        return Err(Failure::conflict("pods/binding", name(pod), &why));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = node.into();
    let annotations = &binding["metadata"]["annotations"];
    if annotations.is_object() {
        merge(&mut pod["metadata"]["annotations"], annotations);
    }
    if pod["status"]["nominatedNodeName"].is_string() {
        merge(&mut pod["status"], &json!({"nominatedNodeName": null}));
    }
    set_scheduled(&mut pod, now);
    Ok(pod)
}

/// The name of the node that the binding is to.
fn target(binding: &Value) -> Result<&str, Failure> {
    let target = &binding["target"];
    if !matches!(text(&target["kind"]), "" | "Node") {
        return invalid(
            "Binding is invalid: target.kind: Unsupported value: supported values: \"Node\", \"<empty>\"",
        );
    }
    match text(&target["name"]) {
        "" => invalid("Binding is invalid: target.name: Required value"),
        name => Ok(name),
    }
}

fn invalid<T>(message: &str) -> Result<T, Failure> {
    Err(Failure::new(422, "Invalid", message))
}

/// Why the pod cannot be bound, if it cannot.
fn refusal(pod: &Value) -> Option<String> {
    let name = name(pod);
    let node = text(&pod["spec"]["nodeName"]);
    if pod["metadata"]["deletionTimestamp"].is_string() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if !node.is_empty() {
        Some(format!("pod {name} is already assigned to node \"{node}\""))
    } else if list(&pod["spec"]["schedulingGates"]).next().is_some() {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    }
}

fn set_scheduled(pod: &mut Value, now: &str) {
    let conditions = &pod["status"]["conditions"];
    let others = list(conditions).filter(|condition| condition["type"] != "PodScheduled").cloned();
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
    let conditions: Vec<Value> = others.chain([scheduled]).collect();
    pod["status"]["conditions"] = conditions.into();
}
