//! Tests of what is shipped for Prometheus: a real one scrapes the cluster by the shipped configuration, and the
//! shipped rules raise the alert of a stopped annotator. Only the times are shorter, and the pods are found here:
//! Debian's Prometheus is built without `kubernetes_sd_configs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::{command, run, wait_for};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use support::promtool::Server;

use crate::env::TestEnv;
use crate::support::pods::{name, node};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "a_prometheus_by_the_shipped_files_scrapes_every_program_and_alerts_of_a_stopped_annotator",
    stopped_annotator,
)
.takes(90)];

/// Of the programs.
const NAMESPACE: &str = "plimsoll";
const ANNOTATOR: &str = "annotator";
/// As shipped.
const REPLICAS: usize = 2;
/// The programs with the ports of each pod that are scraped.
const PROGRAMS: [(&str, usize); 4] = [
    (ANNOTATOR, 1),
    ("scheduler-extender", 1),
    ("gpushare-device-plugin", 1),
    ("node-exporter-plus", 2),
];
const ALERT: &str = "PlimsollAnnotatorNoLeader";
/// Prometheus scrapes each second; this is for a busy host.
const SCRAPED: Duration = Duration::from_secs(180);
/// The pods end, and after five seconds the alert fires.
const FIRES: Duration = Duration::from_secs(180);
/// Until a new annotator leads: its image is there, and the Lease was given back.
const ENDS: Duration = Duration::from_secs(300);

fn stopped_annotator(env: &TestEnv) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let targets = folder.path().join("targets.json");
    discover(env, &targets)?;
    let prometheus = start(env, &targets)?;
    wait_for("every program to be scraped", SCRAPED, || {
        discover(env, &targets)?;
        for (program, ports) in PROGRAMS {
            let up = query(&prometheus, &format!("up{{program=\"{program}\"}} == 1"))?.len();
            let wanted = env.program_pods(program)?.len() * ports;
            ensure!(up == wanted && up > 0, "{up} of {wanted} ports of {program} are scraped");
        }
        Ok(Some(()))
    })?;
    programs_have_the_labels_of_their_pods(env, &prometheus)?;
    wait_for("the annotator to lead", SCRAPED, || {
        let leaders = query(&prometheus, "plimsoll_annotator_leader == 1")?.len();
        Ok((leaders == 1 && alerts(&prometheus)?.is_empty()).then_some(()))
    })?;
    env.scale(ANNOTATOR, 0)?;
    let fired = wait_for("the alert to fire", FIRES, || {
        discover(env, &targets)?;
        let alert = alerts(&prometheus)?.into_iter().find(|alert| alert["state"] == "firing");
        Ok(alert)
    });
    env.scale(ANNOTATOR, REPLICAS)?;
    let fired = fired?;
    ensure!(fired["labels"]["severity"] == "warning", "{fired}");
    let runbook = "docs/monitoring.md#plimsollannotatornoleader";
    ensure!(fired["annotations"]["runbook_url"] == runbook, "{fired}");
    wait_for("the alert to end", ENDS, || {
        discover(env, &targets)?;
        Ok(alerts(&prometheus)?.is_empty().then_some(()))
    })
}

/// Each pod's series say which node and pod they are of.
fn programs_have_the_labels_of_their_pods(env: &TestEnv, prometheus: &Server) -> Result<()> {
    let series = query(prometheus, "plimsoll_build_info{program=~\".+\"}")?;
    let mut found: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for labels in series {
        ensure!(labels["namespace"] == NAMESPACE, "{labels}");
        let of_pod = (text(&labels, "pod"), text(&labels, "node"));
        found.entry(text(&labels, "program")).or_default().insert(of_pod);
    }
    for (program, _) in PROGRAMS {
        let pods = env.program_pods(program)?;
        let wanted = pods
            .iter()
            .map(|pod| (name(pod).to_owned(), node(pod).unwrap_or_default().to_owned()))
            .collect();
        let shown = found.remove(program).unwrap_or_default();
        ensure!(shown == wanted, "{program}: {shown:?} are scraped, {wanted:?} are there");
    }
    Ok(())
}

fn text(labels: &Value, label: &str) -> String {
    labels[label].as_str().unwrap_or_default().to_owned()
}

/// Writes the ports of the namespace's pods as targets, with the labels that Prometheus' discovery of pods gives them.
fn discover(env: &TestEnv, targets: &Path) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(env.client(), NAMESPACE);
    let mut found = Vec::new();
    for pod in env.block_on(pods.list(&ListParams::default()))?.items {
        let Some(ip) = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()) else {
            continue;
        };
        let mut meta = serde_json::Map::new();
        meta.insert("__meta_kubernetes_namespace".to_owned(), NAMESPACE.into());
        meta.insert("__meta_kubernetes_pod_name".to_owned(), name(&pod).into());
        meta.insert("__meta_kubernetes_pod_node_name".to_owned(), node(&pod).into());
        for (label, value) in pod.metadata.labels.iter().flatten() {
            let label = label.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            meta.insert(format!("__meta_kubernetes_pod_label_{label}"), value.as_str().into());
        }
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        for port in containers.flat_map(|container| container.ports.iter().flatten()) {
            let mut labels = meta.clone();
            let label = "__meta_kubernetes_pod_container_port_name".to_owned();
            labels.insert(label, port.name.as_deref().into());
            let address = format!("{ip}:{}", port.container_port);
            found.push(json!({"targets": [address], "labels": labels}));
        }
    }
    // In one step: Prometheus may read at any moment.
    let written = targets.with_extension("new");
    fs::write(&written, serde_json::to_string(&found)?)?;
    fs::rename(&written, targets).context("cannot write the targets")
}

/// A Prometheus with the shipped scrape configuration and rules: scrapes and rules each second, and seconds in place of
/// the minutes for which a state must last.
fn start(env: &TestEnv, targets: &Path) -> Result<Server> {
    let cluster = env.cluster()?;
    let sources = &cluster.settings().sources;
    run(&mut command(sources.join("scripts/require-prometheus.sh")))?;
    let shipped = |file: &str| {
        let path = sources.join("deploy").join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let scraped = shipped("chart/monitoring/scrape-config.yaml")?;
    let (before, rest) =
        scraped.split_once("  kubernetes_sd_configs:\n").context("no discovery")?;
    let (_, after) = rest.split_once("  relabel_configs:\n").context("no relabelling")?;
    let before = before.replace("scrape_interval: 30s", "scrape_interval: 1s");
    ensure!(before.contains("scrape_interval: 1s"), "{before}");
    let files = format!("  - files: [{}]\n    refresh_interval: 1s\n", targets.display());
    let scraped = format!("{before}  file_sd_configs:\n{files}  relabel_configs:\n{after}");
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [rules.yaml]\n\
         scrape_configs:\n{scraped}"
    );
    let mut rules = String::new();
    for line in shipped("manifests/rules.yaml")?.lines() {
        let minutes = line.trim_start().strip_prefix("for: ").and_then(|it| it.strip_suffix('m'));
        match minutes {
            Some(minutes) => rules += &format!("    for: {minutes}s\n"),
            None => rules += &format!("{line}\n"),
        }
    }
    Ok(Server::configured(&configuration, &[("rules.yaml", &rules)]))
}

/// The labels of each series that an expression gives now.
fn query(prometheus: &Server, expression: &str) -> Result<Vec<Value>> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut answer = get(prometheus, &format!("/api/v1/query?query={encoded}"))?;
    let series = answer["data"]["result"].as_array_mut().context("no result")?;
    Ok(series.iter_mut().map(|series| series["metric"].take()).collect())
}

/// The alert of an annotator that does not lead, where it is pending or fires.
fn alerts(prometheus: &Server) -> Result<Vec<Value>> {
    let mut answer = get(prometheus, "/api/v1/alerts")?;
    let alerts = answer["data"]["alerts"].take();
    let mut alerts: Vec<Value> = serde_json::from_value(alerts).context("no alerts")?;
    alerts.retain(|alert| alert["labels"]["alertname"] == ALERT);
    Ok(alerts)
}

fn get(prometheus: &Server, path: &str) -> Result<Value> {
    let answer = prometheus.get(path).context("Prometheus does not answer")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let body: Value = serde_json::from_str(body)?;
    ensure!(body["status"] == "success", "{body}");
    Ok(body)
}
