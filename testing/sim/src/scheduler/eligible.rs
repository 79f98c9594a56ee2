//! Whether a node may take a pod whatever room it has: kube-scheduler's NodeUnschedulable,
//! TaintToleration and NodeAffinity, in that order and in their words.

use serde_json::{Value, json};

use super::cycle::text;

/// # Errors
/// kube-scheduler's words for why the node is out of the question.
pub(super) fn eligible(pod: &Value, node: &Value) -> Result<(), String> {
    let refused = |why: &str| Err(why.to_owned());
    if !names_it(pod, node) {
        return refused("node(s) didn't satisfy plugin(s) [NodeAffinity]");
    }
    if node["spec"]["unschedulable"] == true && !tolerates(pod, &taint("unschedulable")) {
        return refused("node(s) were unschedulable");
    }
    if taints(node).any(|taint| !tolerates(pod, &taint)) {
        return refused("node(s) had untolerated taint(s)");
    }
    if !selected(pod, node) {
        return refused("node(s) didn't match Pod's node affinity/selector");
    }
    Ok(())
}

fn taint(condition: &str) -> Value {
    json!({"key": format!("node.kubernetes.io/{condition}"), "effect": "NoSchedule"})
}

/// Those that keep pods away; a node that is not ready has one by its node controller.
fn taints(node: &Value) -> impl Iterator<Item = Value> {
    let own = list(&node["spec"]["taints"]).cloned();
    let keeps_away =
        |taint: &Value| taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute";
    let ready = list(&node["status"]["conditions"])
        .find(|condition| condition["type"] == "Ready")
        .is_none_or(|condition| condition["status"] == "True");
    own.filter(keeps_away).chain((!ready).then(|| taint("not-ready")))
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    let blank = |value: &Value| text(value).is_empty();
    list(&pod["spec"]["tolerations"]).any(|toleration| {
        let key = blank(&toleration["key"]) || toleration["key"] == taint["key"];
        let effect = blank(&toleration["effect"]) || toleration["effect"] == taint["effect"];
        let value = match text(&toleration["operator"]) {
            "Exists" => true,
            _ => !blank(&toleration["key"]) && text(&toleration["value"]) == text(&taint["value"]),
        };
        key && effect && value
    })
}

fn terms(pod: &Value) -> Option<&Vec<Value>> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"].as_array()
}

/// Where every term names nodes, others are not even looked at. So are the pods of a DaemonSet placed.
fn names_it(pod: &Value, node: &Value) -> bool {
    let names = |term: &Value| list(&term["matchFields"]).any(|field| field["operator"] == "In");
    let field = |field: &Value| matches(field, node["metadata"]["name"].as_str());
    terms(pod).is_none_or(|terms| {
        !terms.iter().all(names) || terms.iter().any(|term| list(&term["matchFields"]).all(field))
    })
}

fn selected(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let mut wanted = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    let label = |key: &Value| labels[text(key)].as_str();
    let field = |field: &Value| matches(field, node["metadata"]["name"].as_str());
    let fits = |term: &Value| {
        let (fields, labels) = (&term["matchFields"], &term["matchExpressions"]);
        list(fields).chain(list(labels)).next().is_some()
            && list(fields).all(field)
            && list(labels).all(|wanted| matches(wanted, label(&wanted["key"])))
    };
    wanted.all(|(key, value)| labels[key] == *value)
        && terms(pod).is_none_or(|terms| terms.iter().any(fits))
}

fn matches(wanted: &Value, found: Option<&str>) -> bool {
    let number = |text: &str| text.parse::<i64>().ok();
    let among = || list(&wanted["values"]).any(|value| value.as_str() == found);
    let bound = || list(&wanted["values"]).next().and_then(|value| number(text(value)));
    match text(&wanted["operator"]) {
        "In" => found.is_some() && among(),
        "NotIn" => !among(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => found.and_then(number).zip(bound()).is_some_and(|(found, than)| found > than),
        "Lt" => found.and_then(number).zip(bound()).is_some_and(|(found, than)| found < than),
        _ => false,
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
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

    /// As the DaemonSet controller writes them.
    fn of_a_daemon_set(name: &str) -> Value {
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
        assert_eq!(eligible(&of_a_daemon_set("n"), &cordoned), Ok(()));
        let elsewhere = eligible(&of_a_daemon_set("m"), &cordoned).unwrap_err();
        assert_eq!(elsewhere, "node(s) didn't satisfy plugin(s) [NodeAffinity]");
        let plain = eligible(&pod(json!({})), &cordoned).unwrap_err();
        assert_eq!(plain, "node(s) were unschedulable");
    }

    #[test]
    fn a_taint_keeps_away_who_does_not_tolerate_its_key_value_and_effect() {
        let tainted = node(json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}));
        let with =
            |toleration: Value| eligible(&pod(json!({"tolerations": [toleration]})), &tainted);
        for right in [
            json!({"operator": "Exists"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "k", "value": "v"}),
        ] {
            assert_eq!(with(right.clone()), Ok(()), "{right}");
        }
        for wrong in [
            json!({"key": "other", "operator": "Exists"}),
            json!({"key": "k", "value": "w"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
        ] {
            assert_eq!(
                with(wrong.clone()).unwrap_err(),
                "node(s) had untolerated taint(s)",
                "{wrong}"
            );
        }
        let preferred = json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]});
        assert_eq!(eligible(&pod(json!({})), &node(preferred)), Ok(()));
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
            assert_eq!(eligible(&pod, &plain).is_ok(), expected, "{pod}");
        }
    }
}
