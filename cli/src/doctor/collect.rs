//! Reads the facts, by kubectl and by port-forwards. Judges nothing.

use std::collections::BTreeMap;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::certificates::end_of;
use super::facts::{ConfigMap, Facts, Read, Right, name_of};
use super::page::Page;
use crate::cluster_access::objects::{Event, List, Meta, Object, Pod};
use crate::cluster_access::{Cluster, EXTENDER_LEASE, Failure, Forward, Kubectl, PART_OF};
use crate::extender;

/// The admin ports of the programs whose metrics are read.
const ADMIN_PORTS: [(&str, u16); 2] = [("scheduler-extender", 19102), ("annotator", 19103)];
/// The Secrets whose certificates are looked at. Their keys are not asked for.
pub(crate) const CERTIFICATES: [&str; 3] =
    ["scheduler-extender-tls", "kube-scheduler-tls", "exporter-tls"];
/// How many lines of a log are looked through.
const LOG: &str = "--tail=400";
/// How many device plugins that are not ready have their logs read.
const MAX_LOGS: usize = 5;

/// Reads everything, and the certificates of these Secrets.
///
/// # Errors
///
/// If kubectl reaches no cluster.
pub(crate) fn collect(cluster: &Cluster, secrets: &[&str]) -> Result<Facts> {
    let namespace = cluster.namespace()?.to_owned();
    let kubectl = cluster.kubectl();
    let in_namespace = format!("--namespace={namespace}");
    let ours = format!("--selector={PART_OF}");
    let (now, own_time) = server_time(kubectl);
    let pods: Read<Vec<Pod>> = list(kubectl, &["pods", "--all-namespaces", &ours]);
    let known_pods = pods.as_deref().unwrap_or_default();
    let schedulers: Read<Vec<Pod>> =
        list(kubectl, &["pods", "--namespace=kube-system", "--selector=component=kube-scheduler"]);
    let mut pages = ADMIN_PORTS.map(|(program, port)| pages(kubectl, known_pods, program, port));
    let [extenders, annotators] = [0, 1].map(|place: usize| std::mem::take(&mut pages[place]));
    Ok(Facts {
        now,
        own_time,
        server_version: server_version(kubectl),
        workloads: list(kubectl, &["deployments,daemonsets", "--all-namespaces", &ours]),
        nodes: list(kubectl, &["nodes", "--show-managed-fields"]),
        scheduler_logs: scheduler_logs(
            kubectl,
            schedulers.as_deref().unwrap_or_default(),
            known_pods,
        ),
        kubeadm_config: config_map(kubectl, "kubeadm-config", "--namespace=kube-system"),
        second_config: config_map(kubectl, "kube-scheduler", &in_namespace),
        policy: config_map(kubectl, "policy", &in_namespace),
        extender_lease: kubectl.get(&["lease", EXTENDER_LEASE, &in_namespace]),
        extenders,
        annotators,
        state: extender::get(cluster, "/v1/state")
            .map_err(|error| Failure::Other(format!("{error:#}"))),
        certificates: secrets
            .iter()
            .map(|secret| ((*secret).to_owned(), certificate(kubectl, secret, &in_namespace)))
            .collect(),
        bindings: list(kubectl, &["validatingadmissionpolicybindings"]),
        policies: list::<Object>(kubectl, &["validatingadmissionpolicies"])
            .map(|policies| policies.into_iter().map(|it| it.metadata.name).collect()),
        rights: rights(kubectl, &namespace, known_pods),
        events: list::<Event>(kubectl, &["events", "--all-namespaces"])
            .map(|events| events.into_iter().filter(of_interest).collect()),
        node_leases: list(
            kubectl,
            &["leases", "--namespace=kube-node-lease", "--show-managed-fields"],
        ),
        plugin_logs: plugin_logs(kubectl, known_pods),
        toolkits: list(
            kubectl,
            &[
                "daemonsets",
                "--all-namespaces",
                "--selector=app=nvidia-container-toolkit-daemonset",
            ],
        ),
        namespace,
        pods,
        schedulers,
    })
}

fn list<T: DeserializeOwned>(kubectl: &Kubectl, words: &[&str]) -> Read<Vec<T>> {
    kubectl.get::<List<T>>(words).map(|list| list.items)
}

/// The API server's time, as it writes it into an answer about its caller, and this machine's time then.
fn server_time(kubectl: &Kubectl) -> (Read<Timestamp>, Timestamp) {
    #[derive(Deserialize)]
    struct Review {
        metadata: Meta,
    }
    let answer = kubectl.run(&["auth", "whoami", "--output=json"]);
    let own = Timestamp::now();
    let time = answer.and_then(|answer| {
        let review: Option<Review> = serde_json::from_str(&answer).ok();
        let time = review.and_then(|review| review.metadata.creation_timestamp);
        time.ok_or_else(|| Failure::Other("kubectl auth whoami tells no time".to_owned()))
    });
    (time, own)
}

fn server_version(kubectl: &Kubectl) -> Read<String> {
    let answer = kubectl.run(&["version", "--output=json"])?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    let version = answer["serverVersion"]["gitVersion"].as_str().map(str::to_owned);
    version.ok_or_else(|| Failure::Other("kubectl version tells no server's version".to_owned()))
}

fn config_map(kubectl: &Kubectl, name: &str, namespace: &str) -> Read<Option<ConfigMap>> {
    match kubectl.get(&["configmap", name, namespace]) {
        Ok(map) => Ok(Some(map)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// When the certificate of a Secret ends. Only the certificate is asked for.
fn certificate(kubectl: &Kubectl, secret: &str, namespace: &str) -> Read<Option<Timestamp>> {
    let words = ["get", "secret", secret, namespace, r"--output=jsonpath={.data.tls\.crt}"];
    match kubectl.run(&words) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => {
            let pem = BASE64_STANDARD.decode(text.trim()).unwrap_or_default();
            let end = end_of(&pem)
                .ok_or_else(|| Failure::Other("no certificate is read from tls.crt".to_owned()));
            end.map(Some)
        }
        Err(Failure::NotFound(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// The metrics of each pod of a program.
fn pages(
    kubectl: &Kubectl,
    pods: &[Pod],
    program: &str,
    port: u16,
) -> BTreeMap<String, Read<Page>> {
    let running = pods
        .iter()
        .filter(|pod| name_of(&pod.metadata) == program && pod.status.phase == "Running");
    running
        .map(|pod| {
            (pod.metadata.name.clone(), metrics(kubectl, pod, port).map(|text| Page::parse(&text)))
        })
        .collect()
}

/// The metrics of a pod, through a port-forward.
pub(crate) fn metrics(kubectl: &Kubectl, pod: &Pod, port: u16) -> Read<String> {
    let target = format!("pod/{}", pod.metadata.name);
    let forward = Forward::open(kubectl, &pod.metadata.namespace, &target, &[port], None)?;
    let url = format!("http://127.0.0.1:{}/metrics", forward.ports()[0]);
    extender::text(&url).map_err(|error| Failure::Other(format!("{error:#}")))
}

fn log(kubectl: &Kubectl, pod: &Pod) -> Read<String> {
    let namespace = format!("--namespace={}", pod.metadata.namespace);
    kubectl.run(&["logs", &pod.metadata.name, &namespace, LOG])
}

/// The logs of all kube-schedulers, Plimsoll's own included.
fn scheduler_logs(
    kubectl: &Kubectl,
    schedulers: &[Pod],
    ours: &[Pod],
) -> Read<BTreeMap<String, String>> {
    let second = ours.iter().filter(|pod| name_of(&pod.metadata) == "kube-scheduler");
    schedulers
        .iter()
        .chain(second)
        .filter(|pod| pod.status.phase == "Running")
        .map(|pod| Ok((pod.metadata.name.clone(), log(kubectl, pod)?)))
        .collect()
}

fn plugin_logs(kubectl: &Kubectl, pods: &[Pod]) -> BTreeMap<String, Read<String>> {
    let plugins = pods.iter().filter(|pod| name_of(&pod.metadata) == "gpushare-device-plugin");
    let broken = plugins.filter(|pod| !pod.is_ready()).take(MAX_LOGS);
    broken.map(|pod| (pod.metadata.name.clone(), log(kubectl, pod))).collect()
}

/// Events of Plimsoll's programs, and of pods that were not scheduled.
fn of_interest(event: &Event) -> bool {
    event.writer().starts_with("plimsoll-") || event.reason == "FailedScheduling"
}

/// Account, group, resource, name, verbs, and whether it is in the program's own namespace.
pub(super) type Wanted =
    (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], bool);

/// The rights of docs/rights.md that are always needed.
pub(super) const RIGHTS: [Wanted; 20] = [
    ("scheduler-extender", "", "nodes", "", &["get", "list", "watch"], false),
    ("scheduler-extender", "", "pods", "", &["get", "list", "watch"], false),
    ("scheduler-extender", "policy", "poddisruptionbudgets", "", &["list"], false),
    ("scheduler-extender", "", "pods/binding", "", &["create"], false),
    ("scheduler-extender", "events.k8s.io", "events", "", &["create", "patch"], false),
    (
        "scheduler-extender",
        "coordination.k8s.io",
        "leases",
        EXTENDER_LEASE,
        &["get", "update"],
        true,
    ),
    ("scheduler-extender", "coordination.k8s.io", "leases", "", &["create"], true),
    ("scheduler-extender", "", "configmaps", "policy", &["get"], true),
    ("scheduler-extender", "discovery.k8s.io", "endpointslices", "", &["list"], true),
    ("annotator", "", "nodes", "", &["list", "watch", "patch"], false),
    ("annotator", "", "pods", "", &["list", "watch"], false),
    ("annotator", "events.k8s.io", "events", "", &["create", "patch"], false),
    ("annotator", "coordination.k8s.io", "leases", "plimsoll-annotator", &["get", "update"], true),
    ("annotator", "coordination.k8s.io", "leases", "", &["create"], true),
    ("gpushare-device-plugin", "", "nodes", "", &["patch"], false),
    ("gpushare-device-plugin", "", "nodes/status", "", &["patch"], false),
    ("gpushare-device-plugin", "", "pods", "", &["get", "list", "watch"], false),
    ("gpushare-device-plugin", "", "pods", "", &["patch"], false),
    ("gpushare-device-plugin", "events.k8s.io", "events", "", &["create"], false),
    ("gpushare-device-plugin", "events.k8s.io", "events", "", &["patch"], false),
];

/// Asks the API server about each right of the programs that run, in one call of kubectl.
fn rights(kubectl: &Kubectl, namespace: &str, pods: &[Pod]) -> Read<Vec<Right>> {
    let mut rights = Vec::new();
    let mut reviews = Vec::new();
    for (account, group, resource, name, verbs, own) in RIGHTS {
        let Some(pod) = pods.iter().find(|pod| name_of(&pod.metadata) == account) else { continue };
        let of_account = &pod.metadata.namespace;
        for verb in verbs {
            let place = if own { namespace } else { "" };
            reviews.push(review(of_account, account, verb, group, resource, name, place));
            rights.push(Right {
                account,
                verb,
                resource,
                namespace: place.to_owned(),
                name,
                allowed: false,
            });
        }
    }
    if rights.is_empty() {
        return Ok(rights);
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": reviews}).to_string();
    let answer = kubectl.run_with(&["create", "--filename=-", "--output=json"], &list)?;
    let answers: Vec<Value> = answers(&answer);
    if answers.len() != rights.len() {
        return Err(Failure::Other(
            "kubectl did not answer every question about rights".to_owned(),
        ));
    }
    for (right, answer) in rights.iter_mut().zip(answers) {
        right.allowed = answer["status"]["allowed"] == true;
    }
    Ok(rights)
}

/// kubectl writes the objects that it made one after the other, or as a list.
fn answers(text: &str) -> Vec<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut answers = Vec::new();
    for value in values.map_while(Result::ok) {
        match value["items"].as_array() {
            Some(items) => answers.extend(items.clone()),
            None => answers.push(value),
        }
    }
    answers
}

fn review(
    of_account: &str,
    account: &str,
    verb: &str,
    group: &str,
    resource: &str,
    name: &str,
    namespace: &str,
) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{of_account}:{account}"),
            "groups": [
                "system:serviceaccounts", format!("system:serviceaccounts:{of_account}"), "system:authenticated",
            ],
            "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
                "namespace": namespace,
            },
        },
    })
}
