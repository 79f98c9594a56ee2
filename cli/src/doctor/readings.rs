//! Checks of readings: exporters that are silent, writers beside the annotator, clocks that are off.

use std::collections::{BTreeMap, BTreeSet};

use api::state::State;
use jiff::Timestamp;
use serde_json::Value;

use super::facts::Facts;
use super::finding::{Findings, few};
use super::programs::{NODES, PODS, TIME, WORKLOADS, why_not_ready};
use crate::cluster_access::EXTENDER;
use crate::cluster_access::objects::{Lease, ManagedFields, Node};
use crate::cluster_access::workload::{Workload, find, name_of};
use crate::format::count;

/// What the checks call [`Facts::state`].
pub(crate) const STATE: &str = "the extender's state";
/// A clock that is off by more than this spoils readings and Leases, in seconds.
const FAR: f64 = 30.0;
/// One that is off by more than this is not synchronised. The times that are compared have whole seconds.
const NEAR: f64 = 5.0;
/// How long ago a Lease was written whose times are compared: kubelets renew every 10 s.
const RECENT: i64 = 120;
/// How long ago a program wrote readings that still writes them, in seconds.
const STILL_WRITES: i64 = 600;

/// Whether nodes have readings.
pub(crate) fn fresh(facts: &Facts, found: &mut Findings) {
    let annotator = found.read(WORKLOADS, facts.workload("annotator"));
    if annotator.is_some_and(|annotator| annotator.is_none()) {
        return found.does_not_apply("no annotator is installed");
    }
    let state = state(facts, found);
    let without = state.map(without_readings).unwrap_or_default();
    let broken = broken_exporters(facts, found);
    let metrics = found.metrics("annotator", &facts.annotators);
    let leader = metrics.pages.iter().find(|(_, page)| page.sum(LEADS, &[]) == Some(1.0));
    let silent = leader.and_then(|(_, page)| page.sum("plimsoll_annotator_nodes_silent", &[]));
    let all = leader.and_then(|(_, page)| page.sum("plimsoll_annotator_nodes", &[]));
    let is_silent = silent.is_some_and(|silent| silent > 0.0);
    if let (true, Some(silent), Some(all)) = (is_silent, silent, all) {
        let mut what = format!("{silent} of {all} exporters do not answer the annotator");
        if !without.is_empty() {
            what += &format!("; without a fresh reading: {}", few(&without));
        }
        if !broken.is_empty() {
            what += &format!("; not ready: {}", few(&broken));
        }
        let todo = "does curl NODE:19101/statistics answer from another node? A firewall between nodes is the usual \
                    cause (docs/troubleshoot.md#readings)";
        if silent >= all { found.fail(what, todo) } else { found.warn(what, todo) }
    } else {
        let what = format!("{} not ready", count(broken.len(), "exporter"));
        found.warn_of(&what, &broken, "kubectl describe these pods");
    }
    if !is_silent {
        found.warn_of(
            &format!("{} lack a fresh reading of a metric of the policy", count(without.len(), "node")),
            &without,
            "after an install they come within minutes (docs/operations.md#after-a-first-install); else \
             kubectl plimsoll top nodes -o wide, and the annotator's log",
        );
    }
    if metrics.all_known && all.is_none() {
        found.unknown(
            "not checked: no annotator leads, so that none tells which exporters answer",
            "see the check `annotator`",
        );
    }
    match (state, all) {
        (Some(state), _) => {
            found.ok_if_nothing(format!("{} fresh", count(state.nodes.name.len(), "node")));
        }
        (None, Some(all)) if all > 0.0 => {
            found.ok_if_nothing(format!("{all} exporters answer the annotator"));
        }
        (None, Some(_)) => found.unknown(
            "the annotator knows no node, so that none is measured",
            "do the nodes have the labels of its --node-selector?",
        ),
        (None, None) => {}
    }
}

/// The metric that is 1 on the annotator that leads.
const LEADS: &str = "plimsoll_annotator_leader";

/// The state of an extender that is installed, if it knows the whole cluster. If it is not known, that is found.
pub(crate) fn state<'a>(facts: &'a Facts, found: &mut Findings) -> Option<&'a State> {
    if matches!(facts.workload(EXTENDER), Ok(None)) {
        return None;
    }
    let state = found.read(STATE, facts.state.as_ref())?;
    if !state.replica.complete {
        found.unknown(
            format!("not checked: {} has not listed all nodes and pods yet", state.replica.name),
            "look again in a minute; if it stays, its log says what it cannot read",
        );
        return None;
    }
    if state.nodes.name.is_empty() {
        found.unknown(
            format!("not checked: {} knows no node", state.replica.name),
            "its log says what it cannot read; see the check `rights`",
        );
        return None;
    }
    Some(state)
}

/// The exporters that are not ready, and why.
fn broken_exporters(facts: &Facts, found: &mut Findings) -> Vec<String> {
    let mut broken = Vec::new();
    let Some(pods) = found.read(PODS, facts.pods.as_ref()) else { return broken };
    for pod in pods {
        let program = name_of(&pod.metadata);
        if ["node-exporter-plus", "node-exporter-plus-gpu"].contains(&program) && !pod.is_ready() {
            broken.push(why_not_ready(pod));
        }
    }
    broken
}

/// The nodes that lack a reading, by the extender.
fn without_readings(state: &State) -> Vec<String> {
    let mut without = Vec::new();
    for (name, missing) in state.nodes.name.iter().zip(&state.nodes.missing) {
        without.extend((*missing > 0).then(|| name.clone()));
    }
    without
}

/// Whether one program alone writes readings.
pub(crate) fn writers(facts: &Facts, found: &mut Findings) {
    let annotator = found.read(WORKLOADS, facts.workload("annotator"));
    if annotator.is_some_and(|annotator| annotator.is_none()) {
        return found.does_not_apply("no annotator is installed");
    }
    let leaders = found.metrics("annotator", &facts.annotators).sum(LEADS, &[]);
    if leaders > 1.0 {
        found.fail(
            format!("{leaders} annotators lead at once"),
            "they share no Lease: remove all but one installation",
        );
    }
    let mut namespaces: Vec<String> = Vec::new();
    for Workload { metadata, .. } in facts.workloads.as_deref().unwrap_or_default() {
        if name_of(metadata) == "annotator" {
            namespaces.push(metadata.namespace.clone());
        }
    }
    namespaces.sort();
    namespaces.dedup();
    if namespaces.len() > 1 {
        found.fail_of(
            "annotators are installed in several namespaces",
            &namespaces,
            "one cluster takes one Plimsoll: remove all but one",
        );
    }
    let (Some(nodes), Some(metrics), Some(now)) = (
        found.read(NODES, facts.nodes.as_ref()),
        found.read("the metrics of the policy", facts.metric_names()),
        found.read(TIME, facts.now.as_ref()),
    ) else {
        return;
    };
    let mut writers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut former: BTreeSet<&str> = BTreeSet::new();
    for node in nodes {
        for fields in &node.metadata.managed_fields {
            if !writes_one_of(fields, &metrics) {
                continue;
            }
            // The API server notes when a program wrote its fields last.
            if fields.time.is_none_or(|time| (*now - time).get_seconds() < STILL_WRITES) {
                writers.entry(&fields.manager).or_default().insert(&node.metadata.name);
            } else {
                former.insert(&fields.manager);
            }
        }
    }
    if writers.len() > 1 {
        let mut each = Vec::new();
        for (manager, nodes) in &writers {
            each.push(format!("{manager} ({})", count(nodes.len(), "node")));
        }
        found.fail_of(
            "several programs write readings",
            &each,
            "stop all but Plimsoll's annotator, as crane's (docs/migrate.md); kubectl get node NODE \
             --show-managed-fields -o yaml shows who wrote what",
        );
    } else if writers.is_empty() && former.is_empty() {
        found.unknown(
            "not checked: no node has a reading of a metric of the policy",
            "see the check `readings`; after an install they come within minutes",
        );
    }
    let minutes = STILL_WRITES / 60;
    found.ok_if_nothing(match writers.len() {
        0 => format!("no program has written readings within {minutes} minutes"),
        _ => format!("one program has written readings within {minutes} minutes"),
    });
}

/// Whether one of these annotations is among the fields.
fn writes_one_of(fields: &ManagedFields, keys: &[String]) -> bool {
    let annotations: &Value = &fields.fields_v1["f:metadata"]["f:annotations"];
    keys.iter().any(|key| annotations.get(format!("f:{key}")).is_some())
}

/// Whether clocks agree with the API server's.
pub(crate) fn clocks(facts: &Facts, found: &mut Findings) {
    const TODO: &str = "set up time synchronisation there (chrony, systemd-timesyncd)";
    if let Some(now) = found.read(TIME, facts.now.as_ref()) {
        let own = own_offset(facts.own_time, *now);
        if own.abs() > NEAR {
            found.warn(
                format!("this machine's clock is {own:+.0} s off the API server's"),
                "ages that this command shows are off by as much",
            );
        }
        let leases = found.read("the Leases of kube-node-lease", facts.node_leases.as_ref());
        let mut compared = 0;
        for lease in leases.into_iter().flatten() {
            let Some(offset) = offset(lease, *now) else { continue };
            compared += 1;
            let name = &lease.metadata.name;
            let what = format!("{name}: its clock is {offset:+.0} s off the API server's");
            if offset.abs() > FAR {
                found.fail(what, TODO);
            } else if offset.abs() > NEAR {
                found.warn(what, TODO);
            }
        }
        if leases.is_some() && compared == 0 {
            found.unknown(
                format!("not checked: no kubelet has renewed its Lease within {RECENT} s"),
                "kubectl -n kube-node-lease get leases; are the nodes ready?",
            );
        }
        ahead(facts, *now, found);
    }
    found.ok_if_nothing("nodes and this machine agree with the API server");
}

/// Whether readings are of the future.
fn ahead(facts: &Facts, now: Timestamp, found: &mut Findings) {
    const TODO: &str =
        "look at the clock of the annotator's node, and at its --time-zone and the extender's";
    let nodes = found.read(NODES, facts.nodes.as_ref());
    let metrics = found.read("the metrics of the policy", facts.metric_names());
    let mut ahead = Vec::new();
    let workloads = found.read(WORKLOADS, facts.workloads.as_ref());
    let mut are_compared = false;
    if let (Some(nodes), Some(metrics), Some(workloads)) = (nodes, metrics, workloads) {
        // In another time zone they are written as its local time.
        are_compared = is_utc(workloads);
        for node in nodes.iter().filter(|node| are_compared && reading_ahead(node, &metrics, now)) {
            ahead.push(node.metadata.name.clone());
        }
    }
    let mut refused = 0.0;
    if !matches!(facts.workload(EXTENDER), Ok(None)) {
        let metrics = found.metrics(EXTENDER, &facts.extenders);
        refused = metrics.sum("plimsoll_extender_refused_readings_total", &["cause=\"ahead\""]);
    }
    found.fail_of("readings are of the future, so that they do not count", &ahead, TODO);
    if ahead.is_empty() && refused > 0.0 {
        let now = if are_compared { "; those on the nodes now are not" } else { "" };
        found.warn(
            format!("since the extender's start readings were of the future, so that they did not count{now}"),
            TODO,
        );
    }
}

/// Whether times of readings on Nodes are in UTC, by the settings of the programs that write and read them.
fn is_utc(workloads: &[Workload]) -> bool {
    [EXTENDER, "annotator"].iter().all(|program| {
        let zone = find(workloads, program).and_then(|it| it.setting("PLIMSOLL_TIME_ZONE"));
        zone.is_none_or(|zone| zone == "UTC")
    })
}

/// By how many seconds this machine's clock is ahead of the API server's, at least: that one was read between two looks
/// at this one, and has whole seconds.
fn own_offset([before, after]: [Timestamp; 2], now: Timestamp) -> f64 {
    let ahead = (before - now).total(jiff::Unit::Second).unwrap_or_default();
    let behind = (now - after).total(jiff::Unit::Second).unwrap_or_default();
    if ahead > 0.0 { ahead } else { -behind.max(0.0) }
}

/// By how many seconds a kubelet's clock is ahead of the API server's: it wrote its own time, and the API server when
/// it was written. `None` if the Lease is not renewed now.
fn offset(lease: &Lease, now: Timestamp) -> Option<f64> {
    let renewed = lease.spec.renew_time?;
    let written = lease.metadata.managed_fields.iter().filter_map(|fields| fields.time).max()?;
    if (now - written).get_seconds().abs() > RECENT {
        return None;
    }
    (renewed - written).total(jiff::Unit::Second).ok()
}

/// Whether a reading of the node is of the future.
fn reading_ahead(node: &Node, metrics: &[String], now: Timestamp) -> bool {
    metrics.iter().filter_map(|metric| node.metadata.annotations.get(metric)).any(|text| {
        let time = text.split(',').nth(1).and_then(|time| time.parse::<Timestamp>().ok());
        time.is_some_and(|time| (time - now).total(jiff::Unit::Second).unwrap_or_default() > FAR)
    })
}
