//! What one replica was asked by kube-scheduler, every replica tells.

use std::net::SocketAddr;

use api::decisions::Decisions;
use api::explain::{DecisionBasis, Explanation};
use api::shadow::Shadow;
use jiff::SignedDuration;
use serde_json::{Value, json};
use sim::{KeptAddress, Sim, pod};

use crate::rig::{POLICY, Rig, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;
const NODES: [&str; 2] = ["cool", "busy"];

/// Two replicas behind a Service that has a third address, which does not answer.
struct Cluster {
    sim: Sim,
    replicas: [Rig; 2],
    silent: KeptAddress,
    _policy: tempfile::NamedTempFile,
}

impl Cluster {
    async fn start() -> Self {
        let sim = Sim::start().await.unwrap();
        for (name, cpu) in [("cool", 0.10), ("busy", 0.80)] {
            sim.put(loaded_node(name, cpu, NOW));
        }
        let policy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&policy, POLICY).unwrap();
        let shadow = format!("--shadow-policy-file={}", policy.path().display());
        let flags = [
            "--lease-name=extender",
            "--advertise-address=127.0.0.1",
            "--replicas-service=plimsoll/extender:verbs",
            &shadow,
        ];
        let replicas = [Rig::start_with(&sim, &flags).await, Rig::start_with(&sim, &flags).await];
        let silent = KeptAddress::new().unwrap();
        for at in [replicas[0].address(), silent.address(), replicas[1].address()] {
            sim.put(slice(at));
        }
        Self { sim, replicas, silent, _policy: policy }
    }

    /// What this replica tells of the pod.
    async fn explained(&self, replica: usize, fresh: bool) -> Explanation {
        let question = json!({"namespace": "default", "name": "web", "fresh": fresh});
        let told = self.replicas[replica].post("/explain", &question).await;
        serde_json::from_value(told).unwrap()
    }

    /// Has this replica decide about the pod.
    async fn decide(&self, replica: usize, web: &Value) {
        self.replicas[replica].filter("/load-aware", web, &NODES).await;
    }

    async fn heat_cool(&self) {
        self.sim.put(loaded_node("cool", 0.90, NOW));
        let probe = json!({"metadata": {"name": "probe", "namespace": "default", "uid": "u"}});
        for rig in &self.replicas {
            rig.until("the new reading", async || {
                rig.filter("/load-aware", &probe, &["cool"]).await["NodeNames"] == json!([])
            })
            .await;
        }
    }

    /// Binds the pod, as kube-scheduler does it without an extender.
    fn place(&self, web: &Value) {
        self.sim.put(pod("web").uid(web["metadata"]["uid"].as_str().unwrap()).on("cool"));
    }
}

fn slice(at: SocketAddr) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("extender-{}", at.port()),
            "namespace": "plimsoll",
            "labels": {"kubernetes.io/service-name": "extender"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "verbs", "port": at.port()}],
        "endpoints": [{"addresses": [at.ip().to_string()], "nodeName": "cool"}],
    })
}

fn load_of_cool(told: &Explanation) -> Option<f64> {
    let cool = told.nodes.iter().find(|node| node.name == "cool").unwrap();
    cool.load.as_ref().unwrap().limits[0].reading.value
}

#[tokio::test]
async fn whichever_replica_is_asked_explains_a_placed_pod_by_its_last_decision() {
    let cluster = Cluster::start().await;
    let web = cluster.sim.put(pod("web"));
    cluster.decide(0, &web).await;
    cluster.place(&web);
    for replica in [0, 1] {
        let rig = &cluster.replicas[replica];
        rig.until("the pod's node", async || {
            cluster.explained(replica, false).await.node.as_deref() == Some("cool")
        })
        .await;
    }
    cluster.heat_cool().await;
    for replica in [0, 1] {
        let told = cluster.explained(replica, false).await;
        assert_eq!((told.basis, load_of_cool(&told)), (DecisionBasis::Decision, Some(0.10)));
        let now = cluster.explained(replica, true).await;
        assert_eq!((now.basis, load_of_cool(&now)), (DecisionBasis::Now, Some(0.90)));
    }
    // Decided about anew, by the other one.
    cluster.decide(1, &web).await;
    for replica in [0, 1] {
        let told = cluster.explained(replica, false).await;
        assert_eq!((told.basis, load_of_cool(&told)), (DecisionBasis::Decision, Some(0.90)));
    }
}

#[tokio::test]
async fn whichever_replica_is_asked_tells_the_shadows_pods_of_all_each_once() {
    let cluster = Cluster::start().await;
    let (web, shop) = (cluster.sim.put(pod("web")), cluster.sim.put(pod("shop")));
    cluster.decide(0, &web).await;
    cluster.decide(1, &shop).await;
    cluster.decide(1, &web).await;
    for rig in &cluster.replicas {
        rig.until("the pods of both", async || {
            let told: Shadow = serde_json::from_str(&rig.get("/shadow").await).unwrap();
            told.pods.iter().map(|pod| pod.pod.name.as_str()).eq(["web", "shop"])
        })
        .await;
    }
}

#[tokio::test]
async fn whichever_replica_is_asked_tells_the_last_decision_about_each_pod_of_all() {
    let cluster = Cluster::start().await;
    let (web, shop) = (cluster.sim.put(pod("web")), cluster.sim.put(pod("shop")));
    cluster.decide(0, &web).await;
    cluster.decide(1, &shop).await;
    cluster.decide(1, &web).await;
    let names = async |rig: &Rig, path: &str| {
        let told: Decisions = serde_json::from_str(&rig.get(path).await).unwrap();
        told.decisions.into_iter().map(|decided| decided.pod.name).collect::<Vec<_>>()
    };
    for rig in &cluster.replicas {
        for path in ["/v1/decisions", "/v1/pending"] {
            rig.until("the pods of both", async || names(rig, path).await == ["web", "shop"]).await;
        }
    }
    assert_eq!(names(&cluster.replicas[0], "/v1/decisions?limit=1").await, ["web"]);
    cluster.place(&web);
    for rig in &cluster.replicas {
        rig.until("one pod alone", async || names(rig, "/v1/pending").await == ["shop"]).await;
    }
}

/// Each asks the other while it is asked itself.
#[tokio::test]
async fn replicas_that_are_asked_at_once_tell_what_all_know_and_name_one_that_is_silent() {
    let cluster = Cluster::start().await;
    let (web, shop) = (cluster.sim.put(pod("web")), cluster.sim.put(pod("shop")));
    cluster.decide(0, &web).await;
    cluster.decide(1, &shop).await;
    let [first, second] = &cluster.replicas;
    let silent = cluster.silent.address().to_string();
    for path in ["/v1/decisions", "/v1/pending", "/shadow"] {
        first
            .until("both pods, asked at once", async || {
                let (one, other) = tokio::join!(first.get(path), second.get(path));
                [one, other].iter().all(|told| {
                    told.contains("\"web\"")
                        && told.contains("\"shop\"")
                        && told.contains(&format!("\"missing\":[\"{silent}\"]"))
                })
            })
            .await;
    }
}
