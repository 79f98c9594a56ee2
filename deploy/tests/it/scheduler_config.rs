//! The KubeSchedulerConfiguration has fields that kube-scheduler knows and verbs that the extender answers.

use serde::Deserialize;

use crate::manifests::{of_kind, read};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    client_connection: ClientConnection,
    leader_election: LeaderElection,
    percentage_of_nodes_to_score: Option<u32>,
    extenders: Vec<Extender>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientConnection {
    kubeconfig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaderElection {
    leader_elect: bool,
}

/// The fields of `kubescheduler.config.k8s.io/v1` that are in use.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Extender {
    url_prefix: String,
    filter_verb: Option<String>,
    prioritize_verb: Option<String>,
    preempt_verb: Option<String>,
    bind_verb: Option<String>,
    weight: Option<i64>,
    ignorable: bool,
    node_cache_capable: bool,
    http_timeout: String,
    #[serde(default)]
    managed_resources: Vec<ManagedResource>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManagedResource {
    name: String,
    ignored_by_scheduler: bool,
}

fn configuration() -> Configuration {
    serde_saphyr::from_str(&read("chart/kube-scheduler/shipped.yaml")).unwrap()
}

/// The entry for every pod, and the one for GPU pods.
fn entries() -> (Extender, Extender) {
    let mut extenders = configuration().extenders;
    assert_eq!(extenders.len(), 2);
    let gpu = extenders.pop().unwrap();
    (extenders.pop().unwrap(), gpu)
}

#[test]
fn it_keeps_kubeadms_settings_and_scores_every_node() {
    let configuration = configuration();
    assert_eq!(configuration.api_version, "kubescheduler.config.k8s.io/v1");
    assert_eq!(configuration.kind, "KubeSchedulerConfiguration");
    assert_eq!(configuration.client_connection.kubeconfig, "/etc/kubernetes/scheduler.conf");
    assert!(configuration.leader_election.leader_elect);
    assert_eq!(configuration.percentage_of_nodes_to_score, Some(100));
}

/// Soft limits alone need no look at every node.
#[test]
fn without_gpus_it_has_the_load_entry_alone_and_kube_schedulers_own_sample() {
    let without: Configuration =
        serde_saphyr::from_str(&read("chart/kube-scheduler/without-gpus.yaml")).unwrap();
    assert_eq!(without.percentage_of_nodes_to_score, None);
    assert_eq!(without.client_connection, configuration().client_connection);
    assert_eq!(without.extenders, [entries().0]);
}

#[test]
fn the_load_entry_is_for_every_pod_and_ignorable() {
    let (load, _) = entries();
    assert_eq!(load.filter_verb.as_deref(), Some("filter"));
    assert_eq!(load.prioritize_verb.as_deref(), Some("prioritize"));
    assert_eq!(load.preempt_verb.as_deref(), Some("preempt"));
    assert_eq!((load.bind_verb, load.weight), (None, Some(1)));
    assert!(load.ignorable && load.node_cache_capable && load.managed_resources.is_empty());
    assert_eq!(load.http_timeout, "500ms");
}

#[test]
fn the_gpu_entry_is_for_gpu_pods_alone_and_binds_them() {
    let (_, gpu) = entries();
    assert_eq!(gpu.filter_verb.as_deref(), Some("filter"));
    assert_eq!(gpu.bind_verb.as_deref(), Some("bind"));
    assert_eq!(gpu.preempt_verb.as_deref(), Some("preempt"));
    assert_eq!((gpu.prioritize_verb, gpu.weight), (None, None));
    assert!(!gpu.ignorable && gpu.node_cache_capable);
    let names = placement::names::Names::default();
    assert_eq!(gpu.managed_resources.len(), 1);
    assert_eq!(gpu.managed_resources[0].name, names.gpu_resource());
    assert!(!gpu.managed_resources[0].ignored_by_scheduler);
}

#[test]
fn both_entries_lead_to_the_service() {
    let services = of_kind("Service");
    let is_extenders = |it: &&serde_json::Value| it["metadata"]["name"] == "scheduler-extender";
    let service = services.iter().find(is_extenders).unwrap();
    let name = &service["metadata"]["name"];
    let namespace = &service["metadata"]["namespace"];
    let port = &service["spec"]["ports"][0]["port"];
    let base =
        format!("http://{}.{}.svc:{port}", name.as_str().unwrap(), namespace.as_str().unwrap());
    let (load, gpu) = entries();
    assert_eq!(load.url_prefix, format!("{base}/load-aware"));
    assert_eq!(gpu.url_prefix, format!("{base}/gpushare-scheduler"));
}

#[test]
fn every_verb_but_bind_is_one_that_the_extender_answers() {
    let (load, gpu) = entries();
    for path in [paths(&load), paths(&gpu)].concat() {
        // Not one of the verbs that are answered from memory: like Bind it asks the API server.
        let asks_the_api_server = path == "gpushare-scheduler/preempt";
        assert!(
            asks_the_api_server
                || scheduler_extender::http::VERBS.iter().any(|(verb, _)| *verb == path),
            "{path}"
        );
    }
}

fn paths(entry: &Extender) -> Vec<String> {
    let (_, folder) = entry.url_prefix.rsplit_once('/').expect("a path");
    let verbs = entry.filter_verb.iter().chain(&entry.prioritize_verb).chain(&entry.preempt_verb);
    verbs.map(|verb| format!("{folder}/{verb}")).collect::<Vec<_>>()
}

#[test]
fn bind_timeout_is_below_the_http_timeout_of_its_entry() {
    let (_, gpu) = entries();
    let deadline = scheduler_extender::args::BIND_TIMEOUT.as_secs_f64();
    assert!(deadline + 0.5 < seconds(&gpu.http_timeout));
}

fn seconds(text: &str) -> f64 {
    text.trim_end_matches('s').parse::<f64>().expect("seconds")
}
