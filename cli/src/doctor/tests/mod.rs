//! Each fault is seeded into the facts of a healthy cluster, and found.

mod access;
mod autoscalers;
mod gpu;
mod programs;
mod readings;
mod scheduling;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use api::health::{Condition, ConditionState, Health};
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{CertificateSecret, ConfigMap, Fact, Facts, Healths, Read, Right};
use super::finding::{Finding, Level};
use super::{CHECKS, Check, access_checks, collect, exit_code, needed, report, write_table};
use crate::cluster_access::Failure;
use crate::cluster_access::objects::{Event, Lease, Node, Pod};
use crate::cluster_access::workload::Workload;
use crate::version::CLIENT;

const METRIC: &str = "cpu_shared_busy_avg_5m";

fn now() -> Timestamp {
    "2026-11-26T14:00:00Z".parse().unwrap()
}

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn workload(kind: &str, name: &str) -> Value {
    json!({
        "kind": kind,
        "metadata": {"name": name, "namespace": "plimsoll", "labels": {"app.kubernetes.io/name": name}},
        "spec": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "a-proxy"}, {"name": name, "args": flags(name)}], "volumes": volumes(name),
        }}},
        "status": {"readyReplicas": 2, "numberReady": 2, "desiredNumberScheduled": 2},
    })
}

/// The flags of a program that checks look at.
fn flags(program: &str) -> &'static [&'static str] {
    match program {
        "scheduler-extender" => &[
            "--policy-config-map=plimsoll/policy",
            "--lease-name=plimsoll-scheduler-extender",
            "--tls-cert-file",
            "/etc/scheduler-extender/tls.crt",
        ],
        _ => &[],
    }
}

fn volumes(program: &str) -> Value {
    let secret = |name: &str, key: &str| json!({"name": name, "projected": {"sources": [{"secret": {"name": name, "items": [{"key": key}]}}]}});
    match program {
        "scheduler-extender" => json!([secret("scheduler-extender-tls", "tls.crt")]),
        // The annotator has the exporters' CA alone.
        "annotator" => {
            json!([{"name": "policy", "configMap": {"name": "policy"}}, secret("exporter-tls", "ca.crt")])
        }
        _ => json!([]),
    }
}

fn pod(program: &str, name: &str, node: &str) -> Pod {
    of(json!({
        "metadata": {"name": name, "namespace": "plimsoll", "labels": {"app.kubernetes.io/name": program}},
        "spec": {"nodeName": node, "containers": [{"name": program, "image": format!("r/{program}:{CLIENT}")}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn gpus() -> String {
    json!([{
        "uuid": "GPU-1", "index": 0, "model": "NVIDIA A10", "memoryMiB": 24576, "units": 24, "healthy": true, "pods": {},
    }])
    .to_string()
}

fn node(name: &str, gpu: bool) -> Node {
    let mut annotations =
        BTreeMap::from([(METRIC.to_owned(), "0.5,2026-11-26T13:59:00Z".to_owned())]);
    let mut labels = BTreeMap::new();
    if gpu {
        annotations.insert("plimsoll.dev/gpu-cards".to_owned(), gpus());
        labels.insert("gpushare", "true");
    }
    of(json!({
        "metadata": {
            "name": name, "annotations": annotations, "labels": labels,
            "managedFields": [written("unknown", METRIC)],
        },
        "status": {"nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.0"}},
    }))
}

fn written(manager: &str, metric: &str) -> Value {
    written_at(manager, metric, "2026-11-26T13:59:00Z")
}

fn written_at(manager: &str, metric: &str, time: &str) -> Value {
    json!({"manager": manager, "time": time, "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:{metric}"): {}}}}})
}

fn scheduler(node: &str, flag: &str) -> Pod {
    of(json!({
        "metadata": {"name": format!("kube-scheduler-{node}"), "namespace": "kube-system"},
        "spec": {"nodeName": node, "containers": [{"command": ["kube-scheduler", flag]}]},
    }))
}

const CONFIGURED: &str = "--config=/etc/kubernetes/plimsoll/kube-scheduler-config-1.yaml";

fn lease(name: &str, renewed: &str, written: &str) -> Lease {
    of(json!({
        "metadata": {"name": name, "managedFields": [{"manager": "kubelet", "time": written}]},
        "spec": {"holderIdentity": name, "renewTime": renewed},
    }))
}

fn binding(name: &str, action: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": [action]}})
}

/// A policy of the manifests.
fn shipped(name: &str) -> Value {
    let found = MANIFEST_POLICIES.iter().find(|it| it["metadata"]["name"] == name);
    found.unwrap().clone()
}

const POLICIES: [&str; 13] = [
    "plimsoll-bindings",
    "plimsoll-claims",
    "plimsoll-gpu-environment",
    "plimsoll-node-name",
    "plimsoll-annotator-nodes",
    "plimsoll-device-plugin-nodes",
    "plimsoll-device-plugin-node-status",
    "plimsoll-device-plugin-pods",
    "plimsoll-device-plugin-events",
    "plimsoll-annotator-events",
    "plimsoll-extender-bindings",
    "plimsoll-extender-events",
    "plimsoll-extender-evictions",
];

fn right(account: &'static str, verb: &'static str, resource: &'static str) -> Right {
    Right { account, verb, resource, namespace: String::new(), name: String::new(), allowed: true }
}

/// Two nodes, one with a GPU, two kube-schedulers, everything as it should be.
fn healthy() -> Facts {
    let in_a_year = now() + SignedDuration::from_hours(24 * 365);
    Facts {
        now: Ok(now()),
        own_time: [now(); 2],
        namespace: "plimsoll".to_owned(),
        certificate_days: 30,
        server_version: Ok("v1.36.3".to_owned()),
        workloads: Ok(["scheduler-extender", "annotator"]
            .map(|name| of(workload("Deployment", name)))
            .into_iter()
            .chain(
                ["node-exporter-plus", "gpushare-device-plugin"]
                    .map(|name| of(workload("DaemonSet", name))),
            )
            .collect()),
        pods: Ok(vec![
            pod("scheduler-extender", "extender-a", "cp-1"),
            pod("scheduler-extender", "extender-b", "cp-2"),
            pod("annotator", "annotator-a", "cp-1"),
            pod("node-exporter-plus", "exporter-a", "cp-1"),
            pod("gpushare-device-plugin", "plugin-a", "gpu-1"),
        ]),
        nodes: Ok(vec![node("cp-1", false), node("gpu-1", true)]),
        schedulers: Ok(vec![scheduler("cp-1", CONFIGURED), scheduler("cp-2", CONFIGURED)]),
        kubeadm_config: Ok(Some(of(json!({
            "metadata": {"annotations": {"plimsoll.dev/kube-scheduler-nodes": "cp-1"}},
            "data": {"ClusterConfiguration": "value: /etc/kubernetes/plimsoll/kube-scheduler-config.yaml"},
        })))),
        second_config: Ok(None),
        autoscaler_status: Ok(None),
        policy: Ok(Some(policy(include_str!("../../../../deploy/chart/policies/shipped.yaml")))),
        extenders: healths(&[("extender-a", &EXTENDER_WELL), ("extender-b", &EXTENDER_WELL)]),
        annotators: healths(&[(
            "annotator-a",
            &[
                ("leader", ConditionState::Ok, "leads"),
                ("readings", ConditionState::Ok, "2 of 2 exporters answer the annotator"),
            ],
        )]),
        plugins: healths(&[(
            "plugin-a",
            &[("unit", ConditionState::Ok, "1024 MiB"), ("cdi", ConditionState::Ok, "all")],
        )]),
        certificates: Some(vec![
            secret("scheduler-extender-tls", "scheduler-extender", Some(in_a_year)),
            secret("kube-scheduler-tls", "", None),
        ]),
        bindings: Ok(POLICIES.iter().map(|name| of(binding(name, "Deny"))).collect()),
        policies: Ok(POLICIES.iter().map(|name| of(shipped(name))).collect()),
        rights: Ok(vec![
            right("annotator", "patch", "nodes"),
            right("scheduler-extender", "create", "pods/binding"),
        ]),
        events: Ok(Vec::new()),
        node_leases: Ok(vec![lease("cp-1", "2026-11-26T13:59:55.2Z", "2026-11-26T13:59:55Z")]),
        toolkits: Ok(vec![toolkit(&json!([{"name": RUNTIME_SETTING, "value": "false"}]))]),
    }
}

const RUNTIME_SETTING: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";

fn toolkit(env: &Value) -> Workload {
    of(json!({"metadata": {"namespace": "gpu-operator", "name": "toolkit"},
              "spec": {"template": {"spec": {"containers": [{"env": env}]}}}}))
}

fn secret(name: &str, program: &str, end: Option<Timestamp>) -> CertificateSecret {
    let [namespace, name, program] = ["plimsoll", name, program].map(str::to_owned);
    CertificateSecret { namespace, name, of: program, end: Ok(end) }
}

/// A condition: its id, how it is, and its text.
type Said = (&'static str, ConditionState, &'static str);

/// What an extender says that is well and is asked.
const EXTENDER_WELL: [Said; 5] = [
    ("cards", ConditionState::Ok, "1 healthy"),
    ("certificate-end", ConditionState::Ok, "the certificate in use ends in 365 days"),
    ("leader", ConditionState::Ok, "leads"),
    ("readings", ConditionState::Ok, "2 nodes fresh"),
    ("requests", ConditionState::Ok, "7 calls answered since the start"),
];

/// What these pods say. What is not well has the remedy `do so`.
fn healths(pods: &[(&str, &[Said])]) -> Read<Healths> {
    let mut healths = Healths::default();
    for (pod, said) in pods {
        let condition = |(id, state, text): &Said| Condition {
            id: (*id).to_owned(),
            state: *state,
            text: (*text).to_owned(),
            remedy: (*state != ConditionState::Ok).then(|| "do so".to_owned()),
            since: "2026-11-26T12:00:00Z".parse().unwrap(),
        };
        let conditions = said.iter().map(condition).collect();
        let health = Health { program: String::new(), version: CLIENT.to_owned(), conditions };
        healths.pods.insert((*pod).to_owned(), Ok(health));
    }
    Ok(healths)
}

/// A pod says this too, in place of what it said of the same id.
fn say(healths: &mut Read<Healths>, pod: &str, (id, state, text): Said) {
    let conditions =
        &mut healths.as_mut().unwrap().pods.get_mut(pod).unwrap().as_mut().unwrap().conditions;
    conditions.retain(|condition| condition.id != id);
    let said = self::healths(&[(pod, &[(id, state, text)])]).unwrap().pods.remove(pod).unwrap();
    conditions.extend(said.unwrap().conditions);
}

/// The Deployment or DaemonSet of a program.
fn workload_of<'a>(facts: &'a mut Facts, program: &str) -> &'a mut Workload {
    let workloads = facts.workloads.as_mut().unwrap();
    workloads.iter_mut().find(|it| it.metadata.name == program).unwrap()
}

fn findings(facts: &Facts) -> Vec<Finding> {
    report(facts, &all()).findings
}

fn all() -> Vec<&'static Check> {
    CHECKS.iter().collect()
}

/// The findings of one check.
fn of_check(facts: &Facts, check: &str) -> Vec<Finding> {
    findings(facts).into_iter().filter(|finding| finding.check == check).collect()
}

/// What the check says, which is the only finding of it and ok.
#[track_caller]
fn ok_text(facts: &Facts, check: &str) -> String {
    let mut found = of_check(facts, check);
    assert_eq!(found.iter().map(|it| it.level).collect::<Vec<_>>(), [Level::Ok], "{found:#?}");
    found.remove(0).what
}

/// What is wrong: the level, the check and the text of each finding.
fn wrong(facts: &Facts) -> Vec<(Level, &'static str, String)> {
    let findings = findings(facts).into_iter().filter(|finding| finding.level != Level::Ok);
    findings
        .map(|finding| {
            assert!(finding.todo.is_some(), "{finding:?} does not say what to do");
            (finding.level, finding.check, finding.what)
        })
        .collect()
}

/// The only finding is of this level and check, and says this.
#[track_caller]
fn assert_only(facts: &Facts, level: Level, check: &str, text: &str) {
    let found = wrong(facts);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].0, found[0].1), (level, check), "{found:#?}");
    assert!(found[0].2.contains(text), "{found:#?}");
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> Event {
    of(json!({
        "involvedObject": {"kind": kind, "name": name, "namespace": "shop"}, "reason": reason, "message": message,
        "reportingComponent": "plimsoll-gpushare-device-plugin",
    }))
}

#[test]
fn a_healthy_cluster_has_no_finding_and_every_check_says_something() {
    let found = wrong(&healthy());
    assert!(found.is_empty(), "{found:#?}");
    let findings = findings(&healthy());
    for check in CHECKS {
        assert!(findings.iter().any(|finding| finding.check == check.name), "{}", check.name);
    }
}

/// Installs a second scheduler, with the policy that belongs to it.
fn with_second_scheduler(facts: &mut Facts) {
    facts.workloads.as_mut().unwrap().push(of(workload("Deployment", "kube-scheduler")));
    facts.pods.as_mut().unwrap().push(pod("kube-scheduler", "second", "cp-1"));
    let name = "plimsoll-scheduler-name";
    facts.policies.as_mut().unwrap().push(of(shipped(name)));
    facts.bindings.as_mut().unwrap().push(of(binding(name, "Deny")));
}

fn policy(text: &str) -> ConfigMap {
    of(json!({"data": {"policy.yaml": text}}))
}

/// The chart's `scheduler.mode=none` has the annotator and exporters alone, with the policies of the annotator.
fn taints_alone() -> Facts {
    let mut facts = healthy();
    facts
        .workloads
        .as_mut()
        .unwrap()
        .retain(|it| ["annotator", "node-exporter-plus"].contains(&it.metadata.name.as_str()));
    facts
        .pods
        .as_mut()
        .unwrap()
        .retain(|pod| ["annotator-a", "exporter-a"].contains(&pod.metadata.name.as_str()));
    let is_annotators = |name: &str| name.starts_with("plimsoll-annotator-");
    facts.policies.as_mut().unwrap().retain(|it| is_annotators(&it.metadata.name));
    facts.bindings.as_mut().unwrap().retain(|it| is_annotators(&it.metadata.name));
    facts.schedulers = Ok(vec![scheduler("cp-1", "--leader-elect=true")]);
    facts.extenders = Ok(Healths::default());
    facts.plugins = Ok(Healths::default());
    facts.certificates = Some(vec![secret("kube-scheduler-tls", "", None)]);
    facts.nodes = Ok(vec![node("cp-1", false), node("cp-2", false)]);
    for node in facts.nodes.as_mut().unwrap() {
        node.metadata.managed_fields = vec![of(written("unknown", "cpu_shared_busy_avg_5m"))];
    }
    facts
}

#[test]
fn taints_alone_need_no_extender_and_each_check_says_so() {
    let facts = taints_alone();
    assert_eq!(wrong(&facts), []);
    assert_eq!(ok_text(&facts, "admission"), "2 policies deny, as shipped");
    assert_eq!(ok_text(&facts, "readings"), "2 of 2 exporters answer the annotator");
    for check in
        ["extender", "kube-scheduler", "requests", "certificate", "gpu-nodes", "cards", "unit"]
    {
        assert!(ok_text(&facts, check).starts_with("does not apply: no"), "{check}");
    }
    for check in ["cdi", "runtime", "other-plugins"] {
        assert!(ok_text(&facts, check).starts_with("does not apply: no device plugin"), "{check}");
    }
}

/// The documents of a manifest.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The admission policies of the mode that has all, and of the ConfigMaps of unhealthy GPUs.
static MANIFEST_POLICIES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let manifests = [
        include_str!("../../../../deploy/manifests/second/plimsoll.yaml"),
        include_str!("../../../../deploy/tests/rendered/unhealthy-gpus.yaml"),
    ];
    let documents = manifests.iter().flat_map(|text| documents(text));
    documents.filter(|it| it["kind"] == "ValidatingAdmissionPolicy").collect()
});
