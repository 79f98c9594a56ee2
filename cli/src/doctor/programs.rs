//! Checks of Plimsoll's programs: whether they run, lead, have one version, and read the policy.

use std::collections::BTreeMap;

use placement::policy::LoadPolicy;

use super::facts::{Facts, Read};
use super::finding::{Finding, few};
use super::page::Page;
use crate::cluster_access::objects::Pod;
use crate::version::{CLIENT, of_pods};

/// The time after which a Lease that was not renewed has no holder: the extender's lasts 10 s.
const LEASE_SECONDS: i64 = 30;

/// Whether Plimsoll is there, and its extender answers and leads.
pub(crate) fn extender(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "extender";
    if let Err(failure) = &facts.workloads {
        return vec![Finding::unread(CHECK, "Plimsoll's Deployments", failure)];
    }
    if facts.workload("scheduler-extender").is_none() {
        if facts.workload("annotator").is_some() {
            return vec![Finding::ok(
                CHECK,
                "none is installed: hot nodes are tainted, and nothing else",
            )];
        }
        return vec![Finding::fail(
            CHECK,
            format!("there is no Deployment scheduler-extender in namespace {}", facts.namespace),
            "install Plimsoll (docs/install.md), or name its namespace with --plimsoll-namespace",
        )];
    }
    let mut findings = running(CHECK, "scheduler-extender", facts);
    findings.extend(leader(facts));
    let unread = facts.extenders.iter().filter_map(|(pod, page)| Some((pod, page.as_ref().err()?)));
    findings.extend(
        unread.map(|(pod, failure)| Finding::unread(CHECK, &format!("metrics of {pod}"), failure)),
    );
    let overbooked = sum(&facts.extenders, "plimsoll_extender_gpu_units_overbooked", &[]);
    if overbooked > 0.0 {
        findings.push(Finding::fail(
            CHECK,
            format!("pods hold {overbooked} units more than their cards have"),
            "look for pods that were not bound by the extender: kubectl plimsoll gpus",
        ));
    }
    findings
}

/// Whether the annotator runs.
pub(crate) fn annotator(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "annotator";
    if let Err(failure) = &facts.workloads {
        return vec![Finding::unread(CHECK, "Plimsoll's Deployments", failure)];
    }
    if facts.workload("annotator").is_none() {
        return vec![Finding::fail(
            CHECK,
            format!("there is no Deployment annotator in namespace {}", facts.namespace),
            "install Plimsoll (docs/install.md)",
        )];
    }
    let mut findings = running(CHECK, "annotator", facts);
    let unread =
        facts.annotators.iter().filter_map(|(pod, page)| Some((pod, page.as_ref().err()?)));
    findings.extend(
        unread.map(|(pod, failure)| Finding::unread(CHECK, &format!("metrics of {pod}"), failure)),
    );
    let known = facts.annotators.values().any(Result::is_ok);
    if known && sum(&facts.annotators, "plimsoll_annotator_leader", &[]) == 0.0 {
        findings.push(Finding::fail(
            CHECK,
            "no replica leads, so no reading is written",
            "see its log: can it renew the Lease plimsoll-annotator? (docs/operations.md, a slow API server)",
        ));
    }
    findings
}

/// How many replicas are ready, and why the others are not.
fn running(check: &'static str, program: &str, facts: &Facts) -> Vec<Finding> {
    let Some(workload) = facts.workload(program) else { return Vec::new() };
    let wanted = workload.spec.replicas.unwrap_or(1);
    let ready = workload.status.ready_replicas;
    if ready >= wanted {
        return vec![Finding::ok(check, format!("{ready}/{wanted} ready"))];
    }
    let why: Vec<String> = facts
        .pods_of(program)
        .into_iter()
        .filter(|pod| !pod.is_ready())
        .map(why_not_ready)
        .collect();
    let what = format!("{ready}/{wanted} ready: {}", few(&why));
    let namespace = &workload.metadata.namespace;
    let todo = format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={program}");
    let finding = if ready == 0 { Finding::fail } else { Finding::warn };
    vec![finding(check, what, todo)]
}

/// A pod that is not ready, and the reason that its containers or its conditions give.
pub(crate) fn why_not_ready(pod: &Pod) -> String {
    let mut reasons = pod.status.container_statuses.iter().filter_map(|status| {
        let waiting = &status.state["waiting"];
        waiting["reason"].as_str().map(str::to_owned)
    });
    let of_condition = pod.status.conditions.iter().find(|condition| condition.status == "False");
    let of_condition = of_condition.map(|condition| condition.reason.clone());
    let reason = reasons.next().or(of_condition).filter(|reason| !reason.is_empty());
    match reason {
        Some(reason) => format!("{} ({reason})", pod.metadata.name),
        None => pod.metadata.name.clone(),
    }
}

fn leader(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "extender";
    let lease = match &facts.extender_lease {
        Ok(lease) => lease,
        Err(failure) => {
            return vec![Finding::unread(CHECK, "the Lease plimsoll-scheduler-extender", failure)];
        }
    };
    let renewed = lease.spec.renew_time.map(|time| (facts.time() - time).get_seconds());
    match (lease.holder_pod(), renewed) {
        (Some(pod), Some(ago)) if ago <= LEASE_SECONDS => {
            vec![Finding::ok(CHECK, format!("{pod} leads"))]
        }
        (Some(pod), Some(ago)) => vec![Finding::fail(
            CHECK,
            format!("no replica leads: {pod} renewed the Lease {ago} s ago, so GPU pods wait"),
            "see its log: does the API server answer in time? (docs/operations.md, a slow API server)",
        )],
        _ => vec![Finding::fail(
            CHECK,
            "no replica leads, so GPU pods wait",
            "see the extenders' logs, and the check `rights`",
        )],
    }
}

/// The sum of a metric over all replicas whose metrics are known.
pub(crate) fn sum(pages: &BTreeMap<String, Read<Page>>, name: &str, labels: &[&str]) -> f64 {
    pages.values().flatten().filter_map(|page| page.sum(name, labels)).sum()
}

/// Whether all programs are of one version that fits this command and the cluster.
pub(crate) fn versions(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "versions";
    let mut findings = Vec::new();
    match &facts.pods {
        Err(failure) => findings.push(Finding::unread(CHECK, "Plimsoll's pods", failure)),
        Ok(pods) => {
            let programs = of_pods(pods);
            let ours: Vec<_> = programs
                .iter()
                .filter(|it| it.program != "kube-scheduler" && it.program != "mps-control-daemon")
                .collect();
            let mut versions: Vec<&str> = ours.iter().map(|it| it.version.as_str()).collect();
            versions.sort_unstable();
            versions.dedup();
            if versions.len() > 1 {
                let each: Vec<String> =
                    ours.iter().map(|it| format!("{} {}", it.program, it.version)).collect();
                findings.push(Finding::warn(
                    CHECK,
                    format!("the programs' images are of several versions: {}", few(&each)),
                    "finish the upgrade: helm upgrade, or kubectl apply -k (docs/versions.md)",
                ));
            }
        }
    }
    let told = facts.extenders.values().flatten();
    let mut told: Vec<&str> =
        told.filter_map(|page| page.label("plimsoll_build_info", "version")).collect();
    told.dedup();
    for version in told.iter().filter(|version| **version != CLIENT) {
        findings.push(Finding::warn(
            CHECK,
            format!("this command is {CLIENT}, the extender {version}"),
            "take the command of the extender's release",
        ));
    }
    match &facts.server_version {
        Err(failure) => findings.push(Finding::unread(CHECK, "the API server's version", failure)),
        Ok(server) if minor(server).is_some_and(|minor| minor < OLDEST) => {
            findings.push(Finding::fail(
                CHECK,
                format!("Kubernetes is {server}"),
                format!("Plimsoll needs 1.{OLDEST} or newer"),
            ))
        }
        Ok(_) => {}
    }
    let nodes = facts.nodes.as_deref().unwrap_or_default().iter();
    let old: Vec<String> = nodes
        .filter(|node| super::gpu::is_gpu_node(node))
        .filter(|node| minor(&node.status.node_info.kubelet_version).is_some_and(|it| it < OLDEST))
        .map(|node| format!("{} ({})", node.metadata.name, node.status.node_info.kubelet_version))
        .collect();
    if !old.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("kubelets of GPU nodes are too old: {}", few(&old)),
            format!("the device plugin asks the kubelet what it has from 1.{OLDEST} on: upgrade these nodes"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("command {CLIENT}, programs alike")));
    }
    findings
}

/// The oldest minor version of Kubernetes.
const OLDEST: u32 = 34;

/// The minor version of `v1.36.3-eks-1`.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split(['.', '+', '-']).next()?.parse().ok()
}

/// Whether the policy is one that the programs take, and whether they took each change of it.
pub(crate) fn policy(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "policy";
    const CHECK_IT: &str = "kubectl plimsoll policy show | kubectl plimsoll policy check -";
    let mut findings = Vec::new();
    let text = match &facts.policy {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "the ConfigMap policy", failure));
            None
        }
        // The chart can name another one.
        Ok(map) => map.as_ref().and_then(|map| map.data.get("policy.yaml")),
    };
    let faulty = text.and_then(|text| LoadPolicy::from_yaml(text).err());
    let refused = ["outcome=\"refused\""];
    let refused = sum(&facts.extenders, "plimsoll_extender_policy_reads_total", &refused)
        + sum(&facts.annotators, "plimsoll_annotator_policy_reads_total", &refused);
    if let Some(error) = faulty {
        findings.push(Finding::fail(
            CHECK,
            format!("the policy is refused, and the one before stays in force: {error}"),
            "mend it, or go back: kubectl plimsoll policy rollback",
        ));
    } else if refused > 0.0 {
        findings.push(Finding::warn(
            CHECK,
            "a change of the policy was refused since the programs' start",
            "kubectl plimsoll policy show --effective shows what is in force",
        ));
    }
    if sum(&facts.extenders, "plimsoll_extender_policy_warnings", &[]) > 0.0 {
        findings.push(Finding::warn(CHECK, "parts of the policy are probably not meant", CHECK_IT));
    }
    if findings.is_empty() {
        let what = if text.is_some() { "read without fault" } else { "in a ConfigMap of your own" };
        findings.push(Finding::ok(CHECK, what));
    }
    findings
}
