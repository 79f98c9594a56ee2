//! Each fault is seeded into the facts of a healthy cluster, and found.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{ConfigMap, Facts, Right};
use super::finding::{Finding, Level};
use super::page::Page;
use super::{access_checks, collect, report};
use crate::cluster_access::Failure;
use crate::cluster_access::objects::{Event, Lease, Node, Pod};
use crate::version::CLIENT;

const METRIC: &str = "cpu_busy_avg_5m";

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
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": name}]}}},
        "status": {"readyReplicas": 2, "numberReady": 2, "desiredNumberScheduled": 2},
    })
}

fn pod(program: &str, name: &str, node: &str) -> Pod {
    of(json!({
        "metadata": {"name": name, "namespace": "plimsoll", "labels": {"app.kubernetes.io/name": program}},
        "spec": {"nodeName": node, "containers": [{"name": program, "image": format!("r/{program}:{CLIENT}")}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn cards(closed: Option<&str>) -> String {
    let mut card = json!({
        "uuid": "GPU-1", "index": 0, "model": "NVIDIA A10", "memoryMiB": 24576, "units": 24, "healthy": true, "pods": {},
    });
    if let Some(closed) = closed {
        card["closed"] = json!(closed);
    }
    json!([card]).to_string()
}

fn node(name: &str, gpu: bool) -> Node {
    let mut annotations =
        BTreeMap::from([(METRIC.to_owned(), "0.5,2026-11-26T13:59:00Z".to_owned())]);
    let mut labels = BTreeMap::new();
    if gpu {
        annotations.insert("plimsoll.dev/gpu-cards".to_owned(), cards(None));
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
    json!({"manager": manager, "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:{metric}"): {}}}}})
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

fn extender_page(leads: u8) -> Page {
    Page::parse(&format!(
        "plimsoll_extender_requests_total{{verb=\"filter\",outcome=\"ok\"}} 7\nplimsoll_extender_leader {leads}\n\
         plimsoll_extender_policy_warnings 0\nprocess_start_time_seconds 1795600000\n\
         plimsoll_build_info{{version=\"{CLIENT}\"}} 1\n\
         plimsoll_extender_certificate_not_after_seconds{{file=\"certificate\"}} 1820000000\n"
    ))
}

fn annotator_page(silent: u8) -> Page {
    Page::parse(&format!(
        "plimsoll_annotator_leader 1\nplimsoll_annotator_nodes 2\nplimsoll_annotator_nodes_silent {silent}\n"
    ))
}

fn binding(name: &str, action: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": [action]}})
}

const POLICIES: [&str; 10] = [
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
];

fn right(account: &'static str, verb: &'static str, resource: &'static str) -> Right {
    Right { account, verb, resource, namespace: String::new(), name: "", allowed: true }
}

/// Two nodes, one with a card, two kube-schedulers, everything as it should be.
fn healthy() -> Facts {
    let in_a_year = now() + SignedDuration::from_hours(24 * 365);
    let mut state: api::state::State =
        serde_json::from_str(include_str!("../../../crates/api/tests/golden/state.json")).unwrap();
    state.metrics.truncate(1);
    state.metrics[0].name = METRIC.to_owned();
    state.nodes.name = vec!["cp-1".to_owned(), "gpu-1".to_owned()];
    state.nodes.missing = vec![0, 0];
    state.nodes.backed_off = vec![false, false];
    state.cards.unhealthy.clear();
    Facts {
        now: Ok(now()),
        own_time: now(),
        namespace: "plimsoll".to_owned(),
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
        scheduler_logs: Ok(BTreeMap::new()),
        kubeadm_config: Ok(Some(of(json!({
            "metadata": {"annotations": {"plimsoll.dev/kube-scheduler-nodes": "cp-1"}},
            "data": {"ClusterConfiguration": "value: /etc/kubernetes/plimsoll/kube-scheduler-config.yaml"},
        })))),
        second_config: Ok(None),
        policy: Ok(Some(policy(include_str!("../../../deploy/base/policy.yaml")))),
        extender_lease: Ok(lease("extender-a_x", "2026-11-26T13:59:58Z", "2026-11-26T13:59:58Z")),
        extenders: BTreeMap::from([
            ("extender-a".to_owned(), Ok(extender_page(1))),
            ("extender-b".to_owned(), Ok(extender_page(0))),
        ]),
        annotators: BTreeMap::from([("annotator-a".to_owned(), Ok(annotator_page(0)))]),
        state: Ok(state),
        certificates: BTreeMap::from([
            ("scheduler-extender-tls".to_owned(), Ok(Some(in_a_year))),
            ("exporter-tls".to_owned(), Ok(None)),
        ]),
        bindings: Ok(POLICIES.iter().map(|name| of(binding(name, "Deny"))).collect()),
        policies: Ok(POLICIES.iter().map(|name| (*name).to_owned()).collect()),
        rights: Ok(vec![
            right("annotator", "patch", "nodes"),
            right("scheduler-extender", "create", "pods/binding"),
        ]),
        events: Ok(Vec::new()),
        node_leases: Ok(vec![lease("cp-1", "2026-11-26T13:59:55.2Z", "2026-11-26T13:59:55Z")]),
        plugin_logs: BTreeMap::new(),
        toolkits: Ok(Vec::new()),
    }
}

fn findings(facts: &Facts) -> Vec<Finding> {
    report(facts, 30).findings
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
    for check in super::CHECKS {
        assert!(findings.iter().any(|finding| finding.check == check), "{check}");
    }
    assert!(findings.iter().all(|finding| super::CHECKS.contains(&finding.check)));
}

#[test]
fn a_scheduler_of_two_that_does_not_ask_the_extender_is_found() {
    let mut facts = healthy();
    facts.schedulers =
        Ok(vec![scheduler("cp-1", CONFIGURED), scheduler("cp-2", "--leader-elect=true")]);
    assert_only(
        &facts,
        Level::Fail,
        "kube-scheduler",
        "cp-2: no --config, so it does not ask the extender (1 of 2",
    );
}

#[test]
fn a_configuration_that_an_upgrade_has_taken_out_is_found() {
    let mut facts = healthy();
    facts.schedulers =
        Ok(vec![scheduler("cp-1", "--leader-elect=true"), scheduler("cp-2", CONFIGURED)]);
    assert_only(
        &facts,
        Level::Fail,
        "kube-scheduler",
        "cp-1: no --config, though `enable` has run there",
    );
    let mut facts = healthy();
    facts
        .kubeadm_config
        .as_mut()
        .unwrap()
        .as_mut()
        .unwrap()
        .data
        .insert("ClusterConfiguration".to_owned(), "scheduler: {}".to_owned());
    assert_only(&facts, Level::Warn, "kube-scheduler", "the next kubeadm upgrade takes");
    let mut facts = healthy();
    let condition = json!([{"type": "GPUUnitsWithheld", "status": "True"}]);
    facts.nodes.as_mut().unwrap()[1].status.conditions = of(condition);
    assert_only(&facts, Level::Fail, "kube-scheduler", "1 node offer no units: gpu-1");
}

#[test]
fn a_certificate_near_its_end_is_found() {
    let mut facts = healthy();
    let soon = now() + SignedDuration::from_hours(24 * 21 + 1);
    facts.certificates.insert("kube-scheduler-tls".to_owned(), Ok(Some(soon)));
    assert_only(&facts, Level::Warn, "certificate", "kube-scheduler-tls ends in 21 days");
    facts.certificates.insert("kube-scheduler-tls".to_owned(), Ok(Some(now())));
    assert_only(&facts, Level::Fail, "certificate", "kube-scheduler-tls has ended");
    // The one in use, which the extender itself tells.
    let mut facts = healthy();
    let page = "plimsoll_extender_requests_total{verb=\"bind\"} 1\nplimsoll_extender_certificate_not_after_seconds{file=\"client_ca\"} 1795700000\n";
    facts.extenders.insert("extender-a".to_owned(), Ok(Page::parse(page)));
    assert_only(&facts, Level::Fail, "certificate", "in use by extender-a (client_ca) has ended");
}

#[test]
fn whole_nodes_in_place_of_names_are_found_in_events_and_logs() {
    let says =
        "the request has no NodeNames: set `nodeCacheCapable: true` in this extender's entry";
    let mut facts = healthy();
    facts.events = Ok(vec![event("Pod", "train", "FailedScheduling", says)]);
    assert_only(
        &facts,
        Level::Fail,
        "requests",
        "nodeCacheCapable is false (event of pod shop/train)",
    );
    let mut facts = healthy();
    facts.scheduler_logs = Ok(BTreeMap::from([(
        "kube-scheduler-cp-1".to_owned(),
        format!("Skipping extender err=\"{says}\""),
    )]));
    assert_only(&facts, Level::Fail, "requests", "(log of kube-scheduler-cp-1)");
    let mut facts = healthy();
    for page in facts.extenders.values_mut() {
        *page = Ok(Page::parse(
            "plimsoll_extender_requests_total{verb=\"filter\",outcome=\"error\"} 3\n",
        ));
    }
    assert_only(&facts, Level::Fail, "requests", "all 6 calls of Filter failed");
}

#[test]
fn the_second_schedulers_configuration_is_read() {
    let mut facts = healthy();
    facts.pods.as_mut().unwrap().push(pod("kube-scheduler", "second", "cp-1"));
    let entry = |capable: bool| {
        let text = format!(
            "extenders:\n- {{urlPrefix: 'https://x:19100/load-aware', nodeCacheCapable: {capable}}}\n"
        );
        Ok(Some(of(json!({"data": {"config.yaml": text}}))))
    };
    facts.second_config = entry(true);
    assert_eq!(wrong(&facts), []);
    facts.second_config = entry(false);
    assert_only(&facts, Level::Fail, "kube-scheduler", "nodeCacheCapable false");
    facts.second_config = Ok(None);
    assert_only(&facts, Level::Fail, "kube-scheduler", "names no extender");
}

#[test]
fn an_extender_that_is_not_called_is_found() {
    let mut facts = healthy();
    for page in facts.extenders.values_mut() {
        *page = Ok(Page::parse("process_start_time_seconds 1795600000\n"));
    }
    assert_only(
        &facts,
        Level::Fail,
        "requests",
        "no kube-scheduler has called the extender in its",
    );
    for page in facts.extenders.values_mut() {
        *page = Ok(Page::parse("plimsoll_extender_tls_handshake_failures_total 4\n"));
    }
    assert_only(&facts, Level::Fail, "requests", "8 TLS handshakes failed");
}

#[test]
fn a_clock_that_is_off_is_found_by_what_a_kubelet_wrote_and_when() {
    let mut facts = healthy();
    facts.node_leases = Ok(vec![lease("gpu-1", "2026-11-26T13:58:00Z", "2026-11-26T13:59:55Z")]);
    assert_only(&facts, Level::Fail, "clocks", "gpu-1: its clock is -115 s off");
    facts.node_leases = Ok(vec![lease("gpu-1", "2026-11-26T14:00:05Z", "2026-11-26T13:59:55Z")]);
    assert_only(&facts, Level::Warn, "clocks", "gpu-1: its clock is +10 s off");
    // A node that is down has an old Lease, and no clock to compare.
    facts.node_leases = Ok(vec![lease("gpu-1", "2026-11-26T12:00:00Z", "2026-11-26T12:59:55Z")]);
    assert_eq!(wrong(&facts), []);
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .annotations
        .insert(METRIC.to_owned(), "0.5,2026-11-26T22:00:00Z".to_owned());
    assert_only(
        &facts,
        Level::Fail,
        "clocks",
        "readings are of the future, so that they do not count: cp-1",
    );
}

#[test]
fn silent_exporters_are_found() {
    let mut facts = healthy();
    facts.annotators.insert("annotator-a".to_owned(), Ok(annotator_page(1)));
    facts.state.as_mut().unwrap().nodes.missing = vec![1, 0];
    assert_only(
        &facts,
        Level::Warn,
        "readings",
        "1 of 2 exporters do not answer the annotator; without a fresh reading: cp-1",
    );
    facts.annotators.insert("annotator-a".to_owned(), Ok(annotator_page(2)));
    assert_only(&facts, Level::Fail, "readings", "2 of 2 exporters");
}

#[test]
fn two_writers_of_readings_are_found() {
    let mut facts = healthy();
    let other = of(written("crane-annotator", METRIC));
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields = vec![other];
    assert_only(&facts, Level::Fail, "writers", "crane-annotator (1 node), unknown (1 node)");
    // Other annotations are others' business.
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields =
        vec![of(written("kubelet", "volumes"))];
    assert_eq!(wrong(&facts), []);
}

fn policy(text: &str) -> ConfigMap {
    of(json!({"data": {"policy.yaml": text}}))
}

#[test]
fn a_policy_that_the_programs_refuse_is_found_with_its_line() {
    let mut facts = healthy();
    facts.policy = Ok(Some(policy(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {wrong: 1}\n",
    )));
    assert_only(&facts, Level::Fail, "policy", "the policy is refused");
    let text = wrong(&facts).remove(0).2;
    assert!(text.contains("line 3"), "{text}");
    let mut facts = healthy();
    let page = "plimsoll_annotator_leader 1\nplimsoll_annotator_policy_reads_total{outcome=\"refused\"} 1\n";
    facts.annotators.insert("annotator-a".to_owned(), Ok(Page::parse(page)));
    assert_only(&facts, Level::Warn, "policy", "was refused since the programs' start");
}

#[test]
fn a_missing_right_is_found() {
    let mut facts = healthy();
    facts.rights.as_mut().unwrap()[1].allowed = false;
    assert_only(&facts, Level::Fail, "rights", "scheduler-extender may not create pods/binding");
}

#[test]
fn admission_policies_that_are_not_in_force_are_found() {
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap()[1] = of(binding("plimsoll-claims", "Audit"));
    assert_only(&facts, Level::Fail, "admission", "binding plimsoll-claims is Audit, not Deny");
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap().remove(0);
    assert_only(&facts, Level::Fail, "admission", "binding plimsoll-bindings is missing");
    let mut facts = healthy();
    facts.policies.as_mut().unwrap().remove(3);
    assert_only(&facts, Level::Warn, "admission", "policy plimsoll-node-name is missing");
}

#[test]
fn a_runtime_that_honours_the_variable_is_found() {
    let setting = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";
    let toolkit = |env: Value| {
        Ok(vec![of(json!({"metadata": {"namespace": "gpu-operator", "name": "toolkit"},
                          "spec": {"template": {"spec": {"containers": [{"env": env}]}}}}))])
    };
    let mut facts = healthy();
    facts.toolkits = toolkit(json!([]));
    assert_only(&facts, Level::Fail, "runtime", "is not set in gpu-operator/toolkit");
    facts.toolkits = toolkit(json!([{"name": setting, "value": "true"}]));
    assert_only(&facts, Level::Fail, "runtime", "is true in gpu-operator/toolkit");
    facts.toolkits = toolkit(json!([{"name": setting, "value": "false"}]));
    assert_eq!(wrong(&facts), []);
    facts.events = Ok(vec![event("Pod", "thief", "GPUProcessElsewhere", "")]);
    assert_only(&facts, Level::Fail, "runtime", "shop/thief (GPUProcessElsewhere)");
}

#[test]
fn a_missing_or_stale_cdi_specification_is_found() {
    let mut facts = healthy();
    let annotations = &mut facts.nodes.as_mut().unwrap()[1].metadata.annotations;
    annotations.insert("plimsoll.dev/gpu-cards".to_owned(), cards(Some("cdi")));
    facts.events = Ok(vec![event("Node", "gpu-1", "CDIOtherDriver", "")]);
    assert_only(
        &facts,
        Level::Fail,
        "cdi",
        "cards take no pods: gpu-1; events: gpu-1 (CDIOtherDriver)",
    );
    let mut facts = healthy();
    let annotations = &mut facts.nodes.as_mut().unwrap()[1].metadata.annotations;
    annotations.insert("plimsoll.dev/gpu-cards".to_owned(), cards(Some("cdi-folder")));
    assert_only(
        &facts,
        Level::Fail,
        "cdi",
        "the folder of CDI specifications cannot be written: gpu-1",
    );
}

#[test]
fn a_runtime_without_cdi_is_found() {
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[1].status.node_info.container_runtime_version =
        "containerd://1.7.27".to_owned();
    assert_only(&facts, Level::Warn, "cdi", "gpu-1 (containerd://1.7.27)");
    let mut facts = healthy();
    let plugin = of(
        json!({"kind": "DaemonSet", "metadata": {"labels": {"app.kubernetes.io/name": "gpushare-device-plugin"}},
        "spec": {"template": {"spec": {"containers": [{"args": ["--response=env"]}]}}}}),
    );
    facts.workloads.as_mut().unwrap()[3] = plugin;
    assert_only(&facts, Level::Warn, "cdi", "--response=env");
}

#[test]
fn a_unit_that_is_too_small_is_found_in_the_device_plugins_own_words() {
    let mut facts = healthy();
    let log = "{\"message\":\"98304 units of 1 MiB, where a node may have 32768: set --unit-mib to 3 or more, on all nodes alike\"}";
    facts.plugin_logs.insert("plugin-a".to_owned(), Ok(log.to_owned()));
    assert_only(&facts, Level::Fail, "unit", "plugin-a: the unit is too small");
    let todo = findings(&facts).into_iter().find_map(|finding| finding.todo).unwrap();
    assert!(todo.starts_with("set --unit-mib to 3 or more"), "{todo}");
}

#[test]
fn another_device_plugin_on_the_cards_is_found() {
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/gpu".to_owned(), json!("4"));
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (nvidia.com/gpu: 4)");
    let mut facts = healthy();
    facts.events = Ok(vec![event("Node", "gpu-1", "GPUCardOfferedTwice", "")]);
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (GPUCardOfferedTwice)");
    // Where Plimsoll has no card, others may.
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .status
        .allocatable
        .insert("nvidia.com/gpu".to_owned(), json!("4"));
    assert_eq!(wrong(&facts), []);
}

#[test]
fn gpu_nodes_without_the_device_plugin_are_found() {
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .labels
        .insert("nvidia.com/gpu.present".to_owned(), "true".to_owned());
    assert_only(
        &facts,
        Level::Warn,
        "gpu-nodes",
        "1 node with a card by its labels, and without Plimsoll's device plugin: cp-1",
    );
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .labels
        .insert("gpushare".to_owned(), "false".to_owned());
    assert_eq!(wrong(&facts), []);
    facts.pods.as_mut().unwrap().pop();
    assert_only(
        &facts,
        Level::Fail,
        "gpu-nodes",
        "1 GPU node without a device plugin's pod: gpu-1",
    );
}

#[test]
fn versions_that_do_not_fit_are_found() {
    let mut facts = healthy();
    facts.pods.as_mut().unwrap()[2].spec.containers[0].image = "r/annotator:0.0.9".to_owned();
    assert_only(&facts, Level::Warn, "versions", "annotator 0.0.9");
    let mut facts = healthy();
    facts.server_version = Ok("v1.33.2-eks-1".to_owned());
    assert_only(&facts, Level::Fail, "versions", "v1.33.2-eks-1");
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[1].status.node_info.kubelet_version = "v1.33.0".to_owned();
    assert_only(&facts, Level::Fail, "versions", "gpu-1 (v1.33.0)");
    let mut facts = healthy();
    let page = extender_page(1);
    assert!(page.label("plimsoll_build_info", "version").is_some());
    let other = "plimsoll_extender_requests_total{verb=\"bind\"} 1\nplimsoll_build_info{version=\"9.9.9\"} 1\n";
    facts.extenders.insert("extender-a".to_owned(), Ok(Page::parse(other)));
    assert_only(&facts, Level::Warn, "versions", "the extender 9.9.9");
}

#[test]
fn an_extender_that_is_missing_or_does_not_lead_is_found() {
    let mut facts = healthy();
    facts.extender_lease =
        Ok(lease("extender-a_x", "2026-11-26T13:58:00Z", "2026-11-26T13:58:00Z"));
    assert_only(
        &facts,
        Level::Fail,
        "extender",
        "no replica leads: extender-a renewed the Lease 120 s ago",
    );
    let mut facts = healthy();
    facts.workloads.as_mut().unwrap()[0].status.ready_replicas = 1;
    let broken = &mut facts.pods.as_mut().unwrap()[1];
    broken.status.conditions[0].status = "False".to_owned();
    broken.status.container_statuses =
        of(json!([{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]));
    assert_only(&facts, Level::Warn, "extender", "1/2 ready: extender-b (ImagePullBackOff)");
    let mut facts = healthy();
    facts.workloads = Ok(Vec::new());
    let found = wrong(&facts);
    assert_eq!((found[0].0, found[0].1), (Level::Fail, "extender"), "{found:#?}");
    // Taints alone need no extender.
    let mut facts = healthy();
    facts.workloads.as_mut().unwrap().remove(0);
    facts.schedulers = Ok(vec![scheduler("cp-1", "--leader-elect=true")]);
    assert_eq!(wrong(&facts), []);
}

#[test]
fn what_may_not_be_read_is_a_warning_that_names_the_right() {
    let refused = r#"Error from server (Forbidden): leases is forbidden: User "jane" cannot list resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease""#;
    let mut facts = healthy();
    facts.node_leases = Err(Failure::of_message(refused));
    assert_only(
        &facts,
        Level::Warn,
        "clocks",
        "not checked: the Leases of kube-node-lease: Error from server",
    );
    let todo = findings(&facts).into_iter().find_map(|finding| finding.todo).unwrap();
    assert!(
        todo.contains("--verb=list --resource=leases.coordination.k8s.io && kubectl"),
        "{todo}"
    );
}

#[test]
fn nothing_that_cannot_be_read_ends_the_examination() {
    let failure = || Failure::Other("no".to_owned());
    let mut facts = healthy();
    facts.now = Err(failure());
    facts.server_version = Err(failure());
    facts.workloads = Err(failure());
    facts.pods = Err(failure());
    facts.nodes = Err(failure());
    facts.schedulers = Err(failure());
    facts.scheduler_logs = Err(failure());
    facts.kubeadm_config = Err(failure());
    facts.second_config = Err(failure());
    facts.policy = Err(failure());
    facts.extender_lease = Err(failure());
    facts.extenders = BTreeMap::from([("x".to_owned(), Err(failure()))]);
    facts.annotators = BTreeMap::from([("x".to_owned(), Err(failure()))]);
    facts.state = Err(failure());
    facts.certificates = BTreeMap::from([("x".to_owned(), Err(failure()))]);
    facts.bindings = Err(failure());
    facts.policies = Err(failure());
    facts.rights = Err(failure());
    facts.events = Err(failure());
    facts.node_leases = Err(failure());
    facts.plugin_logs = BTreeMap::from([("x".to_owned(), Err(failure()))]);
    facts.toolkits = Err(failure());
    let found = wrong(&facts);
    assert!(
        found.iter().all(|(level, _, what)| *level == Level::Warn && what.contains("not checked")),
        "{found:#?}"
    );
    assert!(found.len() > 8, "{found:#?}");
}

/// The documents of a manifest.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn has(list: &Value, word: &str) -> bool {
    list.as_array().unwrap().iter().any(|it| it == word)
}

#[test]
fn the_rights_that_are_asked_about_are_those_of_the_manifests() {
    let manifests = [
        ("scheduler-extender", include_str!("../../../deploy/base/scheduler-extender.yaml")),
        ("annotator", include_str!("../../../deploy/base/annotator.yaml")),
        (
            "gpushare-device-plugin",
            include_str!("../../../deploy/base/gpushare-device-plugin.yaml"),
        ),
    ];
    for (account, text) in manifests {
        let documents = documents(text);
        let rules: Vec<&Value> = documents
            .iter()
            .filter_map(|document| document["rules"].as_array())
            .flatten()
            .collect();
        assert!(!rules.is_empty(), "{account}");
        for (_, group, resource, _, verbs, _) in
            collect::RIGHTS.iter().filter(|right| right.0 == account)
        {
            let granted = rules.iter().any(|rule| {
                has(&rule["apiGroups"], group)
                    && has(&rule["resources"], resource)
                    && verbs.iter().all(|verb| has(&rule["verbs"], verb))
            });
            assert!(granted, "{account}: {verbs:?} {resource}");
        }
        // And none is left out.
        for rule in rules {
            for resource in rule["resources"].as_array().unwrap() {
                let mut own = collect::RIGHTS.iter().filter(|right| right.0 == account);
                assert!(own.any(|right| resource == right.2), "{account}: {resource}");
            }
        }
    }
}

#[test]
fn the_admission_policies_that_are_looked_for_are_those_of_the_manifests() {
    let manifests = [
        include_str!("../../../deploy/admission/annotator.yaml"),
        include_str!("../../../deploy/admission/bindings.yaml"),
        include_str!("../../../deploy/admission/claims.yaml"),
        include_str!("../../../deploy/admission/device-plugin.yaml"),
        include_str!("../../../deploy/admission/gpu-environment.yaml"),
        include_str!("../../../deploy/admission/node-name.yaml"),
    ];
    let documents: Vec<Value> = manifests.iter().flat_map(|text| documents(text)).collect();
    let policies = documents.iter().filter(|it| it["kind"] == "ValidatingAdmissionPolicy");
    let policies: Vec<&str> = policies.map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(policies.len(), access_checks::POLICIES.len());
    for (name, _) in access_checks::POLICIES {
        assert!(policies.contains(&name), "{name}");
    }
}
