//! Whether a node may take a pod however much is free on it: kube-scheduler's NodeUnschedulable, TaintToleration and
//! NodeAffinity, in that order and with their reasons.

use serde_json::{Value, json};

use crate::json::{list, text};

/// Checks the pod against a node's name, labels, taints and cordon.
///
/// # Errors
/// kube-scheduler's reason why the node may not take the pod.
pub(in crate::scheduler) fn check_node(pod: &Value, node: &Value) -> Result<(), String> {
    if !may_be_named(pod, node) {
        return rejected("node(s) didn't satisfy plugin(s) [NodeAffinity]");
    }
    if node["spec"]["unschedulable"] == true && !tolerates(pod, &taint_of("unschedulable")) {
        return rejected("node(s) were unschedulable");
    }
    if taints(node).any(|taint| !tolerates(pod, &taint)) {
        return rejected("node(s) had untolerated taint(s)");
    }
    if !selects(pod, node) {
        return rejected("node(s) didn't match Pod's node affinity/selector");
    }
    Ok(())
}

fn rejected(reason: &str) -> Result<(), String> {
    Err(reason.to_owned())
}

/// The taint that the node controller sets for a condition.
fn taint_of(condition: &str) -> Value {
    json!({"key": format!("node.kubernetes.io/{condition}"), "effect": "NoSchedule"})
}

/// The taints that reject pods. There is no node controller here, so a node that is not ready has its taint from here.
fn taints(node: &Value) -> impl Iterator<Item = Value> {
    let own = list(&node["spec"]["taints"])
        .filter(|taint| taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute")
        .cloned();
    let is_ready = list(&node["status"]["conditions"])
        .find(|condition| condition["type"] == "Ready")
        .is_none_or(|condition| condition["status"] == "True");
    own.chain((!is_ready).then(|| taint_of("not-ready")))
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    list(&pod["spec"]["tolerations"]).any(|toleration| {
        let key = is_empty(&toleration["key"]) || toleration["key"] == taint["key"];
        let effect = is_empty(&toleration["effect"]) || toleration["effect"] == taint["effect"];
        let value = match text(&toleration["operator"]) {
            "Exists" => true,
            _ => {
                !is_empty(&toleration["key"]) && text(&toleration["value"]) == text(&taint["value"])
            }
        };
        key && effect && value
    })
}

fn is_empty(value: &Value) -> bool {
    text(value).is_empty()
}

/// The terms of the required node affinity, of which one must hold.
fn required_terms(pod: &Value) -> Option<&Vec<Value>> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"].as_array()
}

/// Whether the node is among those that the pod's affinity names, where every term names nodes. The pods of a DaemonSet
/// are placed so, and kube-scheduler then looks at no other node.
fn may_be_named(pod: &Value, node: &Value) -> bool {
    let name = node["metadata"]["name"].as_str();
    required_terms(pod).is_none_or(|terms| {
        !terms.iter().all(|term| list(&term["matchFields"]).any(|field| field["operator"] == "In"))
            || terms.iter().any(|term| list(&term["matchFields"]).all(|field| matches(field, name)))
    })
}

/// Whether the pod's node selector and required node affinity hold.
fn selects(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let mut selector = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    let name = node["metadata"]["name"].as_str();
    selector.all(|(key, value)| labels[key] == *value)
        && required_terms(pod).is_none_or(|terms| {
            terms.iter().any(|term| {
                let fields = &term["matchFields"];
                let expressions = &term["matchExpressions"];
                list(fields).chain(list(expressions)).next().is_some()
                    && list(fields).all(|field| matches(field, name))
                    && list(expressions).all(|expression| {
                        matches(expression, labels[text(&expression["key"])].as_str())
                    })
            })
        })
}

/// Whether a requirement (operator and values) holds of a label or field; `None` is a label that the node lacks.
fn matches(requirement: &Value, found: Option<&str>) -> bool {
    let is_listed = list(&requirement["values"]).any(|value| value.as_str() == found);
    let first = list(&requirement["values"]).next();
    let bound = first.and_then(|value| text(value).parse::<i64>().ok());
    let number = found.and_then(|text| text.parse::<i64>().ok());
    match text(&requirement["operator"]) {
        "In" => found.is_some() && is_listed,
        "NotIn" => !is_listed,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => number.zip(bound).is_some_and(|(number, bound)| number > bound),
        "Lt" => number.zip(bound).is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(spec: impl Into<Value>) -> Value {
        let spec = spec.into();
        json!({"metadata": {"name": "n", "labels": {"disk": "ssd", "cards": "4"}}, "spec": spec})
    }

    fn pod(spec: impl Into<Value>) -> Value {
        json!({ "spec": spec.into() })
    }

    /// A pod as the DaemonSet controller makes it.
    fn daemon_set_pod(name: &str) -> Value {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        pod(json!({
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [field]}]}}},
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            ],
        }))
    }

    fn affine(operator: &str, values: &[&str], key: &str) -> Value {
        let wanted = json!({"key": key, "operator": operator, "values": values});
        pod(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}}}))
    }

    #[test]
    fn a_pod_of_a_daemon_set_goes_to_its_own_node_even_if_that_is_cordoned() {
        let cordoned = node(json!({"unschedulable": true}));
        assert_eq!(check_node(&daemon_set_pod("n"), &cordoned), Ok(()));
        let elsewhere = check_node(&daemon_set_pod("m"), &cordoned).unwrap_err();
        assert_eq!(elsewhere, "node(s) didn't satisfy plugin(s) [NodeAffinity]");
        let plain = check_node(&pod(json!({})), &cordoned).unwrap_err();
        assert_eq!(plain, "node(s) were unschedulable");
    }

    #[test]
    fn a_taint_rejects_a_pod_that_does_not_tolerate_its_key_value_and_effect() {
        let tainted = node(json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}));
        for right in [
            json!({"operator": "Exists"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "k", "value": "v"}),
        ] {
            let pod = pod(json!({"tolerations": [right]}));
            assert_eq!(check_node(&pod, &tainted), Ok(()), "{pod}");
        }
        for wrong in [
            json!({"key": "other", "operator": "Exists"}),
            json!({"key": "k", "value": "w"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
        ] {
            let pod = pod(json!({"tolerations": [wrong]}));
            let refused = check_node(&pod, &tainted).unwrap_err();
            assert_eq!(refused, "node(s) had untolerated taint(s)", "{pod}");
        }
        let preferred = json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]});
        assert_eq!(check_node(&pod(json!({})), &node(preferred)), Ok(()));
    }

    #[test]
    fn labels_are_selected_by_selector_and_affinity() {
        let plain = node(json!({}));
        for (pod, expected) in [
            (pod(json!({"nodeSelector": {"disk": "ssd"}})), true),
            (pod(json!({"nodeSelector": {"disk": "hdd"}})), false),
            (affine("In", &["ssd", "nvme"], "disk"), true),
            (affine("NotIn", &["ssd"], "disk"), false),
            (affine("NotIn", &["ssd"], "missing"), true),
            (affine("Exists", &[], "disk"), true),
            (affine("DoesNotExist", &[], "disk"), false),
            (affine("Gt", &["3"], "cards"), true),
            (affine("Lt", &["4"], "cards"), false),
        ] {
            assert_eq!(check_node(&pod, &plain).is_ok(), expected, "{pod}");
        }
    }
}
