//! What API objects and processes say, read without a line of what is judged: claims, demands, the
//! plugins' records and the readings are parsed here a second time, from their documented forms.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sim::kubelet::Process;

use crate::fleet::{self, GPU_MEM};

/// A device node's card, by the truth about the process's node.
pub(crate) fn card_of(process: &Process, device: &str) -> String {
    let place = fleet::FLEET.iter().position(|plan| plan.name == process.node).unwrap_or_default();
    let cards = fleet::FLEET.get(place).map_or(0, |plan| plan.cards);
    let card = (0..cards).find(|card| fleet::device(*card) == device);
    card.map_or_else(|| device.to_owned(), |card| fleet::uuid(place, card))
}

/// The cards of each container by the pod's claim: `{"<container>": {"<uuid>": units}}`.
pub(crate) fn claim(pod: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let parsed = embedded(&pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"]);
    let containers = parsed.as_object().into_iter().flatten();
    let cards = |cards: &Value| {
        cards.as_object().into_iter().flatten().map(|(card, _)| card.clone()).collect()
    };
    containers.map(|(container, of)| (container.clone(), cards(of))).collect()
}

/// Units that a pod holds at most at one time: its app containers together, or its largest init
/// container. (No pod here has sidecars.)
pub(crate) fn demand(pod: &Value) -> u64 {
    let units = |container: &Value| -> u64 {
        text(&container["resources"]["limits"][GPU_MEM]).parse().unwrap_or(0)
    };
    let list = |part: &str| pod["spec"][part].as_array().cloned().unwrap_or_default();
    let apps: u64 = list("containers").iter().map(units).sum();
    let init = list("initContainers").iter().map(units).max().unwrap_or(0);
    apps.max(init)
}

/// Whether a DaemonSet made the pod: such a one is bound to its node, whatever that carries.
pub(crate) fn is_daemon(pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["kind"] == "DaemonSet")
}

/// The one node that a DaemonSet's pod is for.
pub(crate) fn meant_for(pod: &Value) -> Option<&str> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    terms[0]["matchFields"][0]["values"][0].as_str()
}

/// A node's reading: its value, as a fraction.
pub(crate) fn reading(node: &Value, metric: &str) -> Option<f64> {
    text(&node["metadata"]["annotations"][metric]).split(',').next()?.parse().ok()
}

/// The pods that a node's plugin found on each card in the kubelet's records, as pairs of card and pod.
pub(crate) fn recorded(node: &Value) -> BTreeSet<(String, String)> {
    let cards = embedded(&node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"]);
    let cards = cards.as_array().into_iter().flatten();
    let pairs = |card: &Value| {
        let pods = card["pods"].as_object().into_iter().flatten();
        let card = text(&card["uuid"]).to_owned();
        pods.map(|(uid, _)| (card.clone(), uid.clone())).collect::<Vec<_>>()
    };
    cards.flat_map(pairs).collect()
}

/// The same pairs by the claims of the pods that run on the node.
pub(crate) fn claimed<'a>(
    pods: impl IntoIterator<Item = &'a Value>,
    node: &str,
) -> BTreeSet<(String, String)> {
    let here = |pod: &&Value| {
        pod["spec"]["nodeName"] == node
            && !matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded")
    };
    let pairs = |pod: &Value| {
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        let cards: BTreeSet<String> = claim(pod).into_values().flatten().collect();
        cards.into_iter().map(move |card| (card, uid.clone())).collect::<Vec<_>>()
    };
    pods.into_iter().filter(here).flat_map(pairs).collect()
}

fn embedded(annotation: &Value) -> Value {
    serde_json::from_str(text(annotation)).unwrap_or_default()
}

/// A string, or nothing.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_plugin_recorded_is_compared_with_claims_by_card_and_pod() {
        let cards = json!([{"uuid": "GPU-a", "pods": {"u1": 3}}, {"uuid": "GPU-b", "pods": {}}]);
        let node = json!({
            "metadata": {"annotations": {"plimsoll.dev/gpu-cards": cards.to_string()}},
        });
        let claim = json!({"main-0": {"GPU-a": 3}}).to_string();
        let pod = |uid: &str, phase: &str| {
            json!({
                "metadata": {"uid": uid, "annotations": {"plimsoll.dev/gpu-claim": claim}},
                "spec": {"nodeName": "n"}, "status": {"phase": phase},
            })
        };
        let pods = [pod("u1", "Running"), pod("u2", "Failed")];
        assert_eq!(recorded(&node), claimed(&pods, "n"));
        assert!(claimed(&pods, "other").is_empty());
    }

    #[test]
    fn a_pod_needs_the_larger_of_its_apps_together_and_its_largest_init_container() {
        let container = |units: &str| json!({"resources": {"limits": {GPU_MEM: units}}});
        let pod = |init: &str, apps: &[&str]| {
            let apps: Vec<Value> = apps.iter().map(|units| container(units)).collect();
            json!({"spec": {"initContainers": [container(init)], "containers": apps}})
        };
        assert_eq!((demand(&pod("6", &["4"])), demand(&pod("1", &["3", "2"]))), (6, 5));
    }
}
