//! Checks of the schedulers: whether each is configured to ask the extender, and whether one does.

use api::health::ConditionState;
use jiff::Timestamp;
use serde::Deserialize;

use super::facts::{Facts, SECOND_SCHEDULER};
use super::finding::{Findings, few};
use super::programs::{EVENTS, NODES, has_extender, running};
use crate::cluster_access::objects::{Condition, Event, Pod};
use crate::cluster_access::workload::flag_of;
use crate::cluster_access::{ENABLED_NODES, EXTENDER};
use crate::format::count;

/// Where `plimsoll scheduler enable` puts the configuration.
const FOLDER: &str = "/etc/kubernetes/plimsoll/";
/// The condition of nodes whose device plugin offers nothing, since pods bypass the extender.
const WITHHELD: &str = "GPUUnitsWithheld";
/// A configuration of kube-scheduler, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ExtenderConfiguration {
    extenders: Vec<ExtenderEntry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExtenderEntry {
    url_prefix: String,
    node_cache_capable: bool,
}

/// Whether each kube-scheduler has the configuration.
pub(crate) fn configured(facts: &Facts, found: &mut Findings) {
    let second = facts.workload(SECOND_SCHEDULER).ok().flatten();
    if let Some(nodes) = found.read(NODES, facts.nodes.as_ref()) {
        let mut withheld = Vec::new();
        for node in nodes {
            let is_withheld = |it: &Condition| it.kind == WITHHELD && it.status == "True";
            if node.status.conditions.iter().any(is_withheld) {
                withheld.push(node.metadata.name.clone());
            }
        }
        let nodes = count(withheld.len(), "node");
        let what = format!("GPU pods are bound without the extender, so {nodes} offer no units");
        let todo = if second.is_some() {
            "have the pods name plimsoll-scheduler in spec.schedulerName (docs/schedulers.md)"
        } else {
            "run `plimsoll scheduler enable` on each control-plane node; if the pods name another scheduler, take \
             spec.schedulerName out"
        };
        found.fail_of(&what, &withheld, todo);
    }
    if !has_extender(facts, found) {
        return;
    }
    if let Some(second) = second {
        running(second, SECOND_SCHEDULER, facts, found);
        return second_configuration(facts, found);
    }
    match found.read("kube-scheduler's pods in kube-system", facts.schedulers.as_ref()) {
        Some(pods) if pods.is_empty() => found.warn(
            "no pod of it is visible in kube-system, as where a provider or RKE2 runs it",
            "the check `requests` tells whether one asks; docs/schedulers.md has how to set it up",
        ),
        Some(pods) => static_pods(pods, facts, found),
        None => {}
    }
}

fn static_pods(pods: &[Pod], facts: &Facts, found: &mut Findings) {
    let read = found.read("the ConfigMap kubeadm-config", facts.kubeadm_config.as_ref());
    let kubeadm = read.and_then(Option::as_ref);
    let enabled = kubeadm.and_then(|map| map.metadata.annotations.get(ENABLED_NODES));
    let is_enabled =
        |node: &str| enabled.is_some_and(|nodes| nodes.split(',').any(|it| it == node));
    let mut ours = Vec::new();
    let without = pods.iter().filter(|pod| configuration(pod).is_none()).count();
    for pod in pods {
        let node = &pod.spec.node_name;
        match configuration(pod) {
            Some(path) if path.starts_with(FOLDER) => ours.push(node.clone()),
            Some(path) => found.warn(
                format!("{node}: --config={path} was set up by hand, and what it says is not seen here"),
                "does it name the extender, with nodeCacheCapable: true (docs/schedulers.md)? The check `requests` tells \
                 whether some kube-scheduler asks, not which",
            ),
            None if is_enabled(node.as_str()) => found.fail(
                format!("{node}: no --config, though `enable` has run there: kubeadm upgrade has written its manifest anew"),
                format!("run `plimsoll scheduler enable` on {node}"),
            ),
            None => found.fail(
                format!("{node}: no --config, so it does not ask the extender ({without} of {} schedulers)", pods.len()),
                format!("run `plimsoll scheduler enable` on {node}"),
            ),
        }
    }
    if !ours.is_empty() {
        found.ok(format!("configured on {}", few(&ours)));
        let text = kubeadm.and_then(|it| it.data.get("ClusterConfiguration"));
        if text.is_some_and(|text| !text.contains(FOLDER)) {
            found.warn(
                "the next kubeadm upgrade takes the configuration out of the manifests",
                "run `plimsoll scheduler enable` on each control-plane node; `status` says what is in the way",
            );
        }
    }
}

/// The file of the flag `--config`.
fn configuration(pod: &Pod) -> Option<&str> {
    flag_of(pod.spec.containers.iter().flat_map(|it| it.command.iter().chain(&it.args)), "--config")
}

/// Whether the scheduler that Plimsoll runs beside the provider's is configured to ask.
fn second_configuration(facts: &Facts, found: &mut Findings) {
    const WRITE_ANEW: &str =
        "kubectl plimsoll scheduler-config --in-cluster --gpu --policy FILE writes it anew";
    let read = found.read("the ConfigMap kube-scheduler", facts.second_config.as_ref());
    let Some(map) = read else { return };
    let Some(text) = map.as_ref().and_then(|map| map.data.values().next()) else {
        let namespace = &facts.namespace;
        return found.fail(
            format!(
                "there is no configuration in a ConfigMap kube-scheduler of namespace {namespace}"
            ),
            WRITE_ANEW,
        );
    };
    match serde_saphyr::from_str::<ExtenderConfiguration>(text) {
        Err(error) => found.fail(format!("its configuration is not read: {error}"), WRITE_ANEW),
        Ok(ExtenderConfiguration { mut extenders }) => {
            extenders.retain(|entry| entry.url_prefix.contains(":19100/"));
            if extenders.is_empty() {
                found.fail("its configuration names no extender of Plimsoll", WRITE_ANEW);
            } else if extenders.iter().any(|entry| !entry.node_cache_capable) {
                found.fail("its configuration has nodeCacheCapable false", WRITE_ANEW);
            }
        }
    }
}

/// Whether a scheduler asks, and in the right form, as the extenders say: it asks one of them.
pub(crate) fn requests(facts: &Facts, found: &mut Findings) {
    if !has_extender(facts, found) {
        return;
    }
    let told = found.told_by_one(EXTENDER, &facts.extenders);
    let events = found.read(EVENTS, facts.events.as_ref());
    let silent = told.conditions.iter().all(|(_, it)| it.state == ConditionState::Unknown);
    let since = told.conditions.iter().map(|(_, it)| it.since).max();
    if let (true, true, Some(events), Some(since)) = (told.all_known, silent, events, since)
        && events.iter().any(|event| was_scheduled_since(event, since, facts))
    {
        found.fail(
            "pods were scheduled, and no kube-scheduler has called the extender",
            "see the check `kube-scheduler`; does kube-scheduler's log name the extender's address?",
        );
    }
    found.ok_if_nothing(told.well());
}

/// Whether an event tells that the scheduler that is to ask has given a pod its node since.
fn was_scheduled_since(event: &Event, since: Timestamp, facts: &Facts) -> bool {
    let name = if facts.has(SECOND_SCHEDULER) { "plimsoll-scheduler" } else { "default-scheduler" };
    event.reason == "Scheduled"
        && event.writer() == name
        && event.time().is_some_and(|time| time > since)
}
