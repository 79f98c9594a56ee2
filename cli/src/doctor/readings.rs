//! Checks of readings: exporters that are silent, writers beside the annotator, clocks that are off.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use placement::policy::LoadPolicy;
use serde_json::Value;

use super::facts::Facts;
use super::finding::Findings;
use super::programs::{NODES, PODS, TIME, WORKLOADS, why_not_ready};
use crate::cluster_access::EXTENDER;
use crate::cluster_access::objects::{Lease, ManagedFields};
use crate::cluster_access::workload::{Workload, name_of};
use crate::format::count;

/// A clock that is off by more than this spoils readings and Leases, in seconds.
const FAR: f64 = 30.0;
/// One that is off by more than this is not synchronised. The times that are compared have whole seconds.
const NEAR: f64 = 5.0;
/// How long ago a Lease was written whose times are compared: kubelets renew every 10 s.
const RECENT: i64 = 120;
/// How long ago a program wrote readings that still writes them, in seconds.
const STILL_WRITES: i64 = 600;

/// Whether nodes have readings, as annotator and extender say.
pub(crate) fn fresh(facts: &Facts, found: &mut Findings) {
    let annotator = found.read(WORKLOADS, facts.workload("annotator"));
    if annotator.is_some_and(|annotator| annotator.is_none()) {
        return found.does_not_apply("no annotator is installed");
    }
    let broken = broken_exporters(facts, found);
    let what = format!("{} not ready", count(broken.len(), "exporter"));
    found.warn_of(&what, &broken, "kubectl describe these pods");
    let mut well = found.told("annotator", &facts.annotators).well();
    if !matches!(facts.workload(EXTENDER), Ok(None)) {
        well = found.told(EXTENDER, &facts.extenders).well();
    }
    found.ok_if_nothing(well);
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

/// Whether one program alone writes readings.
pub(crate) fn writers(facts: &Facts, found: &mut Findings) {
    let annotator = found.read(WORKLOADS, facts.workload("annotator"));
    if annotator.is_some_and(|annotator| annotator.is_none()) {
        return found.does_not_apply("no annotator is installed");
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
    let (Some(nodes), Some(text), Some(now)) = (
        found.read(NODES, facts.nodes.as_ref()),
        found.read("the policy", facts.policy_text()),
        found.read(TIME, facts.now.as_ref()),
    ) else {
        return;
    };
    let Some(policy) = text.and_then(|text| LoadPolicy::from_yaml(text).ok()) else {
        // That is a finding of the check `policy`.
        return found.does_not_apply("there is no policy, or a faulty one");
    };
    let metrics: Vec<String> = policy.metrics().into_iter().map(ToString::to_string).collect();
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
    }
    found.ok_if_nothing("nodes and this machine agree with the API server");
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
