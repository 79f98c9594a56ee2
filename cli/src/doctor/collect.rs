//! Reads the facts, by kubectl and by port-forwards. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::certificates::end_of;
use super::facts::{ConfigMap, Fact, Facts, Pages, Read, Right, Secret};
use super::page::Page;
use crate::cluster_access::objects::{Event, List, Meta, Pod};
use crate::cluster_access::workload::{Workload, name_of};
use crate::cluster_access::{
    CLIENT_SECRET, Cluster, EXTENDER, EXTENDER_LEASE, Failure, Forward, Kubectl, PolicyMap,
    SERVER_SECRET,
};
use crate::extender;

/// The admin port of the extender, with its metrics.
const EXTENDER_PORT: u16 = 19102;
/// The admin port of the annotator, with its metrics.
const ANNOTATOR_PORT: u16 = 19103;
/// How many lines of a log are looked through.
const LOG: &str = "--tail=400";
/// How many device plugins that are not ready have their logs read.
const MAX_LOGS: usize = 5;

/// Reads the facts that are needed, and no others.
///
/// # Errors
///
/// If kubectl reaches no cluster.
pub(crate) fn collect(
    cluster: &Cluster,
    needed: &BTreeSet<Fact>,
    certificate_days: u16,
) -> Result<Facts> {
    let namespace = cluster.namespace()?.to_owned();
    let kubectl = cluster.kubectl();
    let in_namespace = format!("--namespace={namespace}");
    let (now, own_time) = match asked(needed, Fact::Time) {
        Ok(()) => server_time(kubectl),
        Err(failure) => (Err(failure), [Timestamp::now(); 2]),
    };
    let workloads: Read<Vec<Workload>> =
        asked(needed, Fact::Workloads).and_then(|()| cluster.list_ours("deployments,daemonsets"));
    let pods: Read<Vec<Pod>> = asked(needed, Fact::Pods).and_then(|()| cluster.list_ours("pods"));
    let schedulers: Read<Vec<Pod>> = asked(needed, Fact::Schedulers).and_then(|()| {
        list(kubectl, &["pods", "--namespace=kube-system", "--selector=component=kube-scheduler"])
    });
    Ok(Facts {
        now,
        own_time,
        certificate_days,
        server_version: asked(needed, Fact::ServerVersion).and_then(|()| server_version(kubectl)),
        nodes: asked(needed, Fact::Nodes)
            .and_then(|()| list(kubectl, &["nodes", "--show-managed-fields"])),
        scheduler_logs: asked(needed, Fact::SchedulerLogs)
            .and_then(|()| scheduler_logs(kubectl, &schedulers, &pods)),
        kubeadm_config: asked(needed, Fact::KubeadmConfig).and_then(|()| {
            one(kubectl, &["configmap", "kubeadm-config", "--namespace=kube-system"])
        }),
        second_config: asked(needed, Fact::SecondConfig)
            .and_then(|()| one(kubectl, &["configmap", "kube-scheduler", &in_namespace])),
        autoscaler_status: asked(needed, Fact::AutoscalerStatus).and_then(|()| {
            one(kubectl, &["configmap", "cluster-autoscaler-status", "--namespace=kube-system"])
        }),
        policy: asked(needed, Fact::Policy).and_then(|()| policy(kubectl, &workloads)),
        extender_lease: asked(needed, Fact::ExtenderLease)
            .and_then(|()| one(kubectl, &["lease", EXTENDER_LEASE, &in_namespace])),
        extenders: asked(needed, Fact::ExtenderMetrics)
            .and_then(|()| pages(kubectl, &pods, EXTENDER, EXTENDER_PORT)),
        annotators: asked(needed, Fact::AnnotatorMetrics)
            .and_then(|()| pages(kubectl, &pods, "annotator", ANNOTATOR_PORT)),
        state: asked(needed, Fact::State).and_then(|()| {
            extender::get(cluster, "/v1/state")
                .map_err(|error| Failure::Other(format!("{error:#}")))
        }),
        certificates: asked(needed, Fact::Certificates)
            .ok()
            .map(|()| certificates(kubectl, &workloads, &namespace)),
        policies: asked(needed, Fact::Admission)
            .and_then(|()| list(kubectl, &["validatingadmissionpolicies"])),
        bindings: asked(needed, Fact::Admission)
            .and_then(|()| list(kubectl, &["validatingadmissionpolicybindings"])),
        rights: asked(needed, Fact::Rights)
            .and_then(|()| rights(kubectl, &namespace, &pods, &workloads)),
        events: asked(needed, Fact::Events)
            .and_then(|()| list::<Event>(kubectl, &["events", "--all-namespaces"]))
            .map(|events| events.into_iter().filter(of_interest).collect()),
        node_leases: asked(needed, Fact::NodeLeases).and_then(|()| {
            list(kubectl, &["leases", "--namespace=kube-node-lease", "--show-managed-fields"])
        }),
        plugin_logs: asked(needed, Fact::PluginLogs).and_then(|()| plugin_logs(kubectl, &pods)),
        toolkits: asked(needed, Fact::Toolkits).and_then(|()| {
            let label = "--selector=app=nvidia-container-toolkit-daemonset";
            list(kubectl, &["daemonsets", "--all-namespaces", label])
        }),
        namespace,
        workloads,
        pods,
        schedulers,
    })
}

/// An error for a fact that no check has asked for.
fn asked(needed: &BTreeSet<Fact>, fact: Fact) -> Read<()> {
    if needed.contains(&fact) {
        Ok(())
    } else {
        Err(Failure::Other(format!("{fact:?} is not asked for")))
    }
}

fn list<T: DeserializeOwned>(kubectl: &Kubectl, words: &[&str]) -> Read<Vec<T>> {
    kubectl.get::<List<T>>(words).map(|list| list.items)
}

/// The API server's time, as it writes it into an answer about its caller, and this machine's time before and after.
fn server_time(kubectl: &Kubectl) -> (Read<Timestamp>, [Timestamp; 2]) {
    #[derive(Deserialize)]
    struct Review {
        metadata: Meta,
    }
    let before = Timestamp::now();
    let answer = kubectl.run(&["auth", "whoami", "--output=json"]);
    let own = [before, Timestamp::now()];
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

/// An object; `None` if there is none.
fn one<T: DeserializeOwned>(kubectl: &Kubectl, words: &[&str]) -> Read<Option<T>> {
    match kubectl.get(words) {
        Ok(object) => Ok(Some(object)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// The ConfigMap that the programs read the policy from; `None` if none is named.
fn policy(kubectl: &Kubectl, workloads: &Read<Vec<Workload>>) -> Read<Option<ConfigMap>> {
    let Some(map) = PolicyMap::of(workloads.as_ref().map_err(Failure::clone)?) else {
        return Ok(None);
    };
    let PolicyMap { namespace, name } = map;
    one(kubectl, &["configmap", &name, &format!("--namespace={namespace}")])
}

/// The Secrets with certificates that Plimsoll's programs mount, and the one that is copied to control-plane nodes. The
/// shipped ones where Deployments and DaemonSets cannot be read.
fn certificates(
    kubectl: &Kubectl,
    workloads: &Read<Vec<Workload>>,
    namespace: &str,
) -> Vec<Secret> {
    let mut mounted: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    // No Deployment or DaemonSet names it.
    mounted.insert((namespace, CLIENT_SECRET), "");
    match workloads {
        Ok(workloads) => {
            for workload in workloads {
                for (secret, optional) in workload.certificates() {
                    let of = if optional { "" } else { name_of(&workload.metadata) };
                    mounted.insert((&workload.metadata.namespace, secret), of);
                }
            }
        }
        Err(_) => {
            for secret in [SERVER_SECRET, "exporter-tls"] {
                mounted.insert((namespace, secret), "");
            }
        }
    }
    mounted
        .into_iter()
        .map(|((namespace, name), of)| Secret {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            of: of.to_owned(),
            end: certificate(kubectl, name, &format!("--namespace={namespace}")),
        })
        .collect()
}

/// When the certificate of a Secret ends; `None` if there is no such Secret. Only the certificate is asked for.
fn certificate(kubectl: &Kubectl, secret: &str, namespace: &str) -> Read<Option<Timestamp>> {
    let words = ["get", "secret", secret, namespace, r"--output=jsonpath={.data.tls\.crt}"];
    match kubectl.run(&words) {
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

/// The metrics of each pod of a program that runs.
fn pages(kubectl: &Kubectl, pods: &Read<Vec<Pod>>, program: &str, port: u16) -> Read<Pages> {
    let mut pages = BTreeMap::new();
    for pod in pods.as_ref().map_err(Failure::clone)? {
        if name_of(&pod.metadata) == program && pod.status.phase == "Running" {
            let page = metrics(kubectl, pod, port).map(|text| Page::parse(&text));
            pages.insert(pod.metadata.name.clone(), page);
        }
    }
    Ok(pages)
}

/// The metrics of a pod, through a port-forward.
pub(crate) fn metrics(kubectl: &Kubectl, pod: &Pod, port: u16) -> Read<String> {
    let target = format!("pod/{}", pod.metadata.name);
    let forward = Forward::open(kubectl, &pod.metadata.namespace, &target, &[port])?;
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
    schedulers: &Read<Vec<Pod>>,
    ours: &Read<Vec<Pod>>,
) -> Read<BTreeMap<String, Read<String>>> {
    let second = ours.as_ref().map_err(Failure::clone)?.iter();
    let second = second.filter(|pod| name_of(&pod.metadata) == "kube-scheduler");
    let all = schedulers.as_ref().map_err(Failure::clone)?.iter().chain(second);
    let running = all.filter(|pod| pod.status.phase == "Running");
    Ok(running.map(|pod| (pod.metadata.name.clone(), log(kubectl, pod))).collect())
}

fn plugin_logs(kubectl: &Kubectl, pods: &Read<Vec<Pod>>) -> Read<BTreeMap<String, Read<String>>> {
    let plugins = pods.as_ref().map_err(Failure::clone)?.iter();
    let plugins = plugins.filter(|pod| name_of(&pod.metadata) == "gpushare-device-plugin");
    let broken = plugins.filter(|pod| !pod.is_ready()).take(MAX_LOGS);
    Ok(broken.map(|pod| (pod.metadata.name.clone(), log(kubectl, pod))).collect())
}

/// Events of Plimsoll's programs, and of pods that were scheduled or not.
fn of_interest(event: &Event) -> bool {
    event.writer().starts_with("plimsoll-")
        || ["FailedScheduling", "Scheduled"].contains(&event.reason.as_str())
}

/// Account, group, resource, name, verbs, and whether it is in the program's own namespace.
pub(super) type Wanted =
    (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], bool);

/// In place of the name of the ConfigMap that the policy is read from.
const POLICY: &str = "policy";

/// The rights of docs/security.md that are always needed.
pub(super) const RIGHTS: [Wanted; 21] = [
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
    ("scheduler-extender", "", "configmaps", POLICY, &["get"], true),
    ("scheduler-extender", "discovery.k8s.io", "endpointslices", "", &["list"], true),
    ("annotator", "", "nodes", "", &["list", "watch", "patch"], false),
    ("annotator", "", "pods", "", &["list", "watch"], false),
    ("annotator", "events.k8s.io", "events", "", &["create", "patch"], false),
    ("annotator", "coordination.k8s.io", "leases", "plimsoll-annotator", &["get", "update"], true),
    ("annotator", "coordination.k8s.io", "leases", "", &["create"], true),
    ("gpushare-device-plugin", "", "nodes", "", &["list", "watch", "patch"], false),
    ("gpushare-device-plugin", "", "nodes/status", "", &["patch"], false),
    ("gpushare-device-plugin", "", "pods", "", &["get", "list", "watch"], false),
    ("gpushare-device-plugin", "", "pods", "", &["patch"], false),
    ("gpushare-device-plugin", "resource.k8s.io", "resourceslices", "", &["list", "watch"], false),
    ("gpushare-device-plugin", "events.k8s.io", "events", "", &["create"], false),
    ("gpushare-device-plugin", "events.k8s.io", "events", "", &["patch"], false),
];

/// Asks the API server about each right of the programs that run, in one call of kubectl.
fn rights(
    kubectl: &Kubectl,
    namespace: &str,
    pods: &Read<Vec<Pod>>,
    workloads: &Read<Vec<Workload>>,
) -> Read<Vec<Right>> {
    let pods = pods.as_ref().map_err(Failure::clone)?;
    let policy = PolicyMap::of(workloads.as_ref().map_err(Failure::clone)?);
    let mut rights = Vec::new();
    let mut reviews = Vec::new();
    for (account, group, resource, name, verbs, own) in RIGHTS {
        let Some(pod) = pods.iter().find(|pod| name_of(&pod.metadata) == account) else { continue };
        let of_account = &pod.metadata.namespace;
        let mut name = name.to_owned();
        if resource == "configmaps" {
            // Without one the extender reads none.
            let Some(policy) = &policy else { continue };
            name.clone_from(&policy.name);
        }
        for verb in verbs {
            let place = if own { namespace } else { "" };
            reviews.push(review(of_account, account, verb, group, resource, &name, place));
            rights.push(Right {
                account,
                verb,
                resource,
                namespace: place.to_owned(),
                name: name.clone(),
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
