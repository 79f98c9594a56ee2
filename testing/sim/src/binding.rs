//! `POST …/pods/<name>/binding`: node, annotations and condition in one step.
//!
//! Held to the API server's own code (`pkg/registry/core/pod/storage/storage.go` of 1.36): the
//! Binding's annotations are merged over the pod's in the write that sets `spec.nodeName`; uid and
//! resource version are preconditions; the texts are the API server's.

use serde_json::{Value, json};

use crate::error::Failure;
use crate::kind::PODS;
use crate::merge::merge;

/// The pod as it is once bound.
pub(crate) fn bind(
    pod: &Value,
    namespace: &str,
    binding: &Value,
    now: &str,
) -> Result<Value, Failure> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    check(pod, namespace, name, &binding["metadata"])?;
    let node = target(binding)?;
    if let Some(why) = refusal(pod, name) {
        return Err(Failure::conflict("pods/binding", name, &why));
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

fn check(pod: &Value, namespace: &str, name: &str, wanted: &Value) -> Result<(), Failure> {
    let found = &pod["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if !text(&wanted["uid"]).is_empty() && wanted["uid"] != found["uid"] {
        let key = format!("{namespace}/{name}");
        let (wanted, found) = (text(&wanted["uid"]), text(&found["uid"]));
        return Err(Failure::other_uid(PODS, &key, name, &wanted, &found));
    }
    let version = &wanted["resourceVersion"];
    if !text(version).is_empty() && *version != found["resourceVersion"] {
        return Err(Failure::modified(PODS, name));
    }
    Ok(())
}

fn target(binding: &Value) -> Result<&str, Failure> {
    let invalid = |message: &str| Err(Failure::new(422, "Invalid", message));
    let target = &binding["target"];
    match target["kind"].as_str().unwrap_or_default() {
        "" | "Node" => {}
        _ => {
            return invalid(
                "Binding is invalid: target.kind: Unsupported value: supported values: \"Node\", \"<empty>\"",
            );
        }
    }
    match target["name"].as_str() {
        Some(name) if !name.is_empty() => Ok(name),
        _ => invalid("Binding is invalid: target.name: Required value"),
    }
}

fn refusal(pod: &Value, name: &str) -> Option<String> {
    let bound = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
    let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    if pod["metadata"]["deletionTimestamp"].is_string() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if let Some(node) = bound {
        Some(format!("pod {name} is already assigned to node \"{node}\""))
    } else if gated {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    }
}

fn set_scheduled(pod: &mut Value, now: &str) {
    let status = &mut pod["status"];
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    conditions.push(json!({
        "type": "PodScheduled", "status": "True", "lastTransitionTime": now,
    }));
    status["conditions"] = conditions.into();
}
