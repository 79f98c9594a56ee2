//! Readings in NodeLoads: what is written there, and what is still written on Nodes.

use serde_json::{Value, json};
use sim::{NODE_LOADS, NODES, PODS, Verb, node, pod};

use crate::world::{CALM, POLICY, Running, World};

const IN_NODE_LOADS: &str = "--readings-in=nodeloads";
const COOLED_AT: &str = "plimsoll.dev/cooled-at";

fn load(world: &World, node: &str) -> Value {
    world.sim.get(NODE_LOADS, "", node).unwrap_or_default()
}

fn cpu(world: &World) -> Value {
    load(world, "a")["readings"]["cpu_usage_avg_5m"]["value"].clone()
}

fn applied(world: &World) -> usize {
    world.sim.log().of(Verb::Patch, NODE_LOADS).len()
}

/// Under a policy with a limit of 0.8 for CPU, polled every 20 s.
async fn with_limit(flags: &[&str]) -> (World, Running) {
    let world = World::with_node().await;
    let limit = "  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.8}]\n  hotValue";
    let policy = POLICY.replace("  hotValue", limit).replace("3m", "20s");
    std::fs::write(world.policy_file(), policy).unwrap();
    let running = world.start_with(&[&[IN_NODE_LOADS], flags].concat()).await;
    (world, running)
}

#[tokio::test]
async fn one_call_makes_the_node_load_and_the_node_is_not_written() {
    let world = World::with_node().await;
    for i in 0..5 {
        world.sim.put(pod(&format!("p{i}")).on("a").scheduled_at("2026-11-20T08:59:00Z"));
    }
    let running = world.start_with(&[IN_NODE_LOADS]).await;
    let time = "2026-11-20T09:00:00Z";
    let found = load(&world, "a");
    let readings = json!({
        "cpu_usage_avg_5m": {"value": "0.63012", "time": time},
        "mem_usage_avg_5m": {"value": "0.07000", "time": time},
        "cpu_usage_max_avg_1h": {"value": "1.00000", "time": time},
    });
    assert_eq!(found["readings"], readings);
    let uid = world.sim.node("a").unwrap()["metadata"]["uid"].clone();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid}]);
    assert_eq!(found["metadata"]["ownerReferences"], owner);
    let applied = world.sim.log().of(Verb::Patch, NODE_LOADS);
    assert_eq!(applied.len(), 1);
    assert_eq!(applied[0].content_type, "application/apply-patch+yaml");
    assert_eq!((world.patches("a"), world.annotations("a")), (0, Value::Null));
    let metrics = running.metrics();
    assert!(metrics.contains("annotator_writes_total{reason=\"first\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn node_loads_that_are_there_count_as_written_after_a_restart() {
    let mut world = World::with_node().await;
    let running = world.start_with(&[IN_NODE_LOADS]).await;
    world.stop(running).await;
    let running = world.start_with(&[IN_NODE_LOADS]).await;
    running.pass(60).await;
    assert_eq!(applied(&world), 1);
}

#[tokio::test]
async fn readings_from_before_leave_the_node_once_its_node_load_is_written() {
    let world = World::new().await;
    let old = "0.90000,2026-11-20T08:58:00Z";
    let old = node("a")
        .address("127.0.0.1")
        .annotation("cpu_usage_avg_5m", old)
        .annotation("node_hot_value", "3,2026-11-20T08:58:00Z")
        // A metric that the policy does not name, another program's key, and no reading.
        .annotation("disk_usage_avg_5m", old)
        .annotation("plimsoll.dev/exporter", format!("127.0.0.1:{}", world.exporter.port))
        .annotation("mem_usage_avg_5m", "not ours");
    world.sim.put(old);
    let running = world.start_with(&[IN_NODE_LOADS, "--burst-interval=45s"]).await;
    assert_eq!((applied(&world), world.patches("a")), (1, 0));
    running.pass(45).await;
    assert_eq!(world.patches("a"), 1);
    let keys: Vec<String> = world.annotations("a").as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["disk_usage_avg_5m", "mem_usage_avg_5m", "plimsoll.dev/exporter"]);
    // Another program's annotator goes on writing one: there is no war about it.
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["annotations"]["cpu_usage_avg_5m"] = "0.1,2026-11-20T09:01:00Z".into();
    });
    running.pass_minutes(10).await;
    assert_eq!(world.patches("a"), 1);
}

#[tokio::test]
async fn a_node_that_cools_is_noted_on_the_node_a_second_later_and_one_that_heats_is_not() {
    let (world, running) = with_limit(&["--burst-interval=45s", "--dead-band=0.05"]).await;
    world.exporter.say(&CALM.replace("63.012", "81"));
    running.pass(25).await;
    assert_eq!((cpu(&world), world.patches("a")), ("0.81000".into(), 0));
    world.exporter.say(&CALM.replace("63.012", "79"));
    for _ in 0..25 {
        running.pass(1).await;
    }
    assert_eq!((cpu(&world), world.patches("a")), ("0.79000".into(), 1));
    let written = load(&world, "a")["readings"]["cpu_usage_avg_5m"]["time"].clone();
    let noted = world.annotations("a")[COOLED_AT].clone();
    assert!(noted.as_str() > written.as_str(), "{noted}, {written}");
    let metrics = running.metrics();
    assert!(metrics.contains("annotator_writes_total{reason=\"cooled\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_node_that_hovers_around_its_limit_is_noted_at_most_each_15_seconds() {
    let (world, running) = with_limit(&[]).await;
    std::fs::write(
        world.policy_file(),
        std::fs::read_to_string(world.policy_file()).unwrap().replace("20s", "2s"),
    )
    .unwrap();
    for second in 0..120 {
        let value = if second / 2 % 2 == 0 { "81" } else { "79" };
        world.exporter.say(&CALM.replace("63.012", value));
        running.pass(1).await;
    }
    let notes = world.patches("a");
    assert!((2..=9).contains(&notes), "{notes}");
}

#[tokio::test]
async fn a_note_that_fails_is_written_later() {
    let (world, running) = with_limit(&[]).await;
    world.exporter.say(&CALM.replace("63.012", "81"));
    running.pass(25).await;
    world.exporter.say(&CALM.replace("63.012", "79"));
    let internal = sim::Failure::internal("etcdserver: request timed out");
    world.sim.faults().next(1, Verb::Patch, NODES, sim::Fault::Answer(internal));
    for _ in 0..60 {
        running.pass(1).await;
    }
    // The one that fails, the same again, and the second note.
    assert_eq!(world.patches("a"), 3);
    assert!(world.annotations("a")[COOLED_AT].is_string());
}

#[tokio::test]
async fn the_share_of_cards_stays_an_annotation_of_the_node() {
    let world = World::new().await;
    let card = json!([{
        "uuid": "GPU-0", "index": 0, "model": "NVIDIA A10", "memoryMiB": 16384, "units": 16,
        "healthy": true, "pods": {},
    }]);
    world
        .sim
        .put(node("a").address("127.0.0.1").annotation("plimsoll.dev/gpu-cards", card.to_string()));
    let claim = json!({"main": {"GPU-0": 3}}).to_string();
    let pod = pod("p").uid("p").asking("aliyun.com/gpu-mem", 3).on("a");
    world.sim.put(pod.annotation("plimsoll.dev/gpu-claim", claim));
    let running = world.start_with(&[IN_NODE_LOADS]).await;
    running.pass(10).await;
    let annotations = world.annotations("a");
    let share = annotations["plimsoll.dev/gpu-share"].as_str().unwrap();
    assert!(share.contains("\"allocated\":3"), "{share}");
    assert_eq!(annotations.as_object().unwrap().len(), 2, "{annotations}");
    // Readings do not take it along.
    world.sim.log().clear();
    running.pass_minutes(30).await;
    assert!(applied(&world) >= 3 && world.patches("a") == 0);
    world.sim.delete(PODS, "default", "p");
    running.pods_changed(1).await;
    running.pass(10).await;
    assert_eq!(world.patches("a"), 1);
}

#[tokio::test]
async fn without_the_definition_the_annotator_names_the_command_and_does_not_start() {
    let world = World::with_node().await;
    world.sim.stop_serving(NODE_LOADS);
    let error = world.refused_with(world.args(&[IN_NODE_LOADS])).await;
    assert_eq!(
        error,
        "the API server has no NodeLoads: kubectl apply -f deploy/components/nodeloads/crd.yaml, \
         or give --readings-in=annotations"
    );
}

#[tokio::test]
async fn leftovers_that_another_removes_meanwhile_leave_nothing_to_do() {
    let world = World::new().await;
    let old = node("a")
        .address("127.0.0.1")
        .annotation("cpu_usage_avg_5m", "0.90000,2026-11-20T08:58:00Z");
    let exporter = format!("127.0.0.1:{}", world.exporter.port);
    world.sim.put(old.annotation("plimsoll.dev/exporter", exporter));
    let running = world.start_with(&[IN_NODE_LOADS, "--burst-interval=45s"]).await;
    assert_eq!((applied(&world), world.patches("a")), (1, 0));
    running.nodes_changed(1).await;
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().remove("cpu_usage_avg_5m");
    });
    running.nodes_changed(2).await;
    running.pass_minutes(10).await;
    assert!(applied(&world) >= 2 && world.patches("a") == 0);
}

#[tokio::test]
async fn a_node_load_that_was_deleted_is_made_again_with_the_next_poll() {
    let world = World::with_node().await;
    let running = world.start_with(&[IN_NODE_LOADS]).await;
    running.nodes_changed(1).await;
    world.sim.delete(NODE_LOADS, "", "a");
    running.nodes_changed(2).await;
    running.pass_minutes(4).await;
    assert!(load(&world, "a")["readings"].is_object());
}

#[tokio::test]
async fn a_node_that_cools_is_noted_also_where_the_answer_to_its_write_was_lost() {
    let (world, running) = with_limit(&["--burst-interval=45s", "--dead-band=0.05"]).await;
    world.exporter.say(&CALM.replace("63.012", "81"));
    running.pass(25).await;
    assert_eq!((cpu(&world), world.patches("a")), ("0.81000".into(), 0));
    world.exporter.say(&CALM.replace("63.012", "79"));
    world.sim.faults().next(1, Verb::Patch, NODE_LOADS, sim::Fault::DropReply);
    for _ in 0..30 {
        running.pass(1).await;
    }
    assert_eq!(cpu(&world), "0.79000");
    assert!(world.annotations("a")[COOLED_AT].is_string());
}
