//! Reads the facts, by kubectl and by port-forwards. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use anyhow::Result;
use api::health::Health;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::certificates::end_of;
use super::facts::{CertificateSecret, ConfigMap, Fact, Facts, Healths, PLUGIN, Read, Right};
use crate::cluster_access::objects::{Event, List, Object, Pod};
use crate::cluster_access::workload::{Workload, name_of};
use crate::cluster_access::{
    CLIENT_SECRET, Cluster, EXTENDER, EXTENDER_LEASE, Failure, Forward, Kubectl, PolicyMap,
    SERVER_SECRET,
};
use crate::extender;

/// Admin ports by program, with metrics and health. An exporter's is bound to its node's address, where no port-forward
/// reaches it.
pub(crate) const ADMIN_PORTS: [(&str, u16); 3] =
    [(EXTENDER, 19102), ("annotator", 19103), (PLUGIN, 19104)];
/// How many pods of a program are asked, those that are not ready first.
pub(crate) const MAX_PODS: usize = 10;

/// Reads the workloads and pods of Plimsoll, and of the other facts those that are needed.
///
/// # Errors
///
/// If kubectl reaches no cluster.
pub(crate) fn collect(
    cluster: &Cluster,
    needed: &BTreeSet<Fact>,
    certificate_days: u16,
) -> Result<Facts> {
    use Fact::*;
    const KUBE_SYSTEM: &str = "--namespace=kube-system";
    let namespace = cluster.namespace()?.to_owned();
    let kubectl = cluster.kubectl();
    let in_namespace = format!("--namespace={namespace}");
    let asked = Asked { kubectl, needed };
    let (now, own_time) = asked
        .read(Time, || Ok(server_time(kubectl)))
        .unwrap_or_else(|failure| (Err(failure), [Timestamp::now(); 2]));
    let workloads: Read<Vec<Workload>> = cluster.list_ours("deployments,daemonsets");
    let pods: Read<Vec<Pod>> = cluster.list_ours("pods");
    let of_kubeadm = ["pods", KUBE_SYSTEM, "--selector=component=kube-scheduler"];
    let schedulers: Read<Vec<Pod>> = asked.list(Schedulers, &of_kubeadm);
    let toolkits = "--selector=app=nvidia-container-toolkit-daemonset";
    Ok(Facts {
        now,
        own_time,
        certificate_days,
        server_version: asked.read(ServerVersion, || server_version(kubectl)),
        nodes: asked.list(Nodes, &["nodes", "--show-managed-fields"]),
        kubeadm_config: asked.one(KubeadmConfig, &["configmap", "kubeadm-config", KUBE_SYSTEM]),
        second_config: asked.one(SecondConfig, &["configmap", "kube-scheduler", &in_namespace]),
        autoscaler_status: asked
            .one(AutoscalerStatus, &["configmap", "cluster-autoscaler-status", KUBE_SYSTEM]),
        policy: asked.read(Policy, || policy(kubectl, &workloads)),
        extenders: asked.read(ExtenderHealth, || healths(kubectl, &pods, EXTENDER)),
        annotators: asked.read(AnnotatorHealth, || healths(kubectl, &pods, "annotator")),
        plugins: asked.read(PluginHealth, || healths(kubectl, &pods, PLUGIN)),
        certificates: needed
            .contains(&Certificates)
            .then(|| certificates(kubectl, &workloads, &namespace)),
        policies: asked.list(Admission, &["validatingadmissionpolicies"]),
        bindings: asked.list(Admission, &["validatingadmissionpolicybindings"]),
        rights: asked.read(Rights, || rights(kubectl, &namespace, &pods, &workloads)),
        events: asked
            .list::<Event>(Events, &["events", "--all-namespaces"])
            .map(|events| events.into_iter().filter(of_interest).collect()),
        node_leases: asked
            .list(NodeLeases, &["leases", "--namespace=kube-node-lease", "--show-managed-fields"]),
        toolkits: asked.list(Toolkits, &["daemonsets", "--all-namespaces", toolkits]),
        namespace,
        workloads,
        pods,
        schedulers,
    })
}

/// Which facts are asked for, and who reads them.
struct Asked<'a> {
    kubectl: &'a Kubectl,
    needed: &'a BTreeSet<Fact>,
}

impl Asked<'_> {
    /// A fact, or an error where no check has asked for it.
    fn read<T>(&self, fact: Fact, read: impl FnOnce() -> Read<T>) -> Read<T> {
        if self.needed.contains(&fact) {
            read()
        } else {
            Err(Failure::Other(format!("{fact:?} is not asked for")))
        }
    }

    /// The list that `get` with these words answers.
    fn list<T: DeserializeOwned>(&self, fact: Fact, words: &[&str]) -> Read<Vec<T>> {
        self.read(fact, || Ok(self.kubectl.get::<List<T>>(words)?.items))
    }

    /// The object that `get` with these words answers; `None` if there is none.
    fn one<T: DeserializeOwned>(&self, fact: Fact, words: &[&str]) -> Read<Option<T>> {
        self.read(fact, || if_found(self.kubectl.get(words)))
    }
}

/// What was read; `None` if it is not there.
fn if_found<T>(read: Read<T>) -> Read<Option<T>> {
    match read {
        Err(Failure::NotFound(_)) => Ok(None),
        other => other.map(Some),
    }
}

/// The API server's time, as it writes it into an answer about its caller, and this machine's time before and after.
fn server_time(kubectl: &Kubectl) -> (Read<Timestamp>, [Timestamp; 2]) {
    let before = Timestamp::now();
    let answer = kubectl.run(&["auth", "whoami", "--output=json"]);
    let own = [before, Timestamp::now()];
    let time = answer.and_then(|answer| {
        let review: Option<Object> = serde_json::from_str(&answer).ok();
        let time = review.and_then(|review| review.metadata.creation_timestamp);
        time.ok_or_else(|| Failure::Other("kubectl auth whoami tells no time".to_owned()))
    });
    (time, own)
}

fn server_version(kubectl: &Kubectl) -> Read<String> {
    let text = kubectl.run(&["version", "--output=json"])?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let version = answer["serverVersion"]["gitVersion"].as_str().map(str::to_owned);
    version.ok_or_else(|| Failure::Other("kubectl version tells no server's version".to_owned()))
}

/// The ConfigMap that the programs read the policy from; `None` if none is named.
fn policy(kubectl: &Kubectl, workloads: &Read<Vec<Workload>>) -> Read<Option<ConfigMap>> {
    let map = PolicyMap::of(workloads.as_ref().map_err(Failure::clone)?);
    let Some(PolicyMap { namespace, name }) = map else { return Ok(None) };
    if_found(kubectl.get(&["configmap", &name, &format!("--namespace={namespace}")]))
}

/// The Secrets with certificates that Plimsoll's programs mount, and the one that is copied to control-plane nodes. The
/// shipped ones where Deployments and DaemonSets cannot be read.
fn certificates(
    kubectl: &Kubectl,
    workloads: &Read<Vec<Workload>>,
    namespace: &str,
) -> Vec<CertificateSecret> {
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
    let mut secrets = Vec::new();
    for ((namespace, name), of) in mounted {
        let end = certificate(kubectl, name, &format!("--namespace={namespace}"));
        let [namespace, name, of] = [namespace, name, of].map(str::to_owned);
        secrets.push(CertificateSecret { namespace, name, of, end });
    }
    secrets
}

/// When the certificate of a Secret ends; `None` if there is no such Secret. Only the certificate is asked for.
fn certificate(kubectl: &Kubectl, secret: &str, namespace: &str) -> Read<Option<Timestamp>> {
    let words = ["get", "secret", secret, namespace, r"--output=jsonpath={.data.tls\.crt}"];
    let Some(text) = if_found(kubectl.run(&words))? else { return Ok(None) };
    match end_of(&BASE64_STANDARD.decode(text.trim()).unwrap_or_default()) {
        Some(end) => Ok(Some(end)),
        None => Err(Failure::Other("no certificate is read from tls.crt".to_owned())),
    }
}

/// The health of the pods of a program that run.
fn healths(kubectl: &Kubectl, pods: &Read<Vec<Pod>>, program: &str) -> Read<Healths> {
    let mut running: Vec<&Pod> = pods.as_ref().map_err(Failure::clone)?.iter().collect();
    running.retain(|pod| name_of(&pod.metadata) == program && pod.status.phase == "Running");
    running.sort_by_key(|pod| pod.is_ready());
    let not_asked = running.len().saturating_sub(MAX_PODS);
    running.truncate(MAX_PODS);
    let mut healths = Healths { pods: BTreeMap::new(), not_asked };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for pod in running {
            // Each waits for a port-forward.
            threads.push((pod, scope.spawn(move || health(kubectl, pod))));
        }
        for (pod, thread) in threads {
            let ended = |_| Err(Failure::Other("a thread ended".to_owned()));
            healths.pods.insert(pod.metadata.name.clone(), thread.join().unwrap_or_else(ended));
        }
    });
    Ok(healths)
}

fn health(kubectl: &Kubectl, pod: &Pod) -> Read<Health> {
    let text = admin(kubectl, pod, "/v1/health")?;
    serde_json::from_str(&text).map_err(|error| Failure::Other(error.to_string()))
}

/// What the admin port of a pod answers for a path, through a port-forward.
pub(crate) fn admin(kubectl: &Kubectl, pod: &Pod, path: &str) -> Read<String> {
    let program = name_of(&pod.metadata);
    let Some((_, port)) = ADMIN_PORTS.iter().find(|(name, _)| *name == program) else {
        return Err(Failure::Other(format!("{program} has no admin port")));
    };
    let target = format!("pod/{}", pod.metadata.name);
    let open = Forward::open(kubectl, &pod.metadata.namespace, &target, &[*port]);
    let forward = open.map_err(|failure| match failure {
        Failure::NotFound(gone) => Failure::Other(gone),
        other => other,
    })?;
    let url = format!("http://127.0.0.1:{}{path}", forward.ports()[0]);
    extender::text(&url).map_err(|error| match error.downcast_ref() {
        Some(Failure::NotFound(_)) => Failure::NotFound(format!(
            "{program} has no {path}: its build is older than this command"
        )),
        _ => Failure::Other(format!("{error:#}")),
    })
}

/// Events of Plimsoll's programs, and of pods that were scheduled or not.
fn of_interest(event: &Event) -> bool {
    event.writer().starts_with("plimsoll-")
        || ["FailedScheduling", "Scheduled"].contains(&event.reason.as_str())
}

/// Account, group, resource, name, verbs, and whether it is in the program's own namespace.
pub(super) type NeededRight =
    (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], bool);

/// In place of the name of the ConfigMap that the policy is read from.
const POLICY: &str = "policy";

/// The rights of docs/security.md that are always needed.
pub(super) const RIGHTS: [NeededRight; 21] = [
    (EXTENDER, "", "nodes", "", &["get", "list", "watch"], false),
    (EXTENDER, "", "pods", "", &["get", "list", "watch"], false),
    (EXTENDER, "policy", "poddisruptionbudgets", "", &["list"], false),
    (EXTENDER, "", "pods/binding", "", &["create"], false),
    (EXTENDER, "events.k8s.io", "events", "", &["create", "patch"], false),
    (EXTENDER, "coordination.k8s.io", "leases", EXTENDER_LEASE, &["get", "update"], true),
    (EXTENDER, "coordination.k8s.io", "leases", "", &["create"], true),
    (EXTENDER, "", "configmaps", POLICY, &["get"], true),
    (EXTENDER, "discovery.k8s.io", "endpointslices", "", &["list"], true),
    ("annotator", "", "nodes", "", &["list", "watch", "patch"], false),
    ("annotator", "", "pods", "", &["list", "watch"], false),
    ("annotator", "events.k8s.io", "events", "", &["create", "patch"], false),
    ("annotator", "coordination.k8s.io", "leases", "plimsoll-annotator", &["get", "update"], true),
    ("annotator", "coordination.k8s.io", "leases", "", &["create"], true),
    (PLUGIN, "", "nodes", "", &["list", "watch", "patch"], false),
    (PLUGIN, "", "nodes/status", "", &["patch"], false),
    (PLUGIN, "", "pods", "", &["get", "list", "watch"], false),
    (PLUGIN, "", "pods", "", &["patch"], false),
    (PLUGIN, "resource.k8s.io", "resourceslices", "", &["list", "watch"], false),
    (PLUGIN, "events.k8s.io", "events", "", &["create"], false),
    (PLUGIN, "events.k8s.io", "events", "", &["patch"], false),
];

/// Asks the API server about each right of the programs that run, in one call of kubectl.
fn rights(
    kubectl: &Kubectl,
    namespace: &str,
    pods: &Read<Vec<Pod>>,
    workloads: &Read<Vec<Workload>>,
) -> Read<Vec<Right>> {
    let running = pods.as_ref().map_err(Failure::clone)?;
    let policy = PolicyMap::of(workloads.as_ref().map_err(Failure::clone)?);
    let mut rights = Vec::new();
    let mut reviews = Vec::new();
    for (account, group, resource, name, verbs, own) in RIGHTS {
        let Some(pod) = running.iter().find(|pod| name_of(&pod.metadata) == account) else {
            continue;
        };
        let object = match (resource, &policy) {
            ("configmaps", Some(policy)) => policy.name.as_str(),
            // Without one the extender reads none.
            ("configmaps", None) => continue,
            _ => name,
        };
        for verb in verbs {
            let namespace = if own { namespace.to_owned() } else { String::new() };
            let name = object.to_owned();
            let right = Right { account, verb, resource, namespace, name, allowed: false };
            reviews.push(review(&pod.metadata.namespace, group, &right));
            rights.push(right);
        }
    }
    if rights.is_empty() {
        return Ok(rights);
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": reviews}).to_string();
    let answer = kubectl.run_with(&["create", "--filename=-", "--output=json"], &list)?;
    let answers: Vec<Value> = answers(&answer);
    if answers.len() != rights.len() {
        let what = "kubectl did not answer every question about rights";
        return Err(Failure::Other(what.to_owned()));
    }
    for (right, answer) in rights.iter_mut().zip(answers) {
        right.allowed = answer["status"]["allowed"] == true;
    }
    Ok(rights)
}

/// kubectl writes the objects that it made one after the other, or as a list.
fn answers(text: &str) -> Vec<Value> {
    let reader = serde_json::Deserializer::from_str(text);
    let mut answers = Vec::new();
    for value in reader.into_iter::<Value>().map_while(Result::ok) {
        match value["items"].as_array() {
            Some(items) => answers.extend(items.clone()),
            None => answers.push(value),
        }
    }
    answers
}

/// Asks whether an account of this namespace has the right.
fn review(of_account: &str, group: &str, right: &Right) -> Value {
    let Right { account, verb, namespace, name, .. } = right;
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
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
