//! Checks of Plimsoll's programs: whether they run, lead, have one version, and read the policy.

use std::collections::BTreeSet;

use placement::policy::LoadPolicy;

use super::facts::{Facts, PLUGIN};
use super::finding::{Findings, Metrics, few};
use super::gpu::is_gpu_node;
use crate::cluster_access::objects::Pod;
use crate::cluster_access::workload::{Workload, find};
use crate::cluster_access::{EXTENDER, PolicyMap};
use crate::version::{CLIENT, of_pods};

/// What the checks call [`Facts::workloads`].
pub(crate) const WORKLOADS: &str = "Plimsoll's Deployments and DaemonSets";
/// What the checks call [`Facts::pods`].
pub(crate) const PODS: &str = "Plimsoll's pods";
/// What the checks call [`Facts::nodes`].
pub(crate) const NODES: &str = "the nodes";
/// What the checks call [`Facts::events`].
pub(crate) const EVENTS: &str = "events";
/// What the checks call [`Facts::now`].
pub(crate) const TIME: &str = "the API server's time";
/// The time after which a Lease that was not renewed has no holder: the extender's lasts 10 s.
const LEASE_SECONDS: i64 = 30;

/// Whether Plimsoll is there, and its extender answers and leads.
pub(crate) fn extender(facts: &Facts, found: &mut Findings) {
    let workload = found.read(WORKLOADS, facts.workload(EXTENDER));
    match workload {
        Some(None) => return absent(facts, found),
        Some(Some(workload)) => {
            running(workload, EXTENDER, facts, found);
            leader(workload, facts, found);
        }
        None => {}
    }
    let metrics = found.metrics(EXTENDER, &facts.extenders);
    let overbooked = metrics.sum("plimsoll_extender_gpu_units_overbooked", &[]);
    if overbooked > 0.0 {
        found.fail(
            format!("pods hold {overbooked} units more than their cards have"),
            "look for pods that were not bound by the extender: kubectl plimsoll gpus",
        );
    }
}

/// Without the extender, where the annotator alone is installed that is meant so: hot nodes are tainted.
fn absent(facts: &Facts, found: &mut Findings) {
    if facts.has("annotator") && !facts.has(PLUGIN) {
        return found.does_not_apply("none is installed: hot nodes are tainted, and nothing else");
    }
    found.fail(
        format!("there is no Deployment scheduler-extender in namespace {}", facts.namespace),
        "install Plimsoll (docs/install.md), or name its namespace with --plimsoll-namespace",
    );
}

/// Whether the extender is installed. If it is not, or that is not known, this is found.
pub(crate) fn has_extender(facts: &Facts, found: &mut Findings) -> bool {
    match found.read(WORKLOADS, facts.workload(EXTENDER)) {
        Some(None) => {
            found.does_not_apply("no extender is installed");
            false
        }
        Some(Some(_)) => true,
        None => false,
    }
}

/// Whether the annotator runs.
pub(crate) fn annotator(facts: &Facts, found: &mut Findings) {
    match found.read(WORKLOADS, facts.workload("annotator")) {
        Some(None) => {
            return found.fail(
                format!("there is no Deployment annotator in namespace {}", facts.namespace),
                "install Plimsoll (docs/install.md)",
            );
        }
        Some(Some(workload)) => running(workload, "annotator", facts, found),
        None => {}
    }
    let metrics = found.metrics("annotator", &facts.annotators);
    if metrics.all_known && metrics.sum("plimsoll_annotator_leader", &[]) == 0.0 {
        found.fail(
            "no replica leads, so no reading is written",
            "see its log: can it renew the Lease plimsoll-annotator? (docs/operations.md, a slow API server)",
        );
    }
}

/// How many replicas of a Deployment are ready, and why the others are not.
pub(crate) fn running(workload: &Workload, program: &str, facts: &Facts, found: &mut Findings) {
    let wanted = workload.spec.replicas.unwrap_or(1);
    let ready = workload.status.ready_replicas;
    let namespace = &workload.metadata.namespace;
    if wanted == 0 {
        let name = &workload.metadata.name;
        return found.fail(
            "its Deployment is scaled to 0 replicas",
            format!("kubectl -n {namespace} scale deployment {name} --replicas=2"),
        );
    }
    if ready >= wanted {
        return found.ok(format!("{ready}/{wanted} ready"));
    }
    let mut pods = found.read(PODS, facts.pods_of(program)).unwrap_or_default();
    pods.retain(|pod| !pod.is_ready());
    let why: Vec<String> = pods.into_iter().map(why_not_ready).collect();
    let colon = if why.is_empty() { "" } else { ": " };
    let what = format!("{ready}/{wanted} ready{colon}{}", few(&why));
    let todo = format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={program}");
    if ready == 0 { found.fail(what, todo) } else { found.warn(what, todo) }
}

/// A pod that is not ready, and the reason that its containers or its conditions give.
pub(crate) fn why_not_ready(pod: &Pod) -> String {
    let containers = &pod.status.container_statuses;
    let waiting = containers.iter().find_map(|it| it.state["waiting"]["reason"].as_str());
    let condition = pod.status.conditions.iter().find(|condition| condition.status == "False");
    match waiting.or(condition.map(|condition| condition.reason.as_str())) {
        None | Some("") => pod.metadata.name.clone(),
        Some(reason) => format!("{} ({reason})", pod.metadata.name),
    }
}

fn leader(workload: &Workload, facts: &Facts, found: &mut Findings) {
    if workload.setting("PLIMSOLL_LEASE_NAME").is_none() {
        return found.ok("leads without a Lease: --lease-name is not set");
    }
    let read = found.read("the Lease plimsoll-scheduler-extender", facts.extender_lease.as_ref());
    let Some(lease) = read else { return };
    let Some(lease) = lease else {
        return found.fail(
            "there is no Lease plimsoll-scheduler-extender: no replica has ever led, so GPU pods wait",
            "see the extenders' logs, and the check `rights`",
        );
    };
    let Some(now) = found.read(TIME, facts.now.as_ref()) else { return };
    let renewed = lease.spec.renew_time.map(|time| (*now - time).get_seconds());
    match (lease.holder_pod(), renewed) {
        (Some(pod), Some(ago)) if ago <= LEASE_SECONDS => found.ok(format!("{pod} leads")),
        (Some(pod), Some(ago)) => found.fail(
            format!("no replica leads: {pod} renewed the Lease {ago} s ago, so GPU pods wait"),
            "see its log: does the API server answer in time? (docs/operations.md, a slow API server)",
        ),
        _ => found.fail(
            "no replica leads, so GPU pods wait",
            "see the extenders' logs, and the check `rights`",
        ),
    }
}

/// What to do about programs of several versions.
const FINISH: &str =
    "finish the upgrade: helm upgrade, or kubectl apply -k (docs/install.md#upgrading)";

/// Whether all programs are of one version that fits this command and the cluster.
pub(crate) fn versions(facts: &Facts, found: &mut Findings) {
    let extenders = match facts.workload(EXTENDER) {
        Ok(None) => None,
        _ => Some(found.metrics(EXTENDER, &facts.extenders)),
    };
    let annotators = found.metrics("annotator", &facts.annotators);
    for version in extenders.iter().flat_map(|metrics| told(metrics)).collect::<BTreeSet<_>>() {
        if version != CLIENT {
            found.warn(
                format!("this command is {CLIENT}, the extender {version}"),
                "take the command of the extender's release",
            );
        }
    }
    let mut by_metrics = BTreeSet::new();
    for (program, metrics) in [(EXTENDER, extenders.as_ref()), ("annotator", Some(&annotators))] {
        for version in metrics.into_iter().flat_map(told) {
            by_metrics.insert((program.to_owned(), version.to_owned()));
        }
    }
    let mut by_tag = BTreeSet::new();
    let mut by_digest = Vec::new();
    for image in of_pods(found.read(PODS, facts.pods.as_ref()).map_or(&[], Vec::as_slice)) {
        if ["kube-scheduler", "mps-control-daemon"].contains(&image.program.as_str()) {
            continue;
        }
        if image.version.contains(':') {
            by_digest.push(image.program);
        } else {
            by_tag.insert((image.program, image.version));
        }
    }
    if !are_several("the programs are", &by_metrics, found) {
        are_several("the programs' images are", &by_tag, found);
    }
    for pods in by_digest.chunk_by(|a, b| a == b) {
        if let [program, _, ..] = pods {
            found.warn(format!("pods of {program} are of several images"), FINISH);
        }
    }
    kubernetes(facts, found);
    by_digest.retain(|program| !by_metrics.iter().any(|(known, _)| known == program));
    let mut what = format!("command {CLIENT}, programs alike");
    if !by_digest.is_empty() {
        what += "; images by digest alone do not tell the version of ";
        what += &few(&by_digest);
    }
    found.ok_if_nothing(what);
}

/// The versions that programs tell.
fn told<'a>(metrics: &Metrics<'a>) -> Vec<&'a str> {
    let mut versions = Vec::new();
    for (_, page) in &metrics.pages {
        versions.extend(page.label("plimsoll_build_info", "version"));
    }
    versions
}

/// Whether these programs have several versions, which is then found.
fn are_several(whose: &str, programs: &BTreeSet<(String, String)>, found: &mut Findings) -> bool {
    let versions: BTreeSet<&str> = programs.iter().map(|(_, version)| version.as_str()).collect();
    if versions.len() < 2 {
        return false;
    }
    let named = |(program, version): &(String, String)| format!("{program} {version}");
    let each: Vec<String> = programs.iter().map(named).collect();
    found.warn_of(&format!("{whose} of several versions"), &each, FINISH);
    true
}

/// Whether the API server and the kubelets of GPU nodes are new enough.
fn kubernetes(facts: &Facts, found: &mut Findings) {
    if let Some(server) = found.read("the API server's version", facts.server_version.as_ref()) {
        match minor(server) {
            Some(minor) if minor < OLDEST => found.fail(
                format!("Kubernetes is {server}"),
                format!("Plimsoll needs 1.{OLDEST} or newer"),
            ),
            Some(_) => {}
            None => found.unknown(
                format!("the API server's version {server} is not understood"),
                format!("Plimsoll needs Kubernetes 1.{OLDEST} or newer"),
            ),
        }
    }
    let Some(nodes) = found.read(NODES, facts.nodes.as_ref()) else { return };
    let names = facts.names();
    let mut old = Vec::new();
    for node in nodes.iter().filter(|node| is_gpu_node(node, &names)) {
        let version = &node.status.node_info.kubelet_version;
        if minor(version).is_some_and(|minor| minor < OLDEST) {
            old.push(format!("{} ({version})", node.metadata.name));
        }
    }
    let todo = format!(
        "the device plugin asks the kubelet what it has from 1.{OLDEST} on: upgrade these nodes"
    );
    found.fail_of("kubelets of GPU nodes are too old", &old, &todo);
}

/// The oldest minor version of Kubernetes.
const OLDEST: u32 = 34;

/// The minor version of `v1.36.3-eks-1`.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split(['.', '+', '-']).next()?.parse().ok()
}

/// Whether the policy is one that the programs take, and whether they took each change of it.
pub(crate) fn policy(facts: &Facts, found: &mut Findings) {
    const CHECK_IT: &str = "kubectl plimsoll policy show | kubectl plimsoll policy check -";
    let Some(workloads) = found.read(WORKLOADS, facts.workloads.as_ref()) else { return };
    let has_extender = find(workloads, EXTENDER).is_some();
    if !has_extender && find(workloads, "annotator").is_none() {
        return found.does_not_apply("neither extender nor annotator is installed");
    }
    let map = PolicyMap::of(workloads);
    match &map {
        None => found.unknown(
            "not checked: no flag and no volume of extender and annotator names a ConfigMap with the policy",
            "kubectl plimsoll policy show --effective shows what is in force",
        ),
        Some(map) => stored(facts, map, found),
    }
    const CHANGES: &str = "plimsoll_file_changes_total";
    let refused = ["file=\"policy\"", "outcome=\"refused\""];
    let mut refusals = 0.0;
    if has_extender {
        let metrics = found.metrics(EXTENDER, &facts.extenders);
        refusals += metrics.sum(CHANGES, &refused);
        if metrics.sum("plimsoll_policy_warnings", &[]) > 0.0 {
            found.warn("parts of the policy are probably not meant", CHECK_IT);
        }
    }
    let metrics = found.metrics("annotator", &facts.annotators);
    refusals += metrics.sum(CHANGES, &refused);
    if refusals > 0.0 && !found.has_failed() {
        found.warn(
            "a change of the policy was refused since the programs' start",
            "kubectl plimsoll policy show --effective shows what is in force",
        );
    }
    if let Some(PolicyMap { namespace, name }) = map {
        found.ok_if_nothing(format!("read without fault from the ConfigMap {namespace}/{name}"));
    }
}

/// Whether the policy in its ConfigMap is one that the programs take.
fn stored(facts: &Facts, map: &PolicyMap, found: &mut Findings) {
    let PolicyMap { namespace, name } = map;
    let fact = format!("the ConfigMap {namespace}/{name}");
    let Some(map) = found.read(&fact, facts.policy.as_ref()) else { return };
    if map.is_none() {
        return found.fail(
            format!("there is no ConfigMap {namespace}/{name}, from which the programs read the policy"),
            "apply Plimsoll's manifests again: helm upgrade, or kubectl apply -k; pods that start now do not start \
             without it",
        );
    }
    match facts.policy_text() {
        Ok(Some(text)) => {
            if let Err(error) = LoadPolicy::from_yaml(text) {
                found.fail(
                    format!("the policy is refused, and the one before stays in force: {error}"),
                    "mend it, or go back: kubectl plimsoll policy rollback",
                );
            }
        }
        Ok(None) => found.unknown(
            format!("not checked: {fact} has no key of the name of --policy-file"),
            format!("kubectl -n {namespace} get configmap {name} -o yaml"),
        ),
        Err(failure) => found.unread(WORKLOADS, failure),
    }
}
