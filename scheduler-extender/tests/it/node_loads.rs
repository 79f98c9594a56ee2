//! Readings in NodeLoads decide as annotations do, and annotations then decide nothing.

use clap::Parser;
use daemon::{Causes, Context};
use jiff::{SignedDuration, Timestamp};
use scheduler_extender::{Args, app};
use serde_json::{Value, json};
use sim::{NODE_LOADS, NODES, Sim, node, pod};

use crate::rig::{POLICY, Rig, loaded_node};

const IN_NODE_LOADS: &str = "--readings-in=nodeloads";
const FRESH: SignedDuration = SignedDuration::from_secs(30);

fn put(sim: &Sim, node: &str, value: &str, age: SignedDuration) {
    let time = (Timestamp::now() - age).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    sim.put(json!({
        "apiVersion": "plimsoll.dev/v1alpha1", "kind": "NodeLoad", "metadata": {"name": node},
        "readings": {"cpu_usage_avg_5m": {"value": value, "time": time}},
    }));
}

/// The nodes that Filter lets pass.
async fn passing(rig: &Rig, names: &[&str]) -> Value {
    let pod: Value = pod("p").into();
    rig.filter("/load-aware", &pod, names).await["NodeNames"].clone()
}

#[tokio::test]
async fn a_hot_node_load_rejects_its_node_until_it_cools_or_is_gone() {
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b"] {
        sim.put(node(name));
    }
    put(&sim, "a", "0.90000", FRESH);
    let rig = Rig::start_with(&sim, &[IN_NODE_LOADS]).await;
    let names = ["a", "b"];
    assert_eq!(passing(&rig, &names).await, json!(["b"]));
    put(&sim, "a", "0.30000", FRESH);
    rig.until("a passes", async || passing(&rig, &names).await == json!(["a", "b"])).await;
    put(&sim, "b", "0.90000", FRESH);
    rig.until("b is hot", async || passing(&rig, &names).await == json!(["a"])).await;
    sim.delete(NODE_LOADS, "", "b");
    rig.until("b passes", async || passing(&rig, &names).await == json!(["a", "b"])).await;
}

#[tokio::test]
async fn a_node_load_that_is_stale_or_not_believed_never_rejects_its_node() {
    let sim = Sim::start().await.unwrap();
    let names = ["stale", "ahead", "percent", "odd"];
    for name in names {
        sim.put(node(name));
    }
    put(&sim, "stale", "0.90000", SignedDuration::from_mins(9));
    put(&sim, "ahead", "0.90000", SignedDuration::from_mins(-9));
    put(&sim, "percent", "90", FRESH);
    put(&sim, "odd", "much", FRESH);
    let rig = Rig::start_with(&sim, &[IN_NODE_LOADS]).await;
    assert_eq!(passing(&rig, &names).await, json!(names));
    let metrics = rig.context.metrics().unwrap();
    for cause in ["ahead", "not-a-fraction", "malformed"] {
        let line = format!("extender_refused_readings_total{{cause=\"{cause}\"}} 1");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn annotations_are_not_read_beside_node_loads_nor_these_beside_annotations() {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("a", 0.9, FRESH));
    sim.put(node("b"));
    put(&sim, "b", "0.90000", FRESH);
    let names = ["a", "b"];
    let rig = Rig::start_with(&sim, &[IN_NODE_LOADS]).await;
    assert_eq!(passing(&rig, &names).await, json!(["a"]));
    let rig = Rig::start(&sim).await;
    assert_eq!(passing(&rig, &names).await, json!(["b"]));
}

#[tokio::test]
async fn a_heartbeat_of_the_node_keeps_the_readings_of_its_node_load() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    put(&sim, "a", "0.90000", FRESH);
    let rig = Rig::start_with(&sim, &[IN_NODE_LOADS]).await;
    sim.change(NODES, "", "a", |node| node["metadata"]["labels"]["beat"] = "1".into());
    sim.put(node("b"));
    rig.until("b is known", async || rig.context.metrics().unwrap().contains("extender_nodes 2"))
        .await;
    assert_eq!(passing(&rig, &["a", "b"]).await, json!(["b"]));
}

#[tokio::test]
async fn without_the_definition_the_extender_names_the_command_and_does_not_start() {
    let sim = Sim::start().await.unwrap();
    sim.stop_serving(NODE_LOADS);
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    sim.write_kubeconfig(&path("kubeconfig")).unwrap();
    std::fs::write(path("policy.yaml"), POLICY).unwrap();
    let mut args = Args::parse_from(["scheduler-extender", IN_NODE_LOADS]);
    args.listen_address = "127.0.0.1:0".parse().unwrap();
    args.api.kubeconfig = Some(path("kubeconfig"));
    args.load.policy_file = path("policy.yaml");
    let error = app::start(args, &Context::new(daemon::program!())).await.unwrap_err();
    let error = Causes(error.as_ref()).to_string();
    assert!(error.contains("kubectl apply -f deploy/components/nodeloads/crd.yaml"), "{error}");
}
