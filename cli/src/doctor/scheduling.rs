//! Checks of the schedulers: whether each is configured to ask the extender, and whether one does.

use serde::Deserialize;

use super::facts::Facts;
use super::finding::{Finding, count, few};
use super::programs::sum;
use crate::cluster_access::objects::Pod;

/// Where `plimsoll-scheduler enable` puts the configuration.
const FOLDER: &str = "/etc/kubernetes/plimsoll";
/// The annotation of kubeadm-config with the nodes on which `enable` has run.
const ENABLED_NODES: &str = "plimsoll.dev/kube-scheduler-nodes";
/// The condition of nodes whose device plugin offers nothing, since pods bypass the extender.
const WITHHELD: &str = "GPUUnitsWithheld";
/// A process that started this long ago has been asked, in a cluster in which anything is scheduled.
const ASKED_WITHIN: i64 = 600;
/// What the extender answers, and kube-scheduler logs, where whole nodes are sent.
const WHOLE_NODES: &str = "nodeCacheCapable";

/// A configuration of kube-scheduler, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    extenders: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    url_prefix: String,
    node_cache_capable: bool,
}

/// Whether each kube-scheduler has the configuration.
pub(crate) fn configured(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "kube-scheduler";
    if facts.workload("scheduler-extender").is_none() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let nodes = facts.nodes.as_deref().unwrap_or_default().iter();
    let withheld: Vec<String> = nodes
        .filter(|node| {
            node.status.conditions.iter().any(|it| it.kind == WITHHELD && it.status == "True")
        })
        .map(|node| node.metadata.name.clone())
        .collect();
    if !withheld.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("GPU pods are bound without the extender, so {} offer no units: {}", count(withheld.len(), "node"), few(&withheld)),
            "run `plimsoll-scheduler enable` on each control-plane node; if the pods name another scheduler, take \
             spec.schedulerName out",
        ));
    }
    if !facts.pods_of("kube-scheduler").is_empty() {
        findings.extend(second(facts));
        return findings;
    }
    match &facts.schedulers {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "kube-scheduler's pods in kube-system", failure))
        }
        Ok(pods) if pods.is_empty() => findings.push(Finding::warn(
            CHECK,
            "no pod of it is visible in kube-system, as where a provider or RKE2 runs it",
            "the check `requests` tells whether one asks; docs/schedulers.md has how to set it up",
        )),
        Ok(pods) => findings.extend(static_pods(pods, facts)),
    }
    findings
}

fn static_pods(pods: &[Pod], facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "kube-scheduler";
    let kubeadm = facts.kubeadm_config.as_ref().ok().and_then(Option::as_ref);
    let enabled = kubeadm.and_then(|it| it.metadata.annotations.get(ENABLED_NODES));
    let enabled: Vec<&str> = enabled.map(|text| text.split(',').collect()).unwrap_or_default();
    let mut findings = Vec::new();
    if let Err(failure) = &facts.kubeadm_config {
        findings.push(Finding::unread(CHECK, "the ConfigMap kubeadm-config", failure));
    }
    let mut ours = Vec::new();
    let without: Vec<&Pod> = pods.iter().filter(|pod| configuration(pod).is_none()).collect();
    for pod in pods {
        let node = &pod.spec.node_name;
        match configuration(pod) {
            Some(path) if path.starts_with(FOLDER) => ours.push(node.clone()),
            Some(path) => findings.push(Finding::ok(
                CHECK,
                format!("{node}: --config={path}, which was set up by hand; the check `requests` tells whether it asks"),
            )),
            None if enabled.contains(&node.as_str()) => findings.push(Finding::fail(
                CHECK,
                format!("{node}: no --config, though `enable` has run there: kubeadm upgrade has written its manifest anew"),
                format!("run `plimsoll-scheduler enable` on {node}"),
            )),
            None => findings.push(Finding::fail(
                CHECK,
                format!("{node}: no --config, so it does not ask the extender ({} of {} schedulers)", without.len(), pods.len()),
                format!("run `plimsoll-scheduler enable` on {node}"),
            )),
        }
    }
    if !ours.is_empty() {
        findings.push(Finding::ok(CHECK, format!("configured on {}", few(&ours))));
        let text = kubeadm.and_then(|it| it.data.get("ClusterConfiguration"));
        if text.is_some_and(|text| !text.contains(FOLDER)) {
            findings.push(Finding::warn(
                CHECK,
                "the next kubeadm upgrade takes the configuration out of the manifests",
                "run `plimsoll-scheduler enable` on each control-plane node; `status` says what is in the way",
            ));
        }
    }
    findings
}

/// The file of the flag `--config`.
fn configuration(pod: &Pod) -> Option<&str> {
    let mut words = pod.spec.containers.iter().flat_map(|it| it.command.iter().chain(&it.args));
    while let Some(word) = words.next() {
        if let Some(path) = word.strip_prefix("--config=") {
            return Some(path);
        }
        if word == "--config" {
            return words.next().map(String::as_str);
        }
    }
    None
}

/// The one that Plimsoll runs beside the provider's.
fn second(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "kube-scheduler";
    let pods = facts.pods_of("kube-scheduler");
    let ready = pods.iter().filter(|pod| pod.is_ready()).count();
    let mut findings = vec![if ready == 0 {
        Finding::fail(
            CHECK,
            "no pod of plimsoll-scheduler is ready",
            "kubectl describe its pods; see their log",
        )
    } else {
        Finding::ok(CHECK, format!("plimsoll-scheduler {ready}/{} ready", pods.len()))
    }];
    let text = match &facts.second_config {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "the ConfigMap kube-scheduler", failure));
            return findings;
        }
        Ok(map) => map.as_ref().and_then(|map| map.data.values().next()),
    };
    let configuration: Configuration =
        text.and_then(|text| serde_saphyr::from_str(text).ok()).unwrap_or_default();
    let ours = configuration.extenders.iter().filter(|it| it.url_prefix.contains(":19100/"));
    let ours: Vec<&Entry> = ours.collect();
    let write_anew =
        "kubectl plimsoll scheduler-config --in-cluster --gpu --policy FILE writes it anew";
    if ours.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            "its configuration names no extender of Plimsoll",
            write_anew,
        ));
    } else if ours.iter().any(|entry| !entry.node_cache_capable) {
        findings.push(Finding::fail(
            CHECK,
            "its configuration has nodeCacheCapable false",
            write_anew,
        ));
    }
    findings
}

/// Whether a scheduler asks, and in the right form.
pub(crate) fn requests(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "requests";
    const NAME: &str = "plimsoll_extender_requests_total";
    if !facts.extenders.values().any(Result::is_ok) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if let Err(failure) = &facts.scheduler_logs {
        findings.push(Finding::unread(CHECK, "kube-scheduler's logs", failure));
    }
    let said = says_whole_nodes(facts);
    let verb = "verb=\"filter\"";
    let errors = sum(&facts.extenders, NAME, &[verb, "outcome=\"error\""]);
    let all = sum(&facts.extenders, NAME, &[verb]);
    if let Some(place) = said {
        findings.push(Finding::fail(
            CHECK,
            format!("kube-scheduler sends whole nodes: nodeCacheCapable is false ({place})"),
            "set nodeCacheCapable: true in each extender's entry, or write the configuration anew: kubectl plimsoll \
             scheduler-config",
        ));
    } else if all > 0.0 && errors >= all {
        findings.push(Finding::fail(
            CHECK,
            format!("all {all} calls of Filter failed"),
            "see kube-scheduler's log for the extender's answer; is nodeCacheCapable true in each extender's entry?",
        ));
    }
    let calls = sum(&facts.extenders, NAME, &[]);
    let handshakes = sum(&facts.extenders, "plimsoll_extender_tls_handshake_failures_total", &[]);
    let started = facts.extenders.values().flatten();
    let started = started.filter_map(|page| page.sum("process_start_time_seconds", &[]));
    let first = started.fold(f64::INFINITY, f64::min);
    let runs = facts.time().as_second()
        - if first.is_finite() { first as i64 } else { facts.time().as_second() };
    if calls == 0.0 && handshakes > 0.0 {
        findings.push(Finding::fail(
            CHECK,
            format!("no call was answered, and {handshakes} TLS handshakes failed"),
            "run `plimsoll-scheduler enable` on each control-plane node: it has another certificate than the extender",
        ));
    } else if calls == 0.0 && runs > ASKED_WITHIN {
        findings.push(Finding::fail(
            CHECK,
            format!("no kube-scheduler has called the extender in its {}", crate::format::short_duration(runs)),
            "see the check `kube-scheduler`; does kube-scheduler's log name the extender's address?",
        ));
    } else if calls == 0.0 {
        findings.push(Finding::warn(
            CHECK,
            "no kube-scheduler has called the extender yet, which has just started",
            "create a pod, and look again",
        ));
    } else if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{calls} calls answered since the start")));
    }
    findings
}

/// Where it stands that whole nodes are sent: in an event of a pod, or in a scheduler's log.
fn says_whole_nodes(facts: &Facts) -> Option<String> {
    let events = facts.events.as_deref().unwrap_or_default();
    let event = events.iter().find(|event| event.message.contains(WHOLE_NODES));
    if let Some(event) = event {
        let about = &event.involved_object;
        return Some(format!("event of pod {}/{}", about.namespace, about.name));
    }
    let logs = facts.scheduler_logs.as_ref().ok()?;
    let (pod, _) = logs.iter().find(|(_, log)| log.contains(WHOLE_NODES))?;
    Some(format!("log of {pod}"))
}
