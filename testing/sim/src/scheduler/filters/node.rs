//! Whether a node may take a pod however much is free on it: kube-scheduler's NodeUnschedulable, TaintToleration and
//! NodeAffinity, in that order and with their reasons. The rules are [`placement::node_rules`].

use placement::node_rules::{NodeRules, NodeTaint, NodeTraits};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::json::{list, name};

/// A pod's rules about nodes.
pub(in crate::scheduler) fn node_rules(pod: &Value) -> NodeRules {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"][required];
    NodeRules {
        node_selector: read(&pod["spec"]["nodeSelector"]).unwrap_or_default(),
        terms: affinity.is_object().then(|| read_all(&affinity["nodeSelectorTerms"])),
        tolerations: read_all(&pod["spec"]["tolerations"]),
    }
}

/// A node, as pods' rules see it. There is no node controller here, so a node that is not ready has its taint from
/// here.
pub(super) fn node_traits(node: &Value) -> NodeTraits {
    let is_ready = list(&node["status"]["conditions"])
        .find(|condition| condition["type"] == "Ready")
        .is_none_or(|condition| condition["status"] == "True");
    let mut taints: Vec<NodeTaint> = read_all(&node["spec"]["taints"]);
    taints.extend((!is_ready).then(|| NodeTaint::of_condition("not-ready")));
    if node["spec"]["unschedulable"] == true {
        taints.insert(0, NodeTaint::cordon());
    }
    NodeTraits {
        name: name(node).to_owned(),
        labels: read(&node["metadata"]["labels"]).unwrap_or_default(),
        taints,
    }
}

/// Checks a pod's rules against a node.
///
/// # Errors
/// kube-scheduler's reason why the node may not take the pod.
pub(in crate::scheduler) fn check_node(
    rules: &NodeRules,
    node: &NodeTraits,
) -> Result<(), &'static str> {
    if rules.name_others(&node.name) {
        return Err("node(s) didn't satisfy plugin(s) [NodeAffinity]");
    }
    match rules.untolerated(node) {
        Some(taint) if *taint == NodeTaint::cordon() => Err("node(s) were unschedulable"),
        Some(_) => Err("node(s) had untolerated taint(s)"),
        None if rules.select(&node.name, &node.labels) => Ok(()),
        None => Err("node(s) didn't match Pod's node affinity/selector"),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn read_all<T: DeserializeOwned>(values: &Value) -> Vec<T> {
    list(values).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod as the DaemonSet controller makes it.
    fn daemon_set_pod(name: &str) -> Value {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        json!({ "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [field]}]}}},
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            ],
        } })
    }

    fn check(pod: &Value, node: &Value) -> Result<(), &'static str> {
        check_node(&node_rules(pod), &node_traits(node))
    }

    #[test]
    fn a_pod_of_a_daemon_set_goes_to_its_own_node_even_if_that_is_cordoned() {
        let cordoned = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
        assert_eq!(check(&daemon_set_pod("n"), &cordoned), Ok(()));
        let elsewhere = check(&daemon_set_pod("m"), &cordoned).unwrap_err();
        assert_eq!(elsewhere, "node(s) didn't satisfy plugin(s) [NodeAffinity]");
        assert_eq!(check(&json!({}), &cordoned), Err("node(s) were unschedulable"));
    }

    #[test]
    fn taints_labels_and_readiness_are_read_from_the_objects() {
        let condition = json!({"type": "Ready", "status": "Unknown"});
        let tainted =
            json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
        let unready = json!({"status": {"conditions": [condition]}});
        for node in [&tainted, &unready] {
            assert_eq!(check(&json!({}), node), Err("node(s) had untolerated taint(s)"), "{node}");
        }
        let tolerating = json!({"spec": {"tolerations": [{"key": "k", "value": "v"}]}});
        assert_eq!(check(&tolerating, &tainted), Ok(()));
        let selecting = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
        let labelled = json!({"metadata": {"labels": {"disk": "ssd"}}});
        assert_eq!(check(&selecting, &labelled), Ok(()));
        let refused = check(&selecting, &json!({})).unwrap_err();
        assert_eq!(refused, "node(s) didn't match Pod's node affinity/selector");
    }
}
