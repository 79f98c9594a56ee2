//! The `gpu-share` annotation.

use serde_json::{Map, Value, json};
use sim::{NODES, NodeBuilder, PODS, PodBuilder, Verb, node, pod};

use crate::exporter::{Answer, detail, detailed};
use crate::world::{Running, World};

const SHARE: &str = "plimsoll.dev/gpu-share";

fn gpu_node() -> NodeBuilder {
    let gpus = [("GPU-0", 0), ("GPU-1", 1)].map(|(uuid, index)| {
        json!({
            "uuid": uuid, "index": index, "model": "NVIDIA A10", "memoryMiB": 16384, "units": 16,
            "healthy": true, "pods": {},
        })
    });
    let gpus = json!(gpus).to_string();
    node("a").address("127.0.0.1").annotation("plimsoll.dev/gpu-cards", gpus)
}

fn gpu_pod(name: &str, gpu: &str, units: u32) -> PodBuilder {
    let claim = json!({"main": {gpu: units}}).to_string();
    let pod = pod(name).uid(name).asking("aliyun.com/gpu-mem", units);
    pod.on("a").annotation("plimsoll.dev/gpu-claim", claim)
}

fn share(world: &World) -> Value {
    let text = world.annotations("a")[SHARE].clone();
    text.as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

fn allocated(world: &World) -> Vec<u64> {
    let share = share(world);
    let gpus = share["cards"].as_array().unwrap();
    gpus.iter().map(|gpu| gpu["allocated"].as_u64().unwrap()).collect()
}

/// A GPU node with one pod whose share is written; the API server's log is empty.
async fn settled() -> (World, Running) {
    let world = World::new().await;
    world.sim.put(gpu_node());
    world.sim.put(gpu_pod("p", "GPU-0", 3));
    let running = world.start().await;
    running.pass(10).await;
    world.sim.log().clear();
    (world, running)
}

#[tokio::test]
async fn the_share_has_units_and_allocation_of_each_gpu_and_nothing_unmeasured() {
    let (world, _running) = settled().await;
    let share = share(&world);
    let gpus = json!([
        {"uuid": "GPU-0", "units": 16, "allocated": 3},
        {"uuid": "GPU-1", "units": 16, "allocated": 0},
    ]);
    assert_eq!(share["cards"], gpus);
    assert!(share["time"].as_str().unwrap().starts_with("2026-11-20T09:00:"));
}

#[tokio::test]
async fn pods_bound_in_a_burst_are_one_patch() {
    let (world, running) = settled().await;
    (0..5).for_each(|i| drop(world.sim.put(gpu_pod(&format!("q{i}"), "GPU-1", 2))));
    world.sim.delete(PODS, "default", "p");
    running.pods_changed(6).await;
    running.pass(9).await;
    assert_eq!(world.patches("a"), 0);
    running.pass(1).await;
    assert_eq!(allocated(&world), [0, 10]);
    assert_eq!(world.patches("a"), 1);
    let patch = &world.sim.log().node_patches("a")[0].body["metadata"]["annotations"];
    assert_eq!(patch.as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn ended_pods_hold_nothing() {
    let (world, running) = settled().await;
    world.sim.put(gpu_pod("p", "GPU-0", 3).phase("Succeeded"));
    running.pods_changed(1).await;
    running.pass(10).await;
    assert_eq!(allocated(&world), [0, 0]);
}

#[tokio::test]
async fn a_restart_does_not_write_the_share_again() {
    let (mut world, running) = settled().await;
    world.stop(running).await;
    let running = world.start().await;
    running.pass(15).await;
    assert_eq!(world.sim.log().of(Verb::Patch, NODES).len(), 0);
}

#[tokio::test]
async fn a_node_that_lost_its_gpus_loses_the_annotation() {
    let (world, running) = settled().await;
    assert!(!running.due_within(10));
    world.sim.change(NODES, "", "a", |node| {
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("plimsoll.dev/gpu-cards");
    });
    running.becomes_due_within(10).await;
    running.pass(10).await;
    assert!(share(&world).is_null(), "{}", world.annotations("a"));
}

/// An answer with the node's load and measurements of the first GPU.
fn measured(utilisation: f64, used_bytes: f64) -> Answer {
    let values = [
        ("cpu_usage_avg_5m", detail(&json!(7), 1.0)),
        ("gpu_usage_active", detail(&json!(1), 1.0)),
        ("gpu_0_usage_active", detail_of_gpu(utilisation)),
        ("gpu_0_mem_bytes_active", detail_of_gpu(used_bytes)),
    ];
    let values = values.into_iter().map(|(metric, detail)| (metric.to_owned(), detail));
    Answer::Detailed(detailed(&values.collect::<Map<String, Value>>()))
}

#[tokio::test]
async fn measurements_of_a_gpu_are_written_together_with_the_nodes_load() {
    let (world, running) = settled().await;
    world.exporter.set(measured(60.0, 4_294_967_296.0));
    running.pass_minutes(5).await;
    let share = share(&world);
    let first =
        json!({"uuid": "GPU-0", "units": 16, "allocated": 3, "usedMiB": 4096, "utilisation": 0.6});
    assert_eq!(share["cards"], json!([first, {"uuid": "GPU-1", "units": 16, "allocated": 0}]));
    let patches = world.sim.log().node_patches("a");
    for patch in patches {
        let annotations = patch.body["metadata"]["annotations"].as_object().unwrap();
        assert_ne!(annotations.len(), 1, "a measurement is no reason for a patch");
    }
}

/// A value of the GPU GPU-0.
fn detail_of_gpu(value: f64) -> Value {
    let mut detail = detail(&json!(value), 1.0);
    detail["instance"] = json!("GPU-0");
    detail
}
