//! Each fault is seeded into the facts of a healthy cluster, and found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{ConfigMap, Fact, Facts, Pages, Read, Right, Secret, Workload};
use super::finding::{Finding, Level};
use super::page::Page;
use super::{CHECKS, Check, access_checks, collect, exit_code, needed, report, write_table};
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

fn extender_page(leads: u8) -> Page {
    Page::parse(&format!(
        "plimsoll_extender_requests_total{{verb=\"load-aware/filter\",outcome=\"ok\"}} 7\n\
         plimsoll_extender_requests_total{{verb=\"report\",outcome=\"ok\"}} 5\nplimsoll_extender_leader {leads}\n\
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

/// A policy of the manifests.
fn shipped(name: &str) -> Value {
    let found = MANIFEST_POLICIES.iter().find(|it| it["metadata"]["name"] == name);
    found.unwrap().clone()
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
    Right { account, verb, resource, namespace: String::new(), name: String::new(), allowed: true }
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
    state.cards.closed.clear();
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
        scheduler_logs: Ok(BTreeMap::new()),
        kubeadm_config: Ok(Some(of(json!({
            "metadata": {"annotations": {"plimsoll.dev/kube-scheduler-nodes": "cp-1"}},
            "data": {"ClusterConfiguration": "value: /etc/kubernetes/plimsoll/kube-scheduler-config.yaml"},
        })))),
        second_config: Ok(None),
        policy: Ok(Some(policy(include_str!("../../../deploy/base/policy.yaml")))),
        extender_lease: Ok(Some(lease(
            "extender-a_x",
            "2026-11-26T13:59:58Z",
            "2026-11-26T13:59:58Z",
        ))),
        extenders: Ok(BTreeMap::from([
            ("extender-a".to_owned(), Ok(extender_page(1))),
            ("extender-b".to_owned(), Ok(extender_page(0))),
        ])),
        annotators: Ok(BTreeMap::from([("annotator-a".to_owned(), Ok(annotator_page(0)))])),
        state: Ok(state),
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
        plugin_logs: Ok(BTreeMap::new()),
        toolkits: Ok(vec![toolkit(&json!([{"name": RUNTIME_SETTING, "value": "false"}]))]),
    }
}

const RUNTIME_SETTING: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";

fn toolkit(env: &Value) -> Workload {
    of(json!({"metadata": {"namespace": "gpu-operator", "name": "toolkit"},
              "spec": {"template": {"spec": {"containers": [{"env": env}]}}}}))
}

fn secret(name: &str, program: &str, end: Option<Timestamp>) -> Secret {
    let [namespace, name, program] = ["plimsoll", name, program].map(str::to_owned);
    Secret { namespace, name, of: program, end: Ok(end) }
}

/// Every extender's metrics are this page.
fn all_extenders(facts: &mut Facts, page: &str) {
    for of_pod in facts.extenders.as_mut().unwrap().values_mut() {
        *of_pod = Ok(Page::parse(page));
    }
}

fn one_annotator(page: Page) -> Read<Pages> {
    Ok(BTreeMap::from([("annotator-a".to_owned(), Ok(page))]))
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
    facts.certificates.as_mut().unwrap()[1] = secret("kube-scheduler-tls", "", Some(soon));
    assert_only(&facts, Level::Warn, "certificate", "kube-scheduler-tls ends in 21 days");
    facts.certificates.as_mut().unwrap()[1] = secret("kube-scheduler-tls", "", Some(now()));
    assert_only(&facts, Level::Fail, "certificate", "kube-scheduler-tls has ended");
    // The one in use, which the extender itself tells.
    let mut facts = healthy();
    let page = "plimsoll_extender_requests_total{verb=\"gpushare-scheduler/bind\"} 1\nplimsoll_extender_certificate_not_after_seconds{file=\"client_ca\"} 1795700000\n";
    facts.extenders.as_mut().unwrap().insert("extender-a".to_owned(), Ok(Page::parse(page)));
    assert_only(&facts, Level::Fail, "certificate", "in use by extender-a (client_ca) has ended");
}

const NO_NAMES: &str =
    "the request has no NodeNames: set `nodeCacheCapable: true` in this extender's entry";

/// An event about a pod, this many seconds ago.
fn no_names_event(ago: i64) -> Event {
    let mut event = event("Pod", "train", "FailedScheduling", NO_NAMES);
    event.last_timestamp = Some(now() - SignedDuration::from_secs(ago));
    event
}

fn log_of_scheduler(text: &str) -> Read<BTreeMap<String, Read<String>>> {
    Ok(BTreeMap::from([("kube-scheduler-cp-1".to_owned(), Ok(text.to_owned()))]))
}

#[test]
fn whole_nodes_in_place_of_names_are_found_in_logs_and_in_events_of_calls_that_failed() {
    let mut facts = healthy();
    facts.scheduler_logs = log_of_scheduler(&format!("Skipping extender err=\"{NO_NAMES}\""));
    assert_only(&facts, Level::Fail, "requests", "(log of kube-scheduler-cp-1)");
    let mut facts = healthy();
    facts.events = Ok(vec![no_names_event(30)]);
    // Anyone writes an event; the extender has refused no call.
    assert_eq!(wrong(&facts), []);
    all_extenders(
        &mut facts,
        "plimsoll_extender_requests_total{verb=\"gpushare-scheduler/filter\",outcome=\"error\"} 1\n\
         plimsoll_extender_requests_total{verb=\"gpushare-scheduler/filter\",outcome=\"ok\"} 1\n",
    );
    let place = "nodeCacheCapable is false (event of pod shop/train)";
    assert_only(&facts, Level::Fail, "requests", place);
    // It is from before the schedulers started, or old.
    let started = json!([{"state": {"running": {"startedAt": "2026-11-26T13:59:45Z"}}}]);
    facts.schedulers.as_mut().unwrap()[0].status.container_statuses = of(started);
    assert_eq!(wrong(&facts), []);
    facts.events = Ok(vec![no_names_event(10)]);
    assert_only(&facts, Level::Fail, "requests", place);
    facts.schedulers.as_mut().unwrap()[0].status.container_statuses.clear();
    facts.events = Ok(vec![no_names_event(57 * 60)]);
    assert_eq!(wrong(&facts), []);
    let mut facts = healthy();
    all_extenders(
        &mut facts,
        "plimsoll_extender_requests_total{verb=\"load-aware/filter\",outcome=\"error\"} 3\n\
         plimsoll_extender_requests_total{verb=\"load-aware/prioritize\",outcome=\"ok\"} 3\n",
    );
    assert_only(&facts, Level::Fail, "requests", "all 6 calls of Filter failed");
}

/// With `--v=2` kube-scheduler logs its whole configuration.
#[test]
fn a_scheduler_that_logs_its_configuration_is_well() {
    let mut facts = healthy();
    facts.scheduler_logs =
        log_of_scheduler("Using component config\n  nodeCacheCapable: true\n  urlPrefix: x\n");
    assert_eq!(wrong(&facts), []);
    assert_eq!(ok_text(&facts, "requests"), "14 calls answered since the start");
}

#[test]
fn the_second_schedulers_configuration_is_read() {
    let mut facts = healthy();
    with_second_scheduler(&mut facts);
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
    facts.second_config = Ok(Some(of(json!({"data": {"config.yaml": "extenders: []\n"}}))));
    assert_only(&facts, Level::Fail, "kube-scheduler", "names no extender");
    facts.second_config = Ok(None);
    assert_only(&facts, Level::Fail, "kube-scheduler", "there is no configuration in a ConfigMap");
    // It is installed, and has no pod: the static pods are not asked to ask.
    facts.second_config = entry(true);
    facts.schedulers = Ok(vec![scheduler("cp-1", "--leader-elect=true")]);
    facts.pods.as_mut().unwrap().pop();
    workload_of(&mut facts, "kube-scheduler").status.ready_replicas = 0;
    assert_only(&facts, Level::Fail, "kube-scheduler", "0/2 ready");
}

/// Installs a second scheduler, with the policy that belongs to it.
fn with_second_scheduler(facts: &mut Facts) {
    facts.workloads.as_mut().unwrap().push(of(workload("Deployment", "kube-scheduler")));
    facts.pods.as_mut().unwrap().push(pod("kube-scheduler", "second", "cp-1"));
    let name = "plimsoll-scheduler-name";
    facts.policies.as_mut().unwrap().push(of(shipped(name)));
    facts.bindings.as_mut().unwrap().push(of(binding(name, "Deny")));
}

#[test]
fn a_configuration_by_hand_is_not_known_to_ask() {
    let mut facts = healthy();
    facts.schedulers = Ok(vec![
        scheduler("cp-1", CONFIGURED),
        scheduler("cp-2", "--config=/etc/kubernetes/other.yaml"),
    ]);
    assert_only(&facts, Level::Warn, "kube-scheduler", "cp-2: --config=/etc/kubernetes/other.yaml");
}

#[test]
fn an_extender_that_is_not_called_is_found() {
    let mut facts = healthy();
    // What asks for reports is no scheduler.
    let reports = "plimsoll_extender_requests_total{verb=\"report\",outcome=\"ok\"} 9\n";
    let page = format!("{reports}process_start_time_seconds 1795600000\n");
    all_extenders(&mut facts, &page);
    let what = "no kube-scheduler has called the extender in its";
    // A cluster in which nothing is scheduled is no fault.
    assert_only(&facts, Level::Unknown, "requests", what);
    let mut scheduled = event("Pod", "web", "Scheduled", "");
    scheduled.last_timestamp = Some(now() - SignedDuration::from_secs(60));
    scheduled.reporting_component = "another-scheduler".to_owned();
    facts.events = Ok(vec![scheduled.clone()]);
    assert_only(&facts, Level::Unknown, "requests", what);
    scheduled.reporting_component = "default-scheduler".to_owned();
    facts.events = Ok(vec![scheduled]);
    assert_only(&facts, Level::Fail, "requests", what);
    all_extenders(&mut facts, "plimsoll_extender_tls_handshake_failures_total 4\n");
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
    let well = lease("cp-1", "2026-11-26T13:59:55Z", "2026-11-26T13:59:55Z");
    let down = lease("gpu-1", "2026-11-26T12:00:00Z", "2026-11-26T12:59:55Z");
    facts.node_leases = Ok(vec![well, down.clone()]);
    assert_eq!(wrong(&facts), []);
    facts.node_leases = Ok(vec![down]);
    assert_only(&facts, Level::Unknown, "clocks", "no kubelet has renewed its Lease");
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
fn this_machines_clock_is_off_by_what_the_time_of_the_call_does_not_explain() {
    let mut facts = healthy();
    let after = |seconds: i64| now() + SignedDuration::from_secs(seconds);
    facts.own_time = [after(-1), after(9)];
    assert_eq!(wrong(&facts), []);
    facts.own_time = [after(7), after(9)];
    assert_only(&facts, Level::Warn, "clocks", "this machine's clock is +7 s off");
    facts.own_time = [after(-20), after(-8)];
    assert_only(&facts, Level::Warn, "clocks", "this machine's clock is -8 s off");
}

#[test]
fn readings_that_were_of_the_future_are_no_fault_of_today() {
    let mut facts = healthy();
    let page = "plimsoll_extender_requests_total{verb=\"load-aware/filter\"} 1\n\
                plimsoll_extender_refused_readings_total{cause=\"ahead\"} 3\n";
    all_extenders(&mut facts, page);
    assert_only(&facts, Level::Warn, "clocks", "those on the nodes now are not");
    // In another time zone the times on nodes are its local times.
    let mut facts = healthy();
    let annotations = &mut facts.nodes.as_mut().unwrap()[0].metadata.annotations;
    annotations.insert(METRIC.to_owned(), "0.5,2026-11-26T22:00:00Z".to_owned());
    let args = &mut workload_of(&mut facts, "annotator").spec.template.spec.containers[1].args;
    args.push("--time-zone=Asia/Shanghai".to_owned());
    assert_eq!(wrong(&facts), []);
}

#[test]
fn silent_exporters_are_found() {
    let mut facts = healthy();
    facts.annotators = one_annotator(annotator_page(1));
    facts.state.as_mut().unwrap().nodes.missing = vec![1, 0];
    assert_only(
        &facts,
        Level::Warn,
        "readings",
        "1 of 2 exporters do not answer the annotator; without a fresh reading: cp-1",
    );
    facts.annotators = one_annotator(annotator_page(2));
    assert_only(&facts, Level::Fail, "readings", "2 of 2 exporters");
}

#[test]
fn two_writers_of_readings_are_found() {
    let mut facts = healthy();
    let other = of(written("crane-annotator", METRIC));
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields = vec![other];
    assert_only(&facts, Level::Fail, "writers", "crane-annotator (1 node), unknown (1 node)");
    // It has stopped.
    let before = of(written_at("crane-annotator", METRIC, "2026-01-01T00:00:00Z"));
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields = vec![before];
    assert_eq!(wrong(&facts), []);
    // Other annotations are others' business.
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields =
        vec![of(written("kubelet", "volumes"))];
    assert_eq!(wrong(&facts), []);
}

#[test]
fn that_nothing_writes_readings_is_not_one_writer() {
    let mut facts = healthy();
    for node in facts.nodes.as_mut().unwrap() {
        node.metadata.managed_fields.clear();
    }
    assert_only(&facts, Level::Unknown, "writers", "no node has a reading");
    // In NodeLoads no node has one.
    let args = &mut workload_of(&mut facts, "annotator").spec.template.spec.containers[1].args;
    args.push("--readings-in=nodeloads".to_owned());
    assert!(ok_text(&facts, "writers").contains("NodeLoads"));
}

#[test]
fn an_extender_that_does_not_know_the_cluster_makes_nothing_well() {
    let mut facts = healthy();
    facts.state.as_mut().unwrap().replica.complete = false;
    let found = wrong(&facts);
    let checks: Vec<_> = found.iter().map(|it| (it.0, it.1)).collect();
    assert_eq!(checks, [(Level::Unknown, "readings"), (Level::Unknown, "cards")], "{found:#?}");
    let mut facts = healthy();
    facts.state.as_mut().unwrap().nodes.name.clear();
    let found = wrong(&facts);
    assert!(
        found.iter().all(|it| it.0 == Level::Unknown && it.2.contains("knows no node")),
        "{found:#?}"
    );
    assert_eq!(found.len(), 2, "{found:#?}");
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
    let page = "plimsoll_annotator_leader 1\nplimsoll_annotator_nodes 2\nplimsoll_annotator_policy_reads_total{outcome=\"refused\"} 1\n";
    facts.annotators = one_annotator(Page::parse(page));
    assert_only(&facts, Level::Warn, "policy", "was refused since the programs' start");
}

#[test]
fn the_policy_is_looked_for_where_the_extender_says_that_it_is() {
    let mut facts = healthy();
    assert_eq!(ok_text(&facts, "policy"), "read without fault from the ConfigMap plimsoll/policy");
    facts.policy = Ok(None);
    assert_only(&facts, Level::Fail, "policy", "there is no ConfigMap plimsoll/policy");
    facts.policy = Ok(Some(of(json!({"data": {"other.yaml": ""}}))));
    assert_only(&facts, Level::Unknown, "policy", "has no key of the name of --policy-file");
    let args =
        &mut workload_of(&mut facts, "scheduler-extender").spec.template.spec.containers[1].args;
    args[0] = "--policy-config-map=plimsoll/mine".to_owned();
    args.push("--policy-file=/etc/mine/other.yaml".to_owned());
    let text = include_str!("../../../deploy/base/policy.yaml");
    facts.policy = Ok(Some(of(json!({"data": {"other.yaml": text}}))));
    assert_eq!(ok_text(&facts, "policy"), "read without fault from the ConfigMap plimsoll/mine");
}

#[test]
fn a_missing_right_is_found() {
    let mut facts = healthy();
    facts.rights.as_mut().unwrap()[1].allowed = false;
    assert_only(&facts, Level::Fail, "rights", "scheduler-extender may not create pods/binding");
    facts.rights = Ok(Vec::new());
    assert_only(&facts, Level::Unknown, "rights", "no program of Plimsoll has a pod");
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
    // The move from gpushare has it audit.
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap()[3] = of(binding("plimsoll-node-name", "Audit"));
    assert_only(&facts, Level::Warn, "admission", "binding plimsoll-node-name is Audit, not Deny");
}

#[test]
fn a_binding_that_leaves_something_out_is_found() {
    let narrowed = |matched: Value| {
        let mut binding = binding("plimsoll-claims", "Deny");
        binding["spec"]["matchResources"] = matched;
        let mut facts = healthy();
        facts.bindings.as_mut().unwrap()[1] = of(binding);
        facts
    };
    let facts = narrowed(json!({"namespaceSelector": {"matchLabels": {"nobody": "has-this"}}}));
    assert_only(&facts, Level::Warn, "admission", "narrowed by its namespaceSelector");
    let facts =
        narrowed(json!({"resourceRules": [{"resources": ["pods"]}], "matchPolicy": "Exact"}));
    assert_only(&facts, Level::Warn, "admission", "narrowed by its matchPolicy and resourceRules");
    // As the API server fills it in.
    let empty = json!({"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"});
    let mut facts = narrowed(empty);
    assert_eq!(wrong(&facts), []);
    // One of two that covers everything is enough.
    let mut second = binding("plimsoll-claims", "Deny");
    second["spec"]["matchResources"] = json!({"objectSelector": {"matchLabels": {"a": "b"}}});
    facts.bindings.as_mut().unwrap().push(of(second));
    assert_eq!(wrong(&facts), []);
}

#[test]
fn a_policy_that_looks_at_less_than_the_shipped_one_is_found() {
    let changed = |change: fn(&mut Value)| {
        let mut policy = shipped("plimsoll-claims");
        change(&mut policy["spec"]);
        let mut facts = healthy();
        let policies = facts.policies.as_mut().unwrap();
        policies.retain(|it| it.metadata.name != "plimsoll-claims");
        policies.push(of(policy));
        facts
    };
    let facts = changed(|spec| spec["failurePolicy"] = json!("Ignore"));
    assert_only(&facts, Level::Warn, "admission", "another failurePolicy than Fail");
    let facts = changed(|spec| {
        spec["matchConditions"].as_array_mut().unwrap().push(json!({"name": "not-mine"}));
    });
    assert_only(&facts, Level::Warn, "admission", "less than the shipped one (not-mine)");
    let facts = changed(|spec| {
        let conditions = spec["matchConditions"].as_array_mut().unwrap();
        conditions.push(json!({"name": "by-others-than-gpushare"}));
    });
    assert_only(&facts, Level::Warn, "admission", "lets gpushare's accounts write claims");
    let facts = changed(|spec| {
        spec["matchConstraints"]["resourceRules"][0]["resources"] = json!(["pods"]);
    });
    assert_only(
        &facts,
        Level::Warn,
        "admission",
        "(no pods/status, no pods/ephemeralcontainers, no pods/resize)",
    );
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
    facts.extenders = Ok(BTreeMap::new());
    facts.extender_lease = Ok(None);
    facts.state = Err(Failure::Other("there is no extender".to_owned()));
    facts.certificates = Some(vec![secret("kube-scheduler-tls", "", None)]);
    facts.nodes = Ok(vec![node("cp-1", false), node("cp-2", false)]);
    for node in facts.nodes.as_mut().unwrap() {
        node.metadata.managed_fields = vec![of(written("unknown", "cpu_busy_avg_5m"))];
    }
    facts
}

#[test]
fn taints_alone_need_no_extender_and_each_check_says_so() {
    let facts = taints_alone();
    assert_eq!(wrong(&facts), []);
    assert_eq!(ok_text(&facts, "admission"), "2 policies deny, as shipped");
    assert_eq!(ok_text(&facts, "readings"), "2 exporters answer the annotator");
    for check in
        ["extender", "kube-scheduler", "requests", "certificate", "gpu-nodes", "cards", "unit"]
    {
        assert!(ok_text(&facts, check).starts_with("does not apply: no"), "{check}");
    }
    for check in ["cdi", "runtime", "other-plugins"] {
        assert!(ok_text(&facts, check).starts_with("does not apply: no device plugin"), "{check}");
    }
}

#[test]
fn policies_are_asked_for_by_what_is_installed() {
    let mut facts = healthy();
    let args = &mut workload_of(&mut facts, "gpushare-device-plugin").spec.template.spec;
    args.containers[1].args.push("--unhealthy-gpus-namespace=kube-system".to_owned());
    assert_only(&facts, Level::Fail, "admission", "policy plimsoll-unhealthy-gpus is missing");
    let mut facts = healthy();
    with_second_scheduler(&mut facts);
    facts.policies.as_mut().unwrap().pop();
    let found = of_check(&facts, "admission");
    assert!(found[0].what.starts_with("policy plimsoll-scheduler-name is missing"), "{found:#?}");
    // Where that is not known, those that are there are looked at.
    let mut facts = healthy();
    facts.workloads = Err(Failure::Other("no".to_owned()));
    facts.bindings.as_mut().unwrap()[1] = of(binding("plimsoll-claims", "Audit"));
    let levels: Vec<Level> = of_check(&facts, "admission").iter().map(|it| it.level).collect();
    assert_eq!(levels, [Level::Unknown, Level::Fail]);
}

#[test]
fn a_runtime_that_honours_the_variable_is_found() {
    let setting = RUNTIME_SETTING;
    let mut facts = healthy();
    facts.toolkits = Ok(vec![toolkit(&json!([]))]);
    assert_only(&facts, Level::Fail, "runtime", "is not set in gpu-operator/toolkit");
    facts.toolkits = Ok(vec![toolkit(&json!([{"name": setting, "value": "true"}]))]);
    assert_only(&facts, Level::Fail, "runtime", "is true in gpu-operator/toolkit");
    facts.toolkits = Ok(vec![toolkit(&json!([{"name": setting, "value": "false"}]))]);
    assert_eq!(wrong(&facts), []);
    facts.events = Ok(vec![event("Pod", "thief", "GPUProcessElsewhere", "")]);
    assert_only(&facts, Level::Fail, "runtime", "shop/thief (GPUProcessElsewhere)");
}

#[test]
fn a_runtime_at_which_nothing_looks_is_not_known() {
    let mut facts = healthy();
    facts.toolkits = Ok(Vec::new());
    assert_only(
        &facts,
        Level::Unknown,
        "runtime",
        "without the component gpu-processes nothing looks",
    );
    workload_of(&mut facts, "gpushare-device-plugin").spec.template.spec.host_pid = true;
    assert!(ok_text(&facts, "runtime").starts_with("no container was seen"));
    facts.events = Err(Failure::Other("no".to_owned()));
    let found = of_check(&facts, "runtime");
    assert_eq!(found.iter().map(|it| it.level).collect::<Vec<_>>(), [Level::Unknown], "{found:#?}");
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
    facts.plugin_logs = Ok(BTreeMap::from([("plugin-a".to_owned(), Ok(log.to_owned()))]));
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
    // It was so long ago that the audit would have told again.
    facts.events.as_mut().unwrap()[0].last_timestamp = Some(now() - SignedDuration::from_mins(57));
    assert_eq!(wrong(&facts), []);
    // A part of a card is one, too; of other names that is not known.
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/mig-1g.10gb".to_owned(), json!("7"));
    allocatable.insert("aliyun.com/gpu-mem".to_owned(), json!("24"));
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (nvidia.com/mig-1g.10gb: 7)");
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/hostdev".to_owned(), json!("2"));
    assert_only(
        &facts,
        Level::Warn,
        "other-plugins",
        "may offer the same cards: gpu-1 (nvidia.com/hostdev: 2)",
    );
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
    let other = "plimsoll_extender_requests_total{verb=\"gpushare-scheduler/bind\"} 1\nplimsoll_build_info{version=\"9.9.9\"} 1\n";
    facts.extenders.as_mut().unwrap().insert("extender-a".to_owned(), Ok(Page::parse(other)));
    let found = wrong(&facts);
    assert_eq!(
        found.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
        [(Level::Warn, "versions"); 2]
    );
    assert!(found[0].2.contains("the extender 9.9.9"), "{found:#?}");
    assert!(found[1].2.contains("the programs are of several versions"), "{found:#?}");
}

#[test]
fn images_by_digest_are_not_of_several_versions() {
    let mut facts = healthy();
    for pod in facts.pods.as_mut().unwrap() {
        let image = &mut pod.spec.containers[0].image;
        *image = image.replace(&format!(":{CLIENT}"), &format!("@sha256:{}", image.len()));
    }
    assert_eq!(wrong(&facts), []);
    let text = ok_text(&facts, "versions");
    assert!(
        text.ends_with(
            "do not tell the version of annotator, gpushare-device-plugin, node-exporter-plus"
        ),
        "{text}"
    );
    let mut second = pod("annotator", "annotator-b", "cp-2");
    second.spec.containers[0].image = "r/annotator@sha256:other".to_owned();
    facts.pods.as_mut().unwrap().push(second);
    assert_only(&facts, Level::Warn, "versions", "pods of annotator are of several images");
}

#[test]
fn an_extender_that_is_missing_or_does_not_lead_is_found() {
    let mut facts = healthy();
    facts.extender_lease =
        Ok(Some(lease("extender-a_x", "2026-11-26T13:58:00Z", "2026-11-26T13:58:00Z")));
    assert_only(
        &facts,
        Level::Fail,
        "extender",
        "no replica leads: extender-a renewed the Lease 120 s ago",
    );
    facts.extender_lease = Ok(None);
    assert_only(&facts, Level::Fail, "extender", "no replica has ever led");
    let mut facts = healthy();
    workload_of(&mut facts, "scheduler-extender").spec.replicas = Some(0);
    assert_only(&facts, Level::Fail, "extender", "scaled to 0 replicas");
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
    // The device plugin is there, so that the extender is missing.
    let mut facts = healthy();
    facts.workloads.as_mut().unwrap().remove(0);
    let found = of_check(&facts, "extender");
    assert_eq!(found[0].level, Level::Fail, "{found:#?}");
}

#[test]
fn what_may_not_be_read_is_not_known_and_names_the_right() {
    let refused = r#"Error from server (Forbidden): leases is forbidden: User "jane" cannot list resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease""#;
    let mut facts = healthy();
    facts.node_leases = Err(Failure::of_message(refused));
    assert_only(
        &facts,
        Level::Unknown,
        "clocks",
        "not checked: the Leases of kube-node-lease: Error from server",
    );
    let todo = findings(&facts).into_iter().find_map(|finding| finding.todo).unwrap();
    assert!(
        todo.contains("--verb=list --resource=leases.coordination.k8s.io && kubectl"),
        "{todo}"
    );
    let mut table = Vec::new();
    write_table(&findings(&facts), &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(table.contains("\nunknown  clocks"), "{table}");
    assert!(table.ends_with("\n0 FAIL, 0 warn, 1 unknown\n"), "{table}");
}

#[test]
fn the_exit_status_tells_a_fault_from_what_is_not_known() {
    let mut facts = healthy();
    let code = |facts: &Facts| format!("{:?}", exit_code(&findings(facts)));
    let of = |code: u8| format!("{:?}", std::process::ExitCode::from(code));
    assert_eq!(code(&facts), of(0));
    facts.nodes.as_mut().unwrap()[1].status.node_info.container_runtime_version =
        "containerd://1.7.27".to_owned();
    assert_eq!(code(&facts), of(0));
    facts.policies = Err(Failure::Other("no".to_owned()));
    assert_eq!(code(&facts), of(3));
    facts.policy = Ok(None);
    assert_eq!(code(&facts), of(1));
}

/// A fact, and a function that makes it unreadable.
type Taken = (&'static str, fn(&mut Facts));

/// Every fact.
fn unreadable() -> Vec<Taken> {
    fn no<T>() -> Read<T> {
        Err(Failure::Other("no".to_owned()))
    }
    vec![
        ("now", |facts| facts.now = no()),
        ("server_version", |facts| facts.server_version = no()),
        ("workloads", |facts| {
            // What is found by them is not known either.
            facts.workloads = no();
            facts.policy = no();
            facts.rights = no();
        }),
        ("pods", |facts| {
            facts.pods = no();
            facts.extenders = no();
            facts.annotators = no();
            facts.scheduler_logs = no();
            facts.rights = no();
            facts.plugin_logs = no();
        }),
        ("nodes", |facts| facts.nodes = no()),
        ("schedulers", |facts| {
            facts.schedulers = no();
            facts.scheduler_logs = no();
        }),
        ("scheduler_logs", |facts| facts.scheduler_logs = no()),
        ("kubeadm_config", |facts| facts.kubeadm_config = no()),
        ("policy", |facts| facts.policy = no()),
        ("extender_lease", |facts| facts.extender_lease = no()),
        ("extenders", |facts| {
            facts.extenders = Ok(BTreeMap::from([("x".to_owned(), no())]));
            facts.state = no();
        }),
        ("annotators", |facts| {
            facts.annotators = Ok(BTreeMap::from([("x".to_owned(), no())]));
        }),
        ("state", |facts| facts.state = no()),
        ("certificates", |facts| {
            facts.certificates.as_mut().unwrap()[0].end = no();
        }),
        ("bindings", |facts| facts.bindings = no()),
        ("policies", |facts| facts.policies = no()),
        ("rights", |facts| facts.rights = no()),
        ("events", |facts| facts.events = no()),
        ("node_leases", |facts| facts.node_leases = no()),
        ("plugin_logs", |facts| facts.plugin_logs = no()),
        ("toolkits", |facts| facts.toolkits = no()),
    ]
}

#[test]
fn without_a_fact_no_check_that_looks_at_it_is_ok_and_none_fails() {
    let mut facts_of_all = healthy();
    for (name, take) in unreadable() {
        take(&mut facts_of_all);
        let mut facts = healthy();
        take(&mut facts);
        let found = wrong(&facts);
        assert!(!found.is_empty(), "{name} is read by no check");
        assert!(
            found
                .iter()
                .all(|(level, _, what)| *level == Level::Unknown && what.contains("not checked")),
            "{name}: {found:#?}"
        );
        for check in CHECKS {
            assert!(!of_check(&facts, check.name).is_empty(), "{name}: {} is silent", check.name);
        }
    }
    let found = wrong(&facts_of_all);
    assert!(found.iter().all(|finding| finding.0 == Level::Unknown), "{found:#?}");
    for check in CHECKS {
        let of_check = of_check(&facts_of_all, check.name);
        assert!(of_check.iter().all(|finding| finding.level == Level::Unknown), "{of_check:#?}");
    }
}

#[test]
fn checks_whose_facts_are_unread_are_those_that_would_vanish() {
    let unknown = |name: &str| {
        let mut facts = healthy();
        let take = unreadable().into_iter().find(|it| it.0 == name).unwrap().1;
        take(&mut facts);
        let mut checks: Vec<&str> = wrong(&facts).into_iter().map(|finding| finding.1).collect();
        checks.dedup();
        checks
    };
    assert_eq!(
        unknown("workloads"),
        [
            "extender",
            "annotator",
            "kube-scheduler",
            "requests",
            "certificate",
            "clocks",
            "readings",
            "writers",
            "policy",
            "rights",
            "admission",
            "gpu-nodes",
            "cards",
            "unit",
            "cdi",
            "runtime",
            "other-plugins",
        ]
    );
    assert_eq!(
        unknown("pods"),
        [
            "extender",
            "annotator",
            "requests",
            "certificate",
            "clocks",
            "readings",
            "writers",
            "policy",
            "rights",
            "gpu-nodes",
            "unit",
            "versions",
        ]
    );
    assert_eq!(
        unknown("nodes"),
        [
            "kube-scheduler",
            "clocks",
            "writers",
            "gpu-nodes",
            "cdi",
            "runtime",
            "other-plugins",
            "versions"
        ]
    );
    assert_eq!(
        unknown("extenders"),
        [
            "extender",
            "requests",
            "certificate",
            "clocks",
            "readings",
            "policy",
            "cards",
            "versions"
        ]
    );
}

/// Of a healthy cluster, no check lacks a fact that it did not name.
#[test]
fn each_check_names_the_facts_that_it_looks_at() {
    for check in CHECKS {
        let facts = only(&needed(&[&check]));
        for finding in report(&facts, &[&check]).findings {
            assert_eq!(finding.level, Level::Ok, "{finding:#?}");
        }
    }
}

/// The healthy cluster, of which these facts alone were asked for.
fn only(needed: &BTreeSet<Fact>) -> Facts {
    fn keep<T>(needed: &BTreeSet<Fact>, fact: Fact, value: &mut Read<T>) {
        if !needed.contains(&fact) {
            *value = Err(Failure::Other(format!("{fact:?} is not asked for")));
        }
    }
    let mut facts = healthy();
    keep(needed, Fact::Time, &mut facts.now);
    keep(needed, Fact::ServerVersion, &mut facts.server_version);
    keep(needed, Fact::Workloads, &mut facts.workloads);
    keep(needed, Fact::Pods, &mut facts.pods);
    keep(needed, Fact::Nodes, &mut facts.nodes);
    keep(needed, Fact::Schedulers, &mut facts.schedulers);
    keep(needed, Fact::SchedulerLogs, &mut facts.scheduler_logs);
    keep(needed, Fact::KubeadmConfig, &mut facts.kubeadm_config);
    keep(needed, Fact::SecondConfig, &mut facts.second_config);
    keep(needed, Fact::Policy, &mut facts.policy);
    keep(needed, Fact::ExtenderLease, &mut facts.extender_lease);
    keep(needed, Fact::ExtenderMetrics, &mut facts.extenders);
    keep(needed, Fact::AnnotatorMetrics, &mut facts.annotators);
    keep(needed, Fact::State, &mut facts.state);
    keep(needed, Fact::Admission, &mut facts.policies);
    keep(needed, Fact::Admission, &mut facts.bindings);
    keep(needed, Fact::Rights, &mut facts.rights);
    keep(needed, Fact::Events, &mut facts.events);
    keep(needed, Fact::NodeLeases, &mut facts.node_leases);
    keep(needed, Fact::PluginLogs, &mut facts.plugin_logs);
    keep(needed, Fact::Toolkits, &mut facts.toolkits);
    if !needed.contains(&Fact::Certificates) {
        facts.certificates = None;
    }
    facts
}

#[test]
fn tls_is_known_by_the_flag_and_not_by_what_can_be_read() {
    // As in a support bundle: no Secret is asked for.
    let mut facts = healthy();
    facts.certificates = None;
    assert_eq!(wrong(&facts), []);
    let silent = "plimsoll_extender_requests_total{verb=\"load-aware/filter\"} 1\n";
    all_extenders(&mut facts, silent);
    assert_only(&facts, Level::Unknown, "certificate", "the extender speaks TLS");
    // The Secret that the Deployment names is not there.
    facts.certificates = Some(vec![secret("mine", "scheduler-extender", None)]);
    let found = of_check(&facts, "certificate");
    assert!(found[0].what.starts_with("there is no certificate of Secret mine"), "{found:#?}");
    assert_eq!(found[0].level, Level::Fail);
    let args =
        &mut workload_of(&mut facts, "scheduler-extender").spec.template.spec.containers[1].args;
    args.truncate(2);
    facts.certificates = None;
    assert!(ok_text(&facts, "certificate").ends_with("without --tls-cert-file, over plain HTTP"));
}

#[test]
fn the_secrets_are_those_that_bring_a_certificate() {
    let mut facts = healthy();
    assert_eq!(workload_of(&mut facts, "annotator").certificates(), []);
    let extender = workload_of(&mut facts, "scheduler-extender");
    assert_eq!(extender.certificates(), [("scheduler-extender-tls", false)]);
    let volume = json!({"name": "x", "secret": {"secretName": "y", "optional": true}});
    extender.spec.template.spec.volumes = vec![of(volume)];
    assert_eq!(extender.certificates(), [("y", true)]);
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

/// The admission policies of the manifests and of the components.
static MANIFEST_POLICIES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let manifests = [
        include_str!("../../../deploy/admission/annotator.yaml"),
        include_str!("../../../deploy/admission/bindings.yaml"),
        include_str!("../../../deploy/admission/claims.yaml"),
        include_str!("../../../deploy/admission/device-plugin.yaml"),
        include_str!("../../../deploy/admission/gpu-environment.yaml"),
        include_str!("../../../deploy/admission/node-name.yaml"),
        include_str!("../../../deploy/components/second-scheduler/policy.yaml"),
        include_str!("../../../deploy/components/unhealthy-gpus/policy.yaml"),
    ];
    let documents = manifests.iter().flat_map(|text| documents(text));
    documents.filter(|it| it["kind"] == "ValidatingAdmissionPolicy").collect()
});

#[test]
fn the_admission_policies_that_are_looked_for_are_those_of_the_manifests() {
    assert_eq!(MANIFEST_POLICIES.len(), access_checks::GUARDS.len());
    for guard in access_checks::GUARDS {
        let spec = &shipped(guard.name)["spec"];
        assert_eq!(spec["failurePolicy"], "Fail", "{}", guard.name);
        let conditions = spec["matchConditions"].as_array().unwrap().iter();
        let conditions: Vec<&str> = conditions.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(conditions, guard.conditions, "{}", guard.name);
        let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap().iter();
        let resources = rules.flat_map(|rule| rule["resources"].as_array().unwrap());
        let resources: Vec<&str> = resources.map(|it| it.as_str().unwrap()).collect();
        assert_eq!(resources, guard.resources, "{}", guard.name);
    }
}
