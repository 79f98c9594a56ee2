//! `plimsoll support-bundle`: an archive of what a report of a fault needs.
//!
//! Invariant: no Secret is ever asked for. Of objects an allow-list of fields is kept, and every text goes through
//! [`redact`] before it is written.

mod archive;
mod redact;
mod token;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use crate::args::operate::SupportBundle;
use crate::cluster_access::objects::Pod;
use crate::cluster_access::workload::name_of;
use crate::cluster_access::{Cluster, PART_OF, PolicyMap};
use crate::doctor;
use crate::doctor::collect::{ADMIN_PORTS, MAX_PODS, admin};
use crate::extender;
use crate::version::CLIENT;
use archive::Archive;

/// Kinds of Plimsoll's objects that are selected by its label, in its namespaces. No Secrets.
const WORKLOADS: &str =
    "deployments,daemonsets,pods,services,endpointslices,poddisruptionbudgets,networkpolicies";
/// The same, in kube-system too.
const RIGHTS: &str = "serviceaccounts,roles,rolebindings";
/// The same, of the cluster.
const OF_CLUSTER: [(&str, &str); 2] = [
    ("objects/cluster-rights.json", "clusterroles,clusterrolebindings"),
    ("objects/admission.json", "validatingadmissionpolicies,validatingadmissionpolicybindings"),
];
/// What the extender answers.
const ANSWERS: [&str; 5] = ["state", "cards", "pending", "decisions", "policy"];

/// Writes the archive. What cannot be read is told in `problems.txt` in it.
///
/// # Errors
///
/// If kubectl reaches no cluster, or the archive cannot be written.
pub(crate) fn support_bundle(flags: &SupportBundle, output: &mut dyn Write) -> Result<()> {
    let now = Timestamp::now();
    let cluster = Cluster::new(&flags.access);
    let namespace = cluster.namespace()?.to_owned();
    let name = flags.file.clone().unwrap_or_else(|| {
        let time = format!("{now:.0}").replace(':', "");
        format!("plimsoll-support-{time}.tar.gz").into()
    });
    // A file that is there is not replaced.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // For its user alone.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&name).with_context(|| format!("{}", name.display()))?;
    let mut bundle = Bundle { archive: Archive::new(file, now), problems: String::new(), files: 0 };
    bundle.add("command.txt", &format!("plimsoll {CLIENT}, {now:.0}\nnamespace {namespace}\n"))?;
    match doctor::texts(&cluster) {
        Ok((table, report)) => {
            bundle.add("doctor.txt", &table)?;
            bundle.add_json("doctor.json", &report)?;
        }
        Err(error) => bundle.problem("doctor", &error),
    }
    objects(&cluster, &namespace, &mut bundle)?;
    answers(&cluster, &mut bundle)?;
    pods(&cluster, flags.log_lines, &mut bundle)?;
    let files = bundle.files;
    bundle.finish()?;
    writeln!(
        output,
        "{} written: {files} files. Look into it before you send it: tar -tzf {0}",
        name.display()
    )?;
    Ok(())
}

/// The archive, and what could not be read.
struct Bundle {
    archive: Archive,
    problems: String,
    files: usize,
}

impl Bundle {
    fn add(&mut self, name: &str, text: &str) -> Result<()> {
        self.add_blanked(name, &redact::text(text))
    }

    /// A text of JSON; of another form it is added as a text.
    fn add_json(&mut self, name: &str, text: &str) -> Result<()> {
        match serde_json::from_str::<Value>(text) {
            Ok(mut value) => {
                redact::value(&mut value);
                self.add_blanked(name, &serde_json::to_string_pretty(&value)?)
            }
            Err(_) => self.add(name, text),
        }
    }

    fn add_blanked(&mut self, name: &str, text: &str) -> Result<()> {
        self.files += 1;
        self.archive.add(name, text).with_context(|| name.to_owned())
    }

    /// A text that was read, of JSON where its name says so; or that it could not be.
    fn add_read(&mut self, name: &str, read: Result<String, impl Display>) -> Result<()> {
        match read {
            Ok(text) if name.ends_with(".json") => self.add_json(name, &text)?,
            Ok(text) => self.add(name, &text)?,
            Err(failure) => self.problem(name, &failure),
        }
        Ok(())
    }

    fn problem(&mut self, what: &str, error: &dyn Display) {
        self.problems += &format!("{what}: {error:#}\n");
    }

    fn finish(mut self) -> Result<()> {
        let problems = std::mem::take(&mut self.problems);
        if !problems.is_empty() {
            self.add("problems.txt", &problems)?;
        }
        self.archive.finish()
    }
}

fn objects(cluster: &Cluster, namespace: &str, bundle: &mut Bundle) -> Result<()> {
    let selector = format!("--selector={PART_OF}");
    let namespaces = cluster.namespaces()?;
    let policy = cluster.policy_map();
    if let Err(error) = &policy {
        bundle.problem("objects/policy.json", error);
    }
    for of in namespaces.into_iter().chain(["kube-system"]) {
        let in_namespace = format!("--namespace={of}");
        // Those of the node agents and of kube-system lie in folders of their own.
        let folder = if of == namespace { String::new() } else { format!("{of}/") };
        let name = format!("objects/{folder}rights.json");
        object(cluster, &name, &["get", RIGHTS, &in_namespace, &selector], bundle)?;
        if of != "kube-system" || of == namespace {
            let name = format!("objects/{folder}workloads.json");
            object(cluster, &name, &["get", WORKLOADS, &in_namespace, &selector], bundle)?;
        }
    }
    for (name, kinds) in OF_CLUSTER {
        object(cluster, name, &["get", kinds, "--all-namespaces", &selector], bundle)?;
    }
    let in_namespace = format!("--namespace={namespace}");
    if let Ok(PolicyMap { namespace, name }) = policy {
        let words = ["get", "configmap", &name, &format!("--namespace={namespace}")];
        object(cluster, "objects/policy.json", &words, bundle)?;
    }
    let schedulers = ["--namespace=kube-system", "--selector=component=kube-scheduler"];
    let others: [(&str, &[&str]); 5] = [
        ("objects/leases.json", &["get", "leases", &in_namespace]),
        ("objects/kube-scheduler.json", &["get", "pods", schedulers[0], schedulers[1]]),
        ("nodes.json", &["get", "nodes"]),
        ("version.json", &["version"]),
        ("events.json", &["get", "events", "--all-namespaces"]),
    ];
    others.iter().try_for_each(|(name, words)| object(cluster, name, words, bundle))
}

/// Adds what kubectl answers to these words.
fn object(cluster: &Cluster, name: &str, words: &[&str], bundle: &mut Bundle) -> Result<()> {
    let words = [words, &["--output=json"]].concat();
    let text = match cluster.kubectl().run(&words) {
        Ok(text) => text,
        Err(failure) => {
            bundle.problem(name, &failure);
            return Ok(());
        }
    };
    let Ok(mut value) = serde_json::from_str::<Value>(&text) else {
        bundle.problem(name, &"kubectl's answer is no JSON");
        return Ok(());
    };
    if name == "events.json" {
        keep_ours(&mut value);
    }
    redact::kept(&mut value);
    bundle.add_blanked(name, &serde_json::to_string_pretty(&value)?)
}

/// The events of Plimsoll's programs, and of pods that were not scheduled; others are nobody's business here.
fn keep_ours(list: &mut Value) {
    if let Some(items) = list["items"].as_array_mut() {
        items.retain(|event| {
            let writer = event["reportingComponent"].as_str().unwrap_or_default();
            writer.starts_with("plimsoll-") || event["reason"] == "FailedScheduling"
        });
    }
}

fn answers(cluster: &Cluster, bundle: &mut Bundle) -> Result<()> {
    for answer in ANSWERS {
        let text = cluster.extender().and_then(|url| extender::text(&format!("{url}/v1/{answer}")));
        bundle.add_read(&format!("extender/{answer}.json"), text)?;
    }
    Ok(())
}

/// Logs, health and metrics.
fn pods(cluster: &Cluster, lines: u32, bundle: &mut Bundle) -> Result<()> {
    let mut pods: Vec<Pod> = match cluster.list_ours("pods") {
        Ok(pods) => pods,
        Err(failure) => {
            bundle.problem("logs", &failure);
            return Ok(());
        }
    };
    pods.sort_by_key(Pod::is_ready);
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in &pods {
        let program = name_of(&pod.metadata);
        let number = taken.entry(program).or_default();
        *number += 1;
        if *number > MAX_PODS {
            continue;
        }
        logs(cluster, pod, lines, bundle)?;
        let has_port = ADMIN_PORTS.iter().any(|(name, _)| *name == program);
        if has_port && pod.status.phase == "Running" {
            let name = &pod.metadata.name;
            for (file, path) in [
                (format!("health/{name}.json"), "/v1/health"),
                (format!("metrics/{name}.txt"), "/metrics"),
            ] {
                bundle.add_read(&file, admin(cluster.kubectl(), pod, path))?;
            }
        }
    }
    Ok(())
}

fn logs(cluster: &Cluster, pod: &Pod, lines: u32, bundle: &mut Bundle) -> Result<()> {
    let namespace = format!("--namespace={}", pod.metadata.namespace);
    let tail = format!("--tail={lines}");
    let pod_name = &pod.metadata.name;
    let words = ["logs", pod_name, &namespace, "--all-containers", &tail, "--previous"];
    bundle.add_read(&format!("logs/{pod_name}.log"), cluster.kubectl().run(&words[..5]))?;
    if pod.status.container_statuses.iter().any(|status| status.restart_count > 0) {
        let name = format!("logs/{pod_name}-before.log");
        bundle.add_read(&name, cluster.kubectl().run(&words))?;
    }
    Ok(())
}
