//! Checks of readings: exporters that are silent, writers beside the annotator, clocks that are off.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::facts::Facts;
use super::finding::{Finding, count, few};
use super::programs::{sum, why_not_ready};
use crate::cluster_access::objects::{Lease, ManagedFields, Node};

/// A clock that is off by more than this spoils readings and Leases, in seconds.
const FAR: f64 = 30.0;
/// One that is off by more than this is not synchronised. The times that are compared have whole seconds.
const NEAR: f64 = 5.0;
/// How long ago a Lease was written whose times are compared: kubelets renew every 10 s.
const RECENT: i64 = 120;

/// Whether nodes have readings.
pub(crate) fn fresh(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "readings";
    let mut findings = Vec::new();
    let nodes = sum(&facts.annotators, "plimsoll_annotator_nodes", &[]);
    let leads = |page: &super::page::Page| page.sum("plimsoll_annotator_leader", &[]) == Some(1.0);
    let leader = facts.annotators.values().flatten().find(|page| leads(page));
    let silent = leader.and_then(|page| page.sum("plimsoll_annotator_nodes_silent", &[]));
    let all = leader.and_then(|page| page.sum("plimsoll_annotator_nodes", &[])).unwrap_or(nodes);
    let without = without_readings(facts);
    let exporters = facts.pods_of("node-exporter-plus").into_iter();
    let gpu_exporters = facts.pods_of("node-exporter-plus-gpu").into_iter();
    let broken: Vec<String> =
        exporters.chain(gpu_exporters).filter(|pod| !pod.is_ready()).map(why_not_ready).collect();
    if let Some(silent) = silent.filter(|silent| *silent > 0.0) {
        let mut what = format!("{silent} of {all} exporters do not answer the annotator");
        if let Some(names) = without.as_ref().filter(|names| !names.is_empty()) {
            what += &format!("; without a fresh reading: {}", few(names));
        }
        if !broken.is_empty() {
            what += &format!("; not ready: {}", few(&broken));
        }
        let finding = if silent >= all { Finding::fail } else { Finding::warn };
        findings.push(finding(
            CHECK,
            what,
            "does curl NODE:19101/statistics answer from another node? A firewall between nodes is the usual cause \
             (docs/troubleshoot.md#readings)",
        ));
    } else if !broken.is_empty() {
        findings.push(Finding::warn(
            CHECK,
            format!("{} not ready: {}", count(broken.len(), "exporter"), few(&broken)),
            "kubectl describe these pods",
        ));
    }
    match (&facts.state, without) {
        (Err(failure), _) => findings.push(Finding::unread(CHECK, "the extender's state", failure)),
        (Ok(_), Some(names)) if silent.is_none_or(|silent| silent == 0.0) && !names.is_empty() => {
            findings.push(Finding::warn(
                CHECK,
                format!("{} lack a fresh reading of a metric of the policy: {}", count(names.len(), "node"), few(&names)),
                "after an install they come within minutes (docs/operations.md#after-a-first-install); else \
                 kubectl plimsoll top nodes -o wide, and the annotator's log",
            ));
        }
        (Ok(state), _) if findings.is_empty() => {
            findings.push(Finding::ok(
                CHECK,
                format!("{} fresh", count(state.nodes.name.len(), "node")),
            ));
        }
        _ => {}
    }
    findings
}

/// The nodes that lack a reading, by the extender; `None` if that is not known.
fn without_readings(facts: &Facts) -> Option<Vec<String>> {
    let state = facts.state.as_ref().ok()?;
    let nodes = state.nodes.name.iter().zip(&state.nodes.missing);
    Some(nodes.filter(|(_, missing)| **missing > 0).map(|(name, _)| name.clone()).collect())
}

/// Whether one program alone writes readings.
pub(crate) fn writers(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "writers";
    let mut findings = Vec::new();
    let leaders = sum(&facts.annotators, "plimsoll_annotator_leader", &[]);
    if leaders > 1.0 {
        findings.push(Finding::fail(
            CHECK,
            format!("{leaders} annotators lead at once"),
            "they share no Lease: remove all but one installation",
        ));
    }
    let workloads = facts.workloads.as_deref().unwrap_or_default().iter();
    let annotators: BTreeSet<&str> = workloads
        .filter(|it| super::facts::name_of(&it.metadata) == "annotator")
        .map(|it| it.metadata.namespace.as_str())
        .collect();
    if annotators.len() > 1 {
        let namespaces: Vec<String> = annotators.into_iter().map(str::to_owned).collect();
        findings.push(Finding::fail(
            CHECK,
            format!("annotators are installed in several namespaces: {}", few(&namespaces)),
            "one cluster takes one Plimsoll: remove all but one",
        ));
    }
    let nodes = match &facts.nodes {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "the nodes", failure));
            return findings;
        }
        Ok(nodes) => nodes,
    };
    let metrics = facts.metric_names();
    let mut writers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in nodes {
        for fields in &node.metadata.managed_fields {
            if writes_one_of(fields, &metrics) {
                writers.entry(&fields.manager).or_default().insert(&node.metadata.name);
            }
        }
    }
    if writers.len() > 1 {
        let each: Vec<String> = writers
            .iter()
            .map(|(manager, nodes)| format!("{manager} ({})", count(nodes.len(), "node")))
            .collect();
        findings.push(Finding::fail(
            CHECK,
            format!("several programs write readings: {}", few(&each)),
            "stop all but Plimsoll's annotator, as crane's (docs/migrate.md); kubectl get node NODE \
             --show-managed-fields -o yaml shows who wrote what",
        ));
    } else if findings.is_empty() && !metrics.is_empty() {
        findings.push(Finding::ok(CHECK, "one program writes readings"));
    }
    findings
}

/// Whether one of these annotations is among the fields.
fn writes_one_of(fields: &ManagedFields, keys: &[&str]) -> bool {
    let annotations: &Value = &fields.fields_v1["f:metadata"]["f:annotations"];
    keys.iter().any(|key| annotations.get(format!("f:{key}")).is_some())
}

/// Whether clocks agree with the API server's.
pub(crate) fn clocks(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "clocks";
    const TODO: &str = "set up time synchronisation there (chrony, systemd-timesyncd)";
    let mut findings = Vec::new();
    let now = match &facts.now {
        Err(failure) => return vec![Finding::unread(CHECK, "the API server's time", failure)],
        Ok(now) => *now,
    };
    let own = (facts.own_time - now).total(jiff::Unit::Second).unwrap_or_default();
    if own.abs() > NEAR {
        findings.push(Finding::warn(
            CHECK,
            format!("this machine's clock is {own:+.0} s off the API server's"),
            "ages that this command shows are off by as much",
        ));
    }
    match &facts.node_leases {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "the Leases of kube-node-lease", failure))
        }
        Ok(leases) => {
            for lease in leases {
                let Some(offset) = offset(lease, now) else { continue };
                let name = &lease.metadata.name;
                let what = format!("{name}: its clock is {offset:+.0} s off the API server's");
                if offset.abs() > FAR {
                    findings.push(Finding::fail(CHECK, what, TODO));
                } else if offset.abs() > NEAR {
                    findings.push(Finding::warn(CHECK, what, TODO));
                }
            }
        }
    }
    let ahead: Vec<String> = facts
        .nodes
        .as_deref()
        .unwrap_or_default()
        .iter()
        .filter(|node| reading_ahead(node, &facts.metric_names(), now))
        .map(|node| node.metadata.name.clone())
        .collect();
    let refused =
        sum(&facts.extenders, "plimsoll_extender_refused_readings_total", &["cause=\"ahead\""]);
    if !ahead.is_empty() || refused > 0.0 {
        let names = if ahead.is_empty() { String::new() } else { format!(": {}", few(&ahead)) };
        findings.push(Finding::fail(
            CHECK,
            format!("readings are of the future, so that they do not count{names}"),
            "look at the clock of the annotator's node, and at its --time-zone and the extender's",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "nodes and this machine agree with the API server"));
    }
    findings
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
fn reading_ahead(node: &Node, metrics: &[&str], now: Timestamp) -> bool {
    metrics.iter().filter_map(|metric| node.metadata.annotations.get(*metric)).any(|text| {
        let time = text.split(',').nth(1).and_then(|time| time.parse::<Timestamp>().ok());
        time.is_some_and(|time| (time - now).total(jiff::Unit::Second).unwrap_or_default() > FAR)
    })
}
