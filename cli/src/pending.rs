//! `plimsoll pending`: the pods that wait, and why, grouped by workload and reason.
//!
//! What the extender decided comes from it; the pods that it was not asked about, and kube-scheduler's own words, from
//! the pods themselves.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use api::decisions::{Decided, Decisions, Reason};
use jiff::Timestamp;
use serde::Serialize;

use crate::args::pods::Pending;
use crate::cluster_access::objects::{List, Pod, workload};
use crate::cluster_access::{Cluster, scope_flag};
use crate::extender;
use crate::format::{printable, printable_lines, short_duration};
use crate::output::write_form;
use crate::table::{self, or_none};

/// How many reasons one cell names.
const REASONS: usize = 3;

/// A group of pods that wait for one reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    namespace: String,
    /// As `deploy/web`; of a pod without a controller `pod/NAME`.
    workload: String,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fits_if: Option<String>,
    /// Of the pod that waits longest.
    waited_seconds: i64,
    pods: Vec<String>,
}

/// What is written as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    time: Timestamp,
    /// The extender did not answer: the groups are those that kubectl lists, without what it decided.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_decisions: bool,
    groups: &'a [Group],
}

/// Shows the pods that wait.
///
/// # Errors
///
/// If neither the extender answers nor the pods can be listed, or the pods cannot be listed for a selector.
pub(crate) fn pending(flags: &Pending, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    let namespace = cluster.namespace_of(&flags.namespaces);
    let decisions = extender::get::<Decisions>(&cluster, "/v1/pending");
    let pods = pods(flags, namespace.as_deref(), &cluster);
    let (time, waiting) = match (&decisions, pods) {
        (Ok(decisions), Ok(pods)) => (decisions.time, join(&pods, decisions)),
        // With the extender's address alone, its part is shown.
        (Ok(decisions), Err(error)) if cluster.has_url() && flags.selector.is_none() => {
            warn("only pods that the extender was asked about", &error)?;
            let mut waiting = Vec::new();
            for decided in &decisions.decisions {
                if namespace.as_ref().is_none_or(|namespace| decided.pod.namespace == *namespace) {
                    waiting.push(of_decision(decided, None, decisions.time));
                }
            }
            (decisions.time, waiting)
        }
        (Ok(_), Err(error)) => return Err(error),
        (Err(error), Ok(pods)) => {
            warn("without what the extender decided", error)?;
            let now = Timestamp::now();
            let by_itself = |pod: &Pod| by_itself(pod, true, now);
            (now, pods.iter().filter(|pod| pod.waits()).map(by_itself).collect())
        }
        (Err(_), Err(_)) => return decisions.map(drop),
    };
    let groups = grouped(waiting);
    let answer = Answer { time, without_decisions: decisions.is_err(), groups: &groups };
    let mut names = Vec::new();
    for group in &groups {
        names.extend(group.pods.iter().map(|pod| format!("pod/{pod}")));
    }
    if write_form(&answer, names, flags.query.format, output)? {
        return Ok(());
    }
    if groups.is_empty() {
        writeln!(output, "No pod waits for a node{}.", scope(namespace.as_deref()))?;
        return Ok(());
    }
    let wide = flags.query.format.is_wide();
    let mut heading = vec!["WAITS", "PODS", "NAMESPACE", "WORKLOAD", "WHY", "FITS IF"];
    heading.extend(wide.then_some("NAMES"));
    table::write(output, heading, groups.iter().map(|group| row(group, wide)))?;
    if let Ok(Decisions { replica, .. }) = &decisions
        && !replica.leads
    {
        let name = printable(&replica.name);
        writeln!(output, "\nReplica {name} answers, which does not lead.")?;
    }
    Ok(())
}

fn warn(what: &str, error: &anyhow::Error) -> io::Result<()> {
    writeln!(io::stderr(), "Warning: {what}: {}", printable_lines(&format!("{error:#}")))
}

/// What is behind a sentence about pods of this namespace, or of all.
pub(crate) fn scope(namespace: Option<&str>) -> String {
    namespace.map(|name| format!(" in namespace {name} (-A: all)")).unwrap_or_default()
}

fn row(group: &Group, wide: bool) -> Vec<String> {
    let mut row = vec![
        short_duration(group.waited_seconds),
        group.pods.len().to_string(),
        group.namespace.clone(),
        group.workload.clone(),
        group.why.clone(),
        or_none(group.fits_if.clone()),
    ];
    row.extend(wide.then(|| group.pods.join(",")));
    row
}

fn pods(flags: &Pending, namespace: Option<&str>, cluster: &Cluster) -> Result<Vec<Pod>> {
    let scope = scope_flag(namespace);
    let mut words = vec!["pods", &scope, "--field-selector=spec.nodeName=,status.phase=Pending"];
    let selector = flags.selector.as_ref().map(|selector| format!("--selector={selector}"));
    words.extend(selector.as_deref());
    let pods: List<Pod> = cluster.kubectl().get(&words)?;
    Ok(pods.items)
}

/// Each pod that waits, with its decision if there is one. A decision without its pod is of one that is gone meanwhile,
/// or of another namespace.
fn join(pods: &[Pod], decisions: &Decisions) -> Vec<Group> {
    let by_uid: BTreeMap<&str, &Decided> =
        decisions.decisions.iter().map(|it| (it.pod.uid.as_str(), it)).collect();
    let mut waiting = Vec::new();
    for pod in pods.iter().filter(|pod| pod.waits()) {
        waiting.push(match by_uid.get(pod.metadata.uid.as_str()) {
            Some(decided) => of_decision(decided, Some(pod), decisions.time),
            None => by_itself(pod, false, decisions.time),
        });
    }
    waiting
}

/// The group of one pod, by what the extender decided about it.
fn of_decision(decided: &Decided, pod: Option<&Pod>, now: Timestamp) -> Group {
    let waited = match pod.and_then(|pod| pod.metadata.creation_timestamp) {
        Some(created) => (now - created).get_seconds(),
        None => decided.waited_seconds + (now - decided.time).get_seconds(),
    };
    let by_us = decided.workload.as_ref().map(|it| workload(&it.kind, &it.name));
    Group {
        namespace: decided.pod.namespace.clone(),
        workload: by_us.unwrap_or_else(|| format!("pod/{}", decided.pod.name)),
        why: why(decided, pod),
        fits_if: decided.fits_if.clone(),
        waited_seconds: waited.max(0),
        pods: vec![decided.pod.name.clone()],
    }
}

fn why(decided: &Decided, pod: Option<&Pod>) -> String {
    if let Some(fault) = &decided.fault {
        return fault.clone();
    }
    if decided.accepted > 0 {
        let nodes = match decided.accepted {
            1 => "1 node accepts".to_owned(),
            accepted => format!("{accepted} nodes accept"),
        };
        return match pod.and_then(scheduler_says) {
            Some(message) => format!("{nodes} it; kube-scheduler: {message}"),
            None => format!("{nodes} it; kube-scheduler has not bound it yet"),
        };
    }
    let mut parts: Vec<String> = Vec::new();
    for Reason { reason, nodes } in decided.reasons.iter().take(REASONS) {
        // Without the hint that its event carries.
        let short = reason.split(" (see: ").next().unwrap_or(reason);
        parts.push(format!("{short} ({nodes})"));
    }
    let more = decided.reasons.len().saturating_sub(REASONS);
    if more > 0 {
        parts.push(format!("{more} more reasons"));
    }
    if parts.is_empty() { "no node was asked about".to_owned() } else { parts.join(", ") }
}

/// What kube-scheduler wrote on the pod.
fn scheduler_says(pod: &Pod) -> Option<String> {
    let message = &pod.scheduled()?.message;
    if message.is_empty() { None } else { Some(message.clone()) }
}

/// The group of one pod, by what stands on it: the extender has not decided about it, or that is not known.
fn by_itself(pod: &Pod, may_be_asked: bool, now: Timestamp) -> Group {
    let created = pod.metadata.creation_timestamp.unwrap_or(now);
    let gates: Vec<&str> =
        pod.spec.scheduling_gates.iter().filter_map(|gate| gate["name"].as_str()).collect();
    let scheduler = &pod.spec.scheduler_name;
    let prefix = if may_be_asked { "" } else { "not asked: " };
    let why = if !gates.is_empty() {
        format!("not asked yet: SchedulingGated ({})", gates.join(", "))
    } else if let Some(message) = scheduler_says(pod) {
        format!("{prefix}kube-scheduler: {message}")
    } else {
        format!("{prefix}no scheduler {scheduler} has looked at it; does one of this name run?")
    };
    Group {
        namespace: pod.metadata.namespace.clone(),
        workload: pod.workload().unwrap_or_else(|| format!("pod/{}", pod.metadata.name)),
        why,
        fits_if: None,
        waited_seconds: (now - created).get_seconds().max(0),
        pods: vec![pod.metadata.name.clone()],
    }
}

/// One group of those that are alike but for their pods; those that wait longest first.
fn grouped(waiting: Vec<Group>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places: BTreeMap<[String; 4], usize> = BTreeMap::new();
    for pod in waiting {
        let Group { namespace, workload, why, fits_if, .. } = &pod;
        let key = [namespace, workload, why, fits_if.as_ref().unwrap_or(why)].map(String::clone);
        let place = *places.entry(key).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => {
                group.waited_seconds = group.waited_seconds.max(pod.waited_seconds);
                group.pods.extend(pod.pods);
            }
            None => groups.push(pod),
        }
    }
    groups.iter_mut().for_each(|group| group.pods.sort());
    groups.sort_by_key(|group| std::cmp::Reverse(group.waited_seconds));
    groups
}
