//! The taint of nodes that are over a limit.

use std::time::Duration;

use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, Sim, Verb, WRITTEN_EVENTS};

use crate::world::{Running, World};

const KEY: &str = "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot";
const ON: [&str; 1] = ["--taint-hot-nodes=PreferNoSchedule"];

/// CPU to 65%. A reading counts for 8 minutes.
const POLICY: &str = "\
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
";

async fn world() -> World {
    let mut world = World::with_node().await;
    world.taint_after = Some(Duration::ZERO);
    std::fs::write(world.policy_file(), POLICY).unwrap();
    world
}

fn cpu(percent: f64) -> String {
    json!({ "cpu_usage_avg_5m": percent }).to_string()
}

fn ours(effect: &str) -> Value {
    json!({"key": KEY, "value": "plimsoll-hot", "effect": effect})
}

fn taints(sim: &Sim) -> Value {
    match sim.node("a").unwrap()["spec"]["taints"].clone() {
        Value::Null => json!([]),
        taints => taints,
    }
}

async fn becomes(world: &World, expected: Value) {
    let what = expected.to_string();
    let wait = world.sim.until(&what, |sim| (taints(sim) == expected).then_some(()));
    if let Err(never) = wait.await {
        panic!("{never}; there is {}", taints(&world.sim));
    }
}

/// The note of the event about a taint that was cleared, once it is written.
async fn why_cleared(world: &World) -> String {
    let found = world.sim.until("the event", |sim| {
        let mut events = sim.list(WRITTEN_EVENTS).into_iter();
        events.find(|event| event["reason"] == "HotNodeTaintCleared")
    });
    found.await.unwrap()["note"].as_str().unwrap().to_owned()
}

/// Lets the exporter say this, and time pass until it is written.
async fn load(world: &World, running: &Running, percent: f64) {
    world.exporter.say(&cpu(percent));
    running.pass(240).await;
}

#[tokio::test]
async fn a_node_over_a_limit_carries_a_taint_until_it_is_below_it_by_the_margin() {
    let world = world().await;
    let other = json!({"key": "team", "value": "a", "effect": "NoSchedule", "timeAdded": null});
    world.sim.change(NODES, "", "a", |node| node["spec"]["taints"] = json!([other]));
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&ON).await;
    becomes(&world, json!([other, ours("PreferNoSchedule")])).await;
    running.counted("plimsoll_annotator_nodes_tainted 1").await;
    load(&world, &running, 63.0).await;
    assert_eq!(taints(&world.sim), json!([other, ours("PreferNoSchedule")]));
    load(&world, &running, 50.0).await;
    becomes(&world, json!([other])).await;
    running.counted("plimsoll_annotator_nodes_tainted 0").await;
    let why = why_cleared(&world).await;
    assert!(why.ends_with("the load is below every limit."), "{why}");
}

#[tokio::test]
async fn a_silent_exporter_ends_the_reason_once_the_reading_is_stale() {
    let world = world().await;
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&ON).await;
    becomes(&world, json!([ours("PreferNoSchedule")])).await;
    world.exporter.say("no JSON");
    running.pass_minutes(7).await;
    assert_eq!(taints(&world.sim), json!([ours("PreferNoSchedule")]));
    running.pass_minutes(2).await;
    becomes(&world, json!([])).await;
    let why = why_cleared(&world).await;
    assert!(why.contains("cpu_usage_avg_5m is missing or stale"), "{why}");
}

#[tokio::test]
async fn an_earlier_processes_taint_is_cleared_under_any_key() {
    let world = world().await;
    world.exporter.say(&cpu(80.0));
    let old = json!({"key": "example.com/old", "value": "plimsoll-hot", "effect": "NoSchedule"});
    world.sim.change(NODES, "", "a", |node| node["spec"]["taints"] = json!([old]));
    let running = world.start_with(&[]).await;
    becomes(&world, json!([])).await;
    running.counted("plimsoll_annotator_nodes_tainted 0").await;
    let writes = "plimsoll_annotator_taint_writes_total{effect=\"none\",outcome=\"ok\"} 1";
    running.counted(writes).await;
}

#[tokio::test]
async fn another_key_or_effect_replaces_the_one_that_is_found() {
    let world = world().await;
    world.exporter.say(&cpu(80.0));
    let old = json!({"key": "example.com/old", "value": "plimsoll-hot", "effect": "NoSchedule"});
    world.sim.change(NODES, "", "a", |node| node["spec"]["taints"] = json!([old]));
    let running = world.start_with(&["--taint-hot-nodes=NoSchedule"]).await;
    // The old one was cleared before the first poll, and there is a pause before the next write.
    running.pass(20).await;
    becomes(&world, json!([ours("NoSchedule")])).await;
}

#[tokio::test]
async fn a_taint_of_the_same_key_that_an_operator_set_stays_when_the_node_heats_and_cools() {
    let world = world().await;
    let theirs = json!({"key": KEY, "value": "by-hand", "effect": "NoSchedule"});
    world.sim.change(NODES, "", "a", |node| node["spec"]["taints"] = json!([theirs]));
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&["--taint-hot-nodes=NoSchedule"]).await;
    running.pass(20).await;
    load(&world, &running, 50.0).await;
    assert_eq!(taints(&world.sim), json!([theirs]));
}

#[tokio::test]
async fn a_write_that_another_writer_forestalled_loses_nothing() {
    let mut world = world().await;
    world.taint_after = None;
    std::fs::write(world.policy_file(), POLICY.replace("3m", "1h")).unwrap();
    world.exporter.say(&cpu(80.0));
    // The first patch is that of the readings; the second is held up until another taint is set.
    let running = world.start_with(&["--taint-hot-nodes=NoSchedule"]).await;
    running.nodes_changed(1).await;
    world.sim.faults().next(1, Verb::Patch, NODES, Fault::Hang);
    running.advance(70);
    world
        .sim
        .until("the held write", |sim| (sim.faults().hanging() == 1).then_some(()))
        .await
        .unwrap();
    let other = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
    world.sim.change(NODES, "", "a", |node| node["spec"]["taints"] = json!([other]));
    world.sim.faults().release();
    running
        .counted(
            "plimsoll_annotator_taint_writes_total{effect=\"NoSchedule\",outcome=\"conflict\"} 1",
        )
        .await;
    running.idle(1).await;
    running.pass(20).await;
    becomes(&world, json!([other, ours("NoSchedule")])).await;
}

#[tokio::test]
async fn the_standby_that_takes_over_clears_what_the_leader_set() {
    let mut world = world().await;
    world.exporter.say(&cpu(80.0));
    let flags = [ON[0], "--lease-name=annotator"];
    let leader = world.launch(&flags).await;
    becomes(&world, json!([ours("PreferNoSchedule")])).await;
    let standby = world.launch(&flags).await;
    standby.idle(1).await;
    world.stop(leader).await;
    standby.counted("plimsoll_annotator_leader 1").await;
    load(&world, &standby, 10.0).await;
    becomes(&world, json!([])).await;
}

#[tokio::test]
async fn a_node_that_is_selected_no_more_loses_its_taint_and_no_other() {
    let world = world().await;
    let other = json!({"key": "drain", "value": "true", "effect": "NoSchedule"});
    world.sim.change(NODES, "", "a", |node| node["metadata"]["labels"]["pool"] = "a".into());
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&[&ON[..], &["--node-selector=pool=a"]].concat()).await;
    becomes(&world, json!([ours("PreferNoSchedule")])).await;
    // One update takes away the label and sets another program's taint.
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["labels"]["pool"] = "b".into();
        node["spec"]["taints"] = json!([ours("PreferNoSchedule"), other]);
    });
    running.idle(0).await;
    running.pass(1).await;
    becomes(&world, json!([other])).await;
    running.counted("plimsoll_annotator_nodes_tainted 0").await;
}

#[tokio::test]
async fn the_taint_of_a_node_no_longer_selected_is_cleared() {
    let world = world().await;
    world.sim.change(NODES, "", "a", |node| node["metadata"]["labels"]["pool"] = "a".into());
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&[&ON[..], &["--node-selector=pool=a"]].concat()).await;
    becomes(&world, json!([ours("PreferNoSchedule")])).await;
    let busy = Failure::new(429, "TooManyRequests", "later");
    world.sim.faults().next(2, Verb::Patch, NODES, Fault::Answer(busy));
    world.sim.change(NODES, "", "a", |node| node["metadata"]["labels"]["pool"] = "b".into());
    running.idle(0).await;
    running.counted("plimsoll_annotator_nodes_tainted 1").await;
    // Each failure is followed by a pause.
    for _ in 0..4 {
        running.pass(11).await;
    }
    becomes(&world, json!([])).await;
}

#[tokio::test]
async fn a_taint_on_a_node_that_lost_its_label_while_no_annotator_ran_is_cleared() {
    let world = world().await;
    world.sim.change(NODES, "", "a", |node| {
        node["metadata"]["labels"]["pool"] = "b".into();
        node["spec"]["taints"] = json!([ours("NoSchedule")]);
    });
    let running = world.launch(&["--node-selector=pool=a"]).await;
    becomes(&world, json!([])).await;
    running.counted("plimsoll_annotator_nodes_tainted 0").await;
    running.counted("plimsoll_annotator_nodes 0").await;
}

#[tokio::test]
async fn a_load_below_the_margin_is_written_for_the_taints_sake() {
    let world = world().await;
    world.exporter.say(&cpu(80.0));
    let running = world.start_with(&[&ON[..], &["--dead-band=0.2"]].concat()).await;
    becomes(&world, json!([ours("PreferNoSchedule")])).await;
    // Over the line where it is cleared, and then below it.
    load(&world, &running, 61.0).await;
    assert_eq!(taints(&world.sim), json!([ours("PreferNoSchedule")]));
    load(&world, &running, 59.0).await;
    becomes(&world, json!([])).await;
}

#[tokio::test]
async fn taints_that_no_limit_can_cause_are_warned_of() {
    let world = world().await;
    let policy =
        POLICY.replace("  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]\n", "");
    std::fs::write(world.policy_file(), policy).unwrap();
    let running = world.start_with(&[]).await;
    let without = warnings(&running);
    let with_taints = world.start_with(&ON).await;
    assert_eq!(warnings(&with_taints), without + 1);
}

/// The number of warnings about the policy.
fn warnings(running: &Running) -> u32 {
    let metrics = running.metrics();
    let line = metrics.lines().find(|line| line.starts_with("plimsoll_policy_warnings"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
