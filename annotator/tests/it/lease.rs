//! Two replicas with a Lease: one polls and writes, the other is ready to.

use serde_json::{Value, json};
use sim::{Fault, LEASES, NODES, Sim, Verb, node};

use crate::world::{Running, World};

const LEASE: &str = "--lease-name=annotator";
const LEADS: &str = "plimsoll_annotator_leader 1";
const WAITS: &str = "plimsoll_annotator_leader 0";
const CPU: &str = "cpu_usage_avg_5m";

fn lease(sim: &Sim) -> Value {
    sim.get(LEASES, "default", "annotator").unwrap_or_default()
}

/// A replica that leads, with everything written that was due.
async fn leader(world: &World) -> Running {
    let running = world.launch(&[LEASE]).await;
    running.counted(LEADS).await;
    running.idle(1).await;
    running
}

/// A replica that knows the node and all pods, and does not lead.
async fn standby(world: &World) -> Running {
    let running = world.launch(&[LEASE]).await;
    running.idle(1).await;
    running.counted(WAITS).await;
    running
}

#[tokio::test]
async fn one_of_two_polls_and_writes_and_both_are_ready() {
    let world = World::with_node().await;
    let leader = leader(&world).await;
    let standby = standby(&world).await;
    assert_eq!(world.patches("a"), 1);
    assert!(leader.context.health().is_ready() && standby.context.health().is_ready());
    standby.advance(3600);
    leader.pass(3600).await;
    standby.counted(WAITS).await;
    assert_eq!((world.exporter.asked(), world.patches("a")), (2, 2));
}

#[tokio::test]
async fn a_clean_end_gives_the_lease_to_the_standby_which_writes_what_is_due_then() {
    let mut world = World::with_node().await;
    let leader = leader(&world).await;
    let standby = standby(&world).await;
    let holder = lease(&world.sim)["spec"]["holderIdentity"].clone();
    world.stop(leader).await;
    assert_eq!(lease(&world.sim)["spec"]["holderIdentity"], "");
    standby.counted(LEADS).await;
    standby.idle(1).await;
    let taken = lease(&world.sim)["spec"].clone();
    assert!(taken["holderIdentity"] != holder && taken["leaseTransitions"] == 1, "{taken}");
    assert_eq!(world.patches("a"), 1);
    world.exporter.say(r#"{"cpu_usage_avg_5m": 50}"#);
    standby.pass(600).await;
    world.annotated("a", CPU, "0.50000,2026-11-20T09:10:00Z").await;
}

#[tokio::test]
async fn a_lease_that_its_holder_left_is_taken_before_anything_is_written() {
    let world = World::with_node().await;
    world.sim.put(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "annotator", "namespace": "default"},
        "spec": {"holderIdentity": "killed", "leaseDurationSeconds": 1, "leaseTransitions": 6},
    }));
    let running = world.launch(&[LEASE]).await;
    running.counted(LEADS).await;
    running.idle(1).await;
    assert_eq!(lease(&world.sim)["spec"]["leaseTransitions"], 7);
    let requests = world.sim.log().all();
    let renewal = requests.iter().position(|request| request.is(Verb::Update, LEASES));
    let patch = requests.iter().position(|request| request.is(Verb::Patch, NODES));
    assert!(renewal.unwrap() < patch.unwrap());
}

#[tokio::test]
async fn a_leader_that_cannot_renew_writes_nothing_more_until_it_can() {
    let world = World::with_node().await;
    let flags = [LEASE, "--lease-duration=3s"];
    let running = world.launch(&flags).await;
    running.counted(LEADS).await;
    running.idle(1).await;
    running.counted("plimsoll_annotator_nodes_answered 1").await;
    for verb in [Verb::Update, Verb::Get] {
        world.sim.faults().next(usize::MAX, verb, LEASES, Fault::DropRequest);
    }
    running.counted(WAITS).await;
    running.counted("plimsoll_annotator_nodes_answered 0").await;
    let metrics = running.metrics();
    let mut lines = metrics.lines();
    let failures = lines.find_map(|line| line.strip_prefix("plimsoll_lease_failures_total "));
    assert_ne!(failures.unwrap(), "0");
    world.sim.put(node("b").address("127.0.0.1"));
    running.advance(3600);
    running.idle(2).await;
    assert_eq!((world.patches("a"), world.patches("b")), (1, 0));
    world.sim.faults().release();
    running.counted(LEADS).await;
    running.idle(2).await;
    assert_eq!((world.patches("a"), world.patches("b")), (2, 1));
}
