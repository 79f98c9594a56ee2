//! Checks of the schedulers: whether each is configured to ask the extender, and whether one does.

use jiff::Timestamp;
use serde::Deserialize;

use super::facts::{Facts, SECOND_SCHEDULER};
use super::finding::{Findings, Metrics, few};
use super::programs::{EVENTS, NODES, PODS, TIME, has_extender, running};
use crate::cluster_access::objects::{Condition, ContainerStatus, Pod};
use crate::cluster_access::workload::flag_of;
use crate::cluster_access::{ENABLED_NODES, EXTENDER};
use crate::format::{count, short_duration};

/// Where `plimsoll scheduler enable` puts the configuration.
const FOLDER: &str = "/etc/kubernetes/plimsoll/";
/// The condition of nodes whose device plugin offers nothing, since pods bypass the extender.
const WITHHELD: &str = "GPUUnitsWithheld";
/// A process that started this long ago has been asked, in a cluster in which anything is scheduled.
const ASKED_WITHIN: i64 = 600;
/// How long an extender that starts may not answer yet, in seconds.
const START: i64 = 60;
/// How old an event is at most that tells of the present, in seconds.
const PRESENT: i64 = 600;
/// What the extender answers, and kube-scheduler logs, where whole nodes are sent.
const WHOLE_NODES: &str = "the request has no NodeNames";
/// The extender's counter of calls by `verb`, which is the path: `load-aware/filter`, for example. Reports and explain
/// count in it too.
const REQUESTS: &str = "plimsoll_extender_requests_total";
/// How the verbs begin that kube-scheduler calls.
const VERBS: [&str; 2] = ["verb=\"load-aware/", "verb=\"gpushare-scheduler/"];
/// How the verbs of Filter end.
const FILTER: &str = "/filter\"";

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
    match serde_saphyr::from_str::<Configuration>(text) {
        Err(error) => found.fail(format!("its configuration is not read: {error}"), WRITE_ANEW),
        Ok(Configuration { mut extenders }) => {
            extenders.retain(|entry| entry.url_prefix.contains(":19100/"));
            if extenders.is_empty() {
                found.fail("its configuration names no extender of Plimsoll", WRITE_ANEW);
            } else if extenders.iter().any(|entry| !entry.node_cache_capable) {
                found.fail("its configuration has nodeCacheCapable false", WRITE_ANEW);
            }
        }
    }
}

/// Whether a scheduler asks, and in the right form.
pub(crate) fn requests(facts: &Facts, found: &mut Findings) {
    if !has_extender(facts, found) {
        return;
    }
    let metrics = found.metrics(EXTENDER, &facts.extenders);
    let errors = calls(&metrics, &[FILTER, "outcome=\"error\""]);
    let all = calls(&metrics, &[FILTER]);
    let mut says_so = log_with_whole_nodes(facts, found);
    // An event can be of any writer: it counts where the extender has refused calls, or may have.
    let event = event_with_whole_nodes(facts, found);
    if says_so.is_none() && (errors > 0.0 || !metrics.all_known) {
        says_so = event;
    }
    if let Some(place) = says_so {
        found.fail(
            format!("kube-scheduler sends whole nodes: nodeCacheCapable is false ({place})"),
            "set nodeCacheCapable: true in each extender's entry, or write the configuration anew: kubectl plimsoll \
             scheduler-config",
        );
    } else if all > 0.0 && errors >= all {
        found.fail(
            format!("all {all} calls of Filter failed"),
            "see kube-scheduler's log for the extender's answer; is nodeCacheCapable true in each extender's entry?",
        );
    }
    called(&metrics, facts, found);
}

/// The sum over the calls of kube-scheduler that have these labels.
fn calls(metrics: &Metrics<'_>, labels: &[&str]) -> f64 {
    VERBS.iter().map(|verb| metrics.sum(REQUESTS, &[labels, &[verb]].concat())).sum()
}

/// Whether a scheduler asks at all.
fn called(metrics: &Metrics<'_>, facts: &Facts, found: &mut Findings) {
    let calls = calls(metrics, &[]);
    let handshakes = metrics.sum("plimsoll_tls_handshake_failures_total", &[]);
    if calls > 0.0 {
        return found.ok_if_nothing(format!("{calls} calls answered since the start"));
    }
    // A replica whose metrics are not known may have been called.
    if !metrics.all_known {
        return;
    }
    if handshakes > 0.0 {
        return found.fail(
            format!("no call was answered, and {handshakes} TLS handshakes failed"),
            "run `plimsoll scheduler enable` on each control-plane node: it has another certificate than the extender",
        );
    }
    let Some(now) = found.read(TIME, facts.now.as_ref()) else { return };
    // From then on every replica counts.
    let mut started = f64::NEG_INFINITY;
    for (_, page) in &metrics.pages {
        started = page.sum("process_start_time_seconds", &[]).map_or(started, |it| it.max(started));
    }
    let runs = if started.is_finite() { now.as_second() - started as i64 } else { 0 };
    if runs <= ASKED_WITHIN {
        return found.warn(
            "no kube-scheduler has called the extender yet, which has just started",
            "create a pod, and look again",
        );
    }
    let what = format!("no kube-scheduler has called the extender in its {}", short_duration(runs));
    if was_scheduled_since(started as i64 + START, facts) {
        found.fail(
            format!("{what}, and pods were scheduled"),
            "see the check `kube-scheduler`; does kube-scheduler's log name the extender's address?",
        );
    } else {
        found.unknown(
            format!("{what}, and no event tells of a pod that was scheduled"),
            "create a pod, and look again",
        );
    }
}

/// Whether an event tells that the scheduler that is to ask has given a pod its node since this second of Unix time.
fn was_scheduled_since(second: i64, facts: &Facts) -> bool {
    let name = if facts.has(SECOND_SCHEDULER) { "plimsoll-scheduler" } else { "default-scheduler" };
    facts.events.as_deref().unwrap_or_default().iter().any(|event| {
        let is_later = event.time().is_some_and(|time| time.as_second() > second);
        event.reason == "Scheduled" && event.writer() == name && is_later
    })
}

/// The scheduler whose log says that it sends whole nodes. A log is of the process that runs, which has read its
/// configuration when it started.
fn log_with_whole_nodes(facts: &Facts, found: &mut Findings) -> Option<String> {
    let logs = found.read("kube-scheduler's logs", facts.scheduler_logs.as_ref())?;
    let mut place = None;
    for (pod, log) in logs {
        let log = found.read(&format!("the log of {pod}"), log.as_ref());
        if log.is_some_and(|log| log.contains(WHOLE_NODES)) {
            place = Some(format!("log of {pod}"));
        }
    }
    place
}

/// The pod of which an event says that kube-scheduler sends whole nodes: one of the last minutes, and since all
/// schedulers have started.
fn event_with_whole_nodes(facts: &Facts, found: &mut Findings) -> Option<String> {
    let events = found.read(EVENTS, facts.events.as_ref())?;
    let started = last_start(facts, found);
    let now = facts.time();
    let is_present = |time: Timestamp| {
        (now - time).get_seconds() < PRESENT && started.is_none_or(|started| time > started)
    };
    for event in events.iter().filter(|event| event.message.contains(WHOLE_NODES)) {
        if event.time().is_some_and(is_present) {
            let about = &event.involved_object;
            return Some(format!("event of pod {}/{}", about.namespace, about.name));
        }
    }
    None
}

/// When the kube-scheduler that started last did so; `None` if that is not known.
fn last_start(facts: &Facts, found: &mut Findings) -> Option<Timestamp> {
    let mut pods = found.read(PODS, facts.pods_of(SECOND_SCHEDULER)).unwrap_or_default();
    pods.extend(facts.schedulers.as_deref().unwrap_or_default());
    let started =
        |it: &ContainerStatus| it.state["running"]["startedAt"].as_str()?.parse::<Timestamp>().ok();
    pods.iter().flat_map(|pod| &pod.status.container_statuses).filter_map(started).max()
}
