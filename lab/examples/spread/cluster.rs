//! The objects of the API server: nodes without kubelets, their other pods, and the replicas of a service.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use placement::bands::Band;
use placement::load::typical_load;
use placement::policy::{LoadPolicy, MetricMeaning};
use placement::reading::{Reading, ReadingCodec};
use placement::resources::Resource;
use placement::units::{MetricName, Ratio};
use reqwest::{Client, Method};
use rustls::crypto::ring;
use serde_json::{Map, Value, json};

use crate::case::{Constraint, Node, requested};

/// A node's CPU, in thousandths of a core.
const CPU: f64 = 16_000.0;
/// A node's memory, in MiB.
const MEMORY: f64 = 65_536.0;
/// The other pods of a node share what they request: none of them uses a quarter of the node.
const OTHERS: u32 = 4;
/// Services that take turns: no pod of the last run has the labels of this one's.
const SERVICES: usize = 8;
/// Requests at once. A ReplicaSet's controller creates pods at once too.
const AT_ONCE: usize = 16;
/// The time after which a pod counts as one that waits. kube-scheduler binds a hundred pods a second and more.
const WAITS_AFTER: Duration = Duration::from_secs(20);

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";

/// The API server.
pub(crate) struct Cluster {
    client: Client,
    url: String,
    token: String,
    /// What nodes are annotated with.
    metrics: Vec<MetricName>,
    /// The UIDs of the ReplicaSets, one for each Service.
    owners: Vec<String>,
    runs: usize,
}

/// Where the replicas of one run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The most on one node.
    pub(crate) most: usize,
    /// Nodes with a replica.
    pub(crate) used: usize,
    /// The most in one zone; 0 without zones.
    pub(crate) most_in_zone: usize,
    /// Replicas that were not bound in time.
    pub(crate) waiting: usize,
}

impl Cluster {
    /// Creates the Services, and the ReplicaSets that own the replicas. Nodes get the metrics that `policies` name.
    pub(crate) async fn new(
        url: &str,
        token: &str,
        policies: &[LoadPolicy],
    ) -> anyhow::Result<Self> {
        // There is one already where this was called before.
        let _ = ring::default_provider().install_default();
        let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build()?;
        let mut metrics: Vec<MetricName> = Vec::new();
        for rule in policies.iter().flat_map(|policy| &policy.sync) {
            if !metrics.contains(&rule.metric) {
                metrics.push(rule.metric.clone());
            }
        }
        let (url, token, owners) = (url.to_owned(), token.to_owned(), Vec::new());
        let mut cluster = Self { client, url, token, metrics, owners, runs: 0 };
        for service in 0..SERVICES {
            let name = format!("web-{service}");
            let labels = json!({ "app": name });
            let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name},
                "spec": {"selector": labels, "ports": [{"port": 80}]}});
            cluster.create("/api/v1/namespaces/default/services", &object).await?;
            let containers = json!([{"name": "web", "image": "none"}]);
            let object = json!({"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": name},
                "spec": {"replicas": 0, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}});
            let made =
                cluster.create("/apis/apps/v1/namespaces/default/replicasets", &object).await?;
            cluster.owners.push(text(&made, "/metadata/uid")?.to_owned());
        }
        Ok(cluster)
    }

    /// Replaces all nodes and pods by these nodes with their other pods, and returns the number of pods.
    pub(crate) async fn set_nodes(&self, nodes: &[Node]) -> anyhow::Result<usize> {
        self.delete_all(PODS, "").await?;
        self.delete_all(NODES, "").await?;
        let now = Timestamp::now();
        let typical = [Node::cpu, Node::memory].map(|load| {
            let mut loads: Vec<f64> = nodes.iter().map(load).collect();
            typical_load(&mut loads)
        });
        let object = |node: &Node| {
            let above = (node.cpu() - typical[0]).max(node.memory() - typical[1]);
            self.node(node, Band::of_cpu(Band::MIDDLE, Some(above), None), now)
        };
        let objects: Vec<Value> = nodes.iter().map(object).collect();
        self.create_all(NODES, &objects).await?;
        let others: Vec<Value> = nodes.iter().flat_map(other_pods).collect();
        self.create_all(PODS, &others).await?;
        Ok(others.len())
    }

    /// Creates the replicas of a service, as many as there are nodes, and deletes them once they are placed.
    pub(crate) async fn place(
        &mut self,
        scheduler: &str,
        nodes: &[Node],
        constraint: Constraint,
        percent: u32,
    ) -> anyhow::Result<Placed> {
        self.runs += 1;
        let service = self.runs % SERVICES;
        let pods: Vec<Value> = (0..nodes.len())
            .map(|number| {
                replica(number, service, &self.owners[service], scheduler, constraint, percent)
            })
            .collect();
        self.create_all(PODS, &pods).await?;
        let selector = format!("labelSelector=app%3Dweb-{service}");
        let placed = self.wait_for_bindings(&selector, nodes).await?;
        self.delete_all(PODS, &selector).await?;
        Ok(placed)
    }

    async fn wait_for_bindings(&self, selector: &str, nodes: &[Node]) -> anyhow::Result<Placed> {
        let start = Instant::now();
        loop {
            let pods = self.list(PODS, selector).await?;
            let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
            for node in pods.iter().filter_map(|pod| pod.pointer("/spec/nodeName")?.as_str()) {
                *by_node.entry(node).or_default() += 1;
            }
            let waiting = pods.len() - by_node.values().sum::<usize>();
            if waiting > 0 && start.elapsed() < WAITS_AFTER {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let mut by_zone: BTreeMap<&str, usize> = BTreeMap::new();
            for node in nodes {
                if let (Some(zone), Some(pods)) = (node.zone, by_node.get(node.name.as_str())) {
                    *by_zone.entry(zone).or_default() += pods;
                }
            }
            return Ok(Placed {
                most: by_node.values().copied().max().unwrap_or(0),
                used: by_node.len(),
                most_in_zone: by_zone.values().copied().max().unwrap_or(0),
                waiting,
            });
        }
    }

    /// Pods look at its band where the policy of node bands is in force.
    fn node(&self, node: &Node, band: Band, now: Timestamp) -> Value {
        let mut labels = Map::new();
        labels.insert("plimsoll.dev/cpu-band".to_owned(), band.to_string().into());
        labels.insert("kubernetes.io/hostname".to_owned(), node.name.clone().into());
        if let Some(zone) = node.zone {
            labels.insert("topology.kubernetes.io/zone".to_owned(), zone.into());
        }
        let mut annotations = Map::new();
        for metric in &self.metrics {
            let used = match MetricMeaning::of(metric).resource {
                Some(Resource::Memory) => node.memory(),
                _ => node.cpu(),
            };
            if let Some(used) = Ratio::new(used) {
                let reading = ReadingCodec::default().encode(&Reading::new(used, now));
                annotations.insert(metric.as_str().to_owned(), reading.into());
            }
        }
        let room =
            json!({"cpu": format!("{CPU}m"), "memory": format!("{MEMORY}Mi"), "pods": "250"});
        json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": node.name, "labels": labels, "annotations": annotations},
            "status": {"capacity": room, "allocatable": room,
                "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    async fn list(&self, path: &str, query: &str) -> anyhow::Result<Vec<Value>> {
        let mut list = self.ask(Method::GET, path, query, None).await?;
        match list.pointer_mut("/items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => anyhow::bail!("{path}: no list"),
        }
    }

    /// Returns once they are gone.
    async fn delete_all(&self, path: &str, query: &str) -> anyhow::Result<()> {
        let at_once = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        self.ask(Method::DELETE, path, query, Some(&at_once)).await?;
        while !self.list(path, query).await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn create_all(&self, path: &str, objects: &[Value]) -> anyhow::Result<()> {
        let created = stream::iter(objects).map(|object| self.create(path, object));
        created.buffered(AT_ONCE).try_for_each(async |_| Ok(())).await
    }

    async fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, "", Some(object)).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let url = format!("{}{path}?{query}", self.url);
        let mut request = self.client.request(method, &url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{url}: {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }
}

fn text<'a>(object: &'a Value, path: &str) -> anyhow::Result<&'a str> {
    object.pointer(path).and_then(Value::as_str).with_context(|| format!("no {path} in {object}"))
}

/// The pods that made the node's load. They were bound without a scheduler, so readings show them.
fn other_pods(node: &Node) -> Vec<Value> {
    let share = 1.0 / f64::from(OTHERS);
    let requests = requests(requested(node.cpu()) * share, requested(node.memory()) * share);
    let pod = |number: u32| {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": format!("other-{}-{number}", node.name), "labels": {"app": "other"}},
            "spec": {"nodeName": node.name, "containers": [
                {"name": "main", "image": "none", "resources": {"requests": requests}}]}})
    };
    (0..OTHERS).map(pod).collect()
}

fn requests(cpu: f64, memory: f64) -> Value {
    json!({"cpu": format!("{:.0}m", cpu * CPU), "memory": format!("{:.0}Mi", memory * MEMORY)})
}

fn replica(
    number: usize,
    service: usize,
    owner: &str,
    scheduler: &str,
    constraint: Constraint,
    percent: u32,
) -> Value {
    let name = format!("web-{service}");
    let size = f64::from(percent) / 100.0;
    let mut pod = json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": format!("{name}-{number}"), "labels": {"app": name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
                "uid": owner, "controller": true}]},
        "spec": {"schedulerName": scheduler, "containers": [
            {"name": "web", "image": "none", "resources": {"requests": requests(size, size)}}]}});
    let selector = json!({"matchLabels": {"app": name}});
    let hostname = "kubernetes.io/hostname";
    match constraint {
        Constraint::None => {}
        Constraint::Spread => {
            pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": hostname,
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]);
        }
        Constraint::AntiAffinity => {
            let term = json!({"topologyKey": hostname, "labelSelector": selector});
            let preferred = json!([{"weight": 100, "podAffinityTerm": term}]);
            pod["spec"]["affinity"] = json!({"podAntiAffinity":
                {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
        }
    }
    pod
}
