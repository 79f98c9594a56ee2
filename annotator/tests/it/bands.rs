//! The bands of nodes.

use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, Sim, Verb, node};

use crate::exporter::Exporter;
use crate::world::World;

const ON: [&str; 1] = ["--node-bands"];
const GPU: &str = "plimsoll.dev/gpu-band";
const CPU: &str = "plimsoll.dev/cpu-band";
/// Minutes between two bursts, and what the polls take.
const ROUND: usize = 36;

/// The bands for pods with GPUs and for others.
fn bands(sim: &Sim, name: &str) -> [Value; 2] {
    let labels = sim.node(name).unwrap()["metadata"]["labels"].clone();
    [labels[GPU].clone(), labels[CPU].clone()]
}

async fn becomes(sim: &Sim, name: &str, expected: [Value; 2]) {
    let what = format!("{expected:?} on {name}");
    if let Err(never) = sim.until(&what, |sim| (bands(sim, name) == expected).then_some(())).await {
        panic!("{never}; there is {:?}", bands(sim, name));
    }
}

fn cpu(percent: f64) -> String {
    json!({"cpu_usage_avg_5m": percent, "mem_usage_avg_5m": 7, "cpu_usage_max_avg_1h": percent})
        .to_string()
}

/// A policy that scores by CPU.
const POLICY: &str = "\
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
  priority: [{name: cpu_usage_avg_5m, weight: 1.0}]
";

/// Four nodes without GPUs, `a` to `d`, each with an exporter that says 40%.
async fn four() -> (World, Vec<Exporter>) {
    let world = World::new().await;
    std::fs::write(world.policy_file(), POLICY).unwrap();
    let mut exporters = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let exporter = Exporter::start(&cpu(40.0)).await;
        world.sim.put(node(name).address("127.0.0.1"));
        world.sim.change(NODES, "", name, |node| {
            node["metadata"]["annotations"]["plimsoll.dev/exporter"] =
                json!(format!("127.0.0.1:{}", exporter.port));
        });
        exporters.push(exporter);
    }
    (world, exporters)
}

fn writes(world: &World, name: &str) -> usize {
    let patches = world.sim.log().node_patches(name);
    patches.iter().filter(|request| !request.body["metadata"]["labels"].is_null()).count()
}

#[tokio::test]
async fn nodes_are_labelled_at_once_and_moved_by_their_load_in_bursts() {
    let (world, exporters) = four().await;
    exporters[0].say(&cpu(90.0));
    exporters[1].say(&cpu(10.0));
    let running = world.start_with(&ON).await;
    for name in ["a", "b", "c", "d"] {
        becomes(&world.sim, name, [Value::Null, json!("3")]).await;
    }
    running.pass_minutes(25).await;
    assert_eq!(bands(&world.sim, "a"), [Value::Null, json!("3")], "the next burst is later");
    running.pass_minutes(10).await;
    // Of 90, 10, 40 and 40% the mean is 45: 45 points above it and 35 below.
    becomes(&world.sim, "a", [Value::Null, json!("7")]).await;
    becomes(&world.sim, "b", [Value::Null, json!("0")]).await;
    // Less than half a band outside.
    becomes(&world.sim, "c", [Value::Null, json!("3")]).await;
    exporters[0].say("no JSON");
    running.pass_minutes(ROUND).await;
    running.pass_minutes(ROUND).await;
    assert_eq!(bands(&world.sim, "a"), [Value::Null, json!("7")], "its load is unknown");
    assert_eq!(["a", "b", "c", "d"].map(|name| writes(&world, name)), [2, 2, 1, 1]);
}

#[tokio::test]
async fn nodes_with_gpus_come_after_others() {
    let world = World::with_node().await;
    world.exporter.say("no JSON");
    world.sim.change(NODES, "", "a", |node| {
        let gpus = json!([{"uuid": "GPU-1", "index": 0, "model": "A", "memoryMiB": 4096, "units": 4, "healthy": true, "pods": {}}]);
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = json!(gpus.to_string());
        node["status"]["allocatable"] = json!({"cpu": "16"});
    });
    let gpus = world.annotations("a")["plimsoll.dev/gpu-cards"].clone();
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().remove("plimsoll.dev/gpu-cards");
    });
    let running = world.start_with(&ON).await;
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
    // Its device plugin starts later than its kubelet.
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = gpus;
    });
    // By the hash of the name a.
    becomes(&world.sim, "a", [json!("0"), json!("5")]).await;
    // What cannot be read moves nothing.
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = json!("{");
    });
    running.pass_minutes(ROUND).await;
    assert_eq!(bands(&world.sim, "a"), [json!("0"), json!("5")]);
    world.sim.change(NODES, "", "a", |node| {
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("plimsoll.dev/gpu-cards");
    });
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
}

#[tokio::test]
async fn without_the_flag_or_its_selector_a_nodes_bands_are_cleared_and_nothing_else() {
    let world = World::with_node().await;
    let labels = json!({GPU: "3", CPU: "4", "team": "a"});
    world.sim.change(NODES, "", "a", |node| node["metadata"]["labels"] = labels.clone());
    let _running = world.start_with(&[]).await;
    becomes(&world.sim, "a", [Value::Null, Value::Null]).await;
    assert_eq!(world.sim.node("a").unwrap()["metadata"]["labels"], json!({"team": "a"}));
    let world = World::with_node().await;
    world.sim.change(NODES, "", "a", |node| node["metadata"]["labels"] = labels.clone());
    let _running = world.launch(&["--node-bands", "--node-selector=team=b"]).await;
    becomes(&world.sim, "a", [Value::Null, Value::Null]).await;
}

#[tokio::test]
async fn a_write_that_fails_is_repeated_and_what_is_no_band_is_put_right() {
    let world = World::with_node().await;
    let failed = Fault::Answer(Failure::new(500, "InternalError", "etcd is gone"));
    world.sim.faults().next(1, Verb::Patch, NODES, failed);
    let running = world.start_with(&["--node-bands", "--exporter-port=1"]).await;
    running.pass(60).await;
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
    running.counted("plimsoll_annotator_band_writes_total{outcome=\"ok\"} 1").await;
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["labels"] = json!({CPU: "9", GPU: "0"});
    });
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
}

#[tokio::test]
async fn a_replica_that_takes_over_goes_on_from_the_bands_that_it_finds() {
    let (mut world, exporters) = four().await;
    let running = world.start_with(&ON).await;
    exporters[0].say(&cpu(90.0));
    running.pass_minutes(ROUND).await;
    becomes(&world.sim, "a", [Value::Null, json!("6")]).await;
    world.stop(running).await;
    exporters[0].say(&cpu(40.0));
    let running = world.start_with(&ON).await;
    running.pass_minutes(25).await;
    assert_eq!(bands(&world.sim, "a"), [Value::Null, json!("6")], "the next burst is later");
    running.pass_minutes(ROUND).await;
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
    assert_eq!(["a", "b"].map(|name| writes(&world, name)), [3, 1]);
}

#[tokio::test]
async fn a_refused_write_waits_and_holds_up_no_other() {
    let (world, _exporters) = four().await;
    let refused = Fault::Answer(Failure::new(403, "Forbidden", "no right"));
    world.sim.faults().next(1, Verb::Patch, NODES, refused);
    let running = world.start_with(&ON).await;
    let labelled = |sim: &Sim| -> usize {
        let names = ["a", "b", "c", "d"].into_iter();
        names.filter(|name| bands(sim, name)[1] == json!("3")).count()
    };
    world.sim.until("three nodes", |sim| (labelled(sim) == 3).then_some(())).await.unwrap();
    running.pass_minutes(ROUND).await;
    world.sim.until("all nodes", |sim| (labelled(sim) == 4).then_some(())).await.unwrap();
}

#[tokio::test]
async fn a_node_made_again_under_its_name_gets_its_own_bands() {
    let world = World::with_node().await;
    let _running = world.start_with(&["--node-bands", "--exporter-port=1"]).await;
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
    world.sim.delete(NODES, "", "a");
    world.sim.put(node("a").address("127.0.0.1"));
    becomes(&world.sim, "a", [Value::Null, json!("3")]).await;
}
