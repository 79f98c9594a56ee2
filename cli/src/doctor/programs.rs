//! Checks of Plimsoll's programs: whether they run, lead, have one version, and read the policy.

use std::collections::BTreeSet;
use std::slice;

use placement::policy::LoadPolicy;

use super::facts::{Facts, PLUGIN, is_gpu_node};
use super::finding::{Findings, few};
use crate::cluster_access::objects::Pod;
use crate::cluster_access::workload::{Workload, find};
use crate::cluster_access::{EXTENDER, PolicyMap};
use crate::version::{CLIENT, of_pods};

// What the checks call facts that several of them look at.
pub(crate) const WORKLOADS: &str = "Plimsoll's Deployments and DaemonSets";
pub(crate) const PODS: &str = "Plimsoll's pods";
pub(crate) const NODES: &str = "the nodes";
pub(crate) const EVENTS: &str = "events";
pub(crate) const TIME: &str = "the API server's time";

/// Whether Plimsoll is there, and its extender answers and leads.
pub(crate) fn extender(facts: &Facts, found: &mut Findings) {
    match found.read(WORKLOADS, facts.workload(EXTENDER)) {
        Some(None) => return absent(facts, found),
        Some(Some(workload)) => running(workload, EXTENDER, facts, found),
        None => {}
    }
    found.told(EXTENDER, &facts.extenders);
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
    found.told("annotator", &facts.annotators);
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

/// What to do about programs of several versions.
pub(crate) const FINISH: &str =
    "finish the upgrade: helm upgrade, or kubectl apply -k (docs/install.md#upgrading)";

/// Whether all programs are of one version that fits this command and the cluster.
pub(crate) fn versions(facts: &Facts, found: &mut Findings) {
    // Why a health is not read is a finding of the checks `extender` and `annotator`.
    let mut told = BTreeSet::new();
    for (program, healths) in [(EXTENDER, &facts.extenders), ("annotator", &facts.annotators)] {
        let name = program.trim_start_matches("scheduler-");
        let mut others = BTreeSet::new();
        let mut silent = Vec::new();
        for (pod, health) in healths.iter().flat_map(|healths| &healths.pods) {
            let version = match health {
                Ok(health) => Some(health.version.clone()),
                Err(_) => version_of_image(facts, program, pod),
            };
            let Some(version) = version else {
                silent.push(pod.clone());
                continue;
            };
            if version != CLIENT && (program == EXTENDER || health.is_err()) {
                others.insert(version.clone());
            }
            told.insert((program.to_owned(), version));
        }
        for version in others {
            found.warn(
                format!("this command is {CLIENT}, the {name} {version}"),
                format!("take the command of the {name}'s release"),
            );
        }
        if !silent.is_empty() {
            let pods = few(&silent);
            found.unknown(
                format!("not checked: neither health nor image tells the version of {pods}"),
                format!("see the check `{name}`"),
            );
        }
    }
    if told.is_empty() && facts.pods.is_ok() {
        found.unknown(
            "not checked: no pod of extender and annotator tells its version",
            "see the checks `extender` and `annotator`",
        );
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
    if !are_several("the programs are", &told, found) {
        are_several("the programs' images are", &by_tag, found);
    }
    for pods in by_digest.chunk_by(|a, b| a == b) {
        if let [program, _, ..] = pods {
            found.warn(format!("pods of {program} are of several images"), FINISH);
        }
    }
    kubernetes(facts, found);
    by_digest.retain(|program| !told.iter().any(|(known, _)| known == program));
    let mut what = format!("command {CLIENT}, programs alike");
    if !by_digest.is_empty() {
        what += "; images by digest alone do not tell the version of ";
        what += &few(&by_digest);
    }
    found.ok_if_nothing(what);
}

/// The version of a pod by its image's tag; `None` if the image has no tag, or one that is no version.
fn version_of_image(facts: &Facts, program: &str, pod: &str) -> Option<String> {
    let pods = facts.pods_of(program).ok()?;
    let found = pods.into_iter().find(|it| it.metadata.name == pod)?;
    let tag = of_pods(slice::from_ref(found)).pop()?.version;
    let version = tag.strip_prefix('v').unwrap_or(&tag);
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
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
    if has_extender {
        found.told(EXTENDER, &facts.extenders);
    }
    found.told("annotator", &facts.annotators);
    if let Some(PolicyMap { namespace, name }) = map {
        found.ok_if_nothing(format!("read without fault from the ConfigMap {namespace}/{name}"));
    }
}

/// Whether the policy in the ConfigMap that the programs read is one that they take.
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
