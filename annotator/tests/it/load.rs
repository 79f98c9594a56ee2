//! What is written, when, and how often.

use std::time::Duration;

use serde_json::json;
use sim::{NODES, Verb, node, pod};

use crate::exporter::{Answer, Exporter};
use crate::world::{CALM, POLICY, World};

#[tokio::test]
async fn one_patch_holds_every_reading_as_a_fraction_and_the_hot_value() {
    let world = World::with_node().await;
    for i in 0..5 {
        let bound = pod(&format!("p{i}")).on("a").scheduled_at("2026-11-20T08:59:00Z");
        world.sim.put(bound);
    }
    world.exporter.say(&CALM.replace("63.012", "10"));
    let running = world.start().await;
    // The first patch may come before the pods were listed.
    world.sim.log().clear();
    world.exporter.say(CALM);
    running.pass(180).await;
    let patches = world.sim.log().node_patches("a");
    assert_eq!(patches.len(), 1);
    assert_eq!(patches[0].content_type, "application/merge-patch+json");
    let time = "2026-11-20T09:03:00Z";
    let wanted = json!({
        "cpu_usage_avg_5m": format!("0.63012,{time}"),
        "mem_usage_avg_5m": format!("0.07000,{time}"),
        "cpu_usage_max_avg_1h": format!("1.00000,{time}"),
        "node_hot_value": format!("2,{time}"),
    });
    let uid = world.sim.node("a").unwrap()["metadata"]["uid"].clone();
    assert_eq!(patches[0].body, json!({"metadata": {"annotations": wanted, "uid": uid}}));
}

#[tokio::test]
async fn an_hour_of_an_idle_node_is_twenty_polls_and_ten_patches() {
    let world = World::with_node().await;
    let running = world.start().await;
    // The first poll is off the grid, and serves the ticks that follow soon after.
    running.pass_minutes(15).await;
    world.sim.log().clear();
    let before = world.exporter.asked();
    running.pass_minutes(60).await;
    assert_eq!(world.exporter.asked() - before, 20);
    // Each second poll: crane's readers honour a reading for its period and 5 minutes.
    assert_eq!(world.patches("a"), 10);
    let metrics = running.metrics();
    assert!(metrics.contains("annotator_writes_total{reason=\"first\"} 1\n"), "{metrics}");
    assert!(metrics.contains("annotator_writes_total{reason=\"expiring\"} 1"), "{metrics}");
    assert!(metrics.contains("annotator_writes_saved_total 1"), "{metrics}");
}

#[tokio::test]
async fn moves_wait_for_the_burst_and_crossed_limits_15_seconds() {
    let world = World::with_node().await;
    let limit = "  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.8}]\n  hotValue";
    let policy = POLICY.replace("  hotValue", limit).replace("3m", "20s");
    std::fs::write(world.policy_file(), policy).unwrap();
    let running = world.start_with(&["--burst-interval=45s", "--dead-band=0.05"]).await;
    assert_eq!(world.patches("a"), 1);
    world.exporter.say(&CALM.replace("63.012", "75"));
    running.pass(44).await;
    assert_eq!(world.patches("a"), 1);
    running.pass(1).await;
    let written = world.annotations("a")["cpu_usage_avg_5m"].clone();
    assert!(written.as_str().unwrap().starts_with("0.75000,2026-11-20T09:00:"), "{written}");
    world.exporter.say(&CALM.replace("63.012", "81"));
    // Polls come every 20 s.
    for _ in 0..36 {
        running.pass(1).await;
    }
    let written = world.annotations("a")["cpu_usage_avg_5m"].clone();
    assert!(written.as_str().unwrap().starts_with("0.81000,"), "{written}");
    let metrics = running.metrics();
    assert!(metrics.contains("annotator_writes_total{reason=\"moved\"} 1\n"), "{metrics}");
    assert!(metrics.contains("annotator_writes_total{reason=\"crossed\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_metric_without_a_number_is_absent_and_never_zero() {
    let world = World::with_node().await;
    world.exporter.say(r#"{"cpu_usage_avg_5m": null, "mem_usage_avg_5m": -1}"#);
    let running = world.start().await;
    assert_eq!(world.patches("a"), 0);
    world.exporter.say(r#"{"cpu_usage_avg_5m": 5}"#);
    running.pass(5).await;
    let annotations = world.annotations("a");
    assert_eq!(annotations["cpu_usage_avg_5m"], "0.05000,2026-11-20T09:00:05Z");
    for absent in ["mem_usage_avg_5m", "cpu_usage_max_avg_1h"] {
        assert!(annotations[absent].is_null(), "{annotations}");
    }
}

#[tokio::test]
async fn a_restart_writes_nothing_and_polls_no_exporter() {
    let mut world = World::with_node().await;
    for i in 0..20 {
        world.sim.put(node(&format!("n{i}")).address("127.0.0.1"));
    }
    let running = world.start().await;
    running.pass(7).await;
    world.stop(running).await;
    world.sim.log().clear();
    let asked = world.exporter.asked();
    let running = world.start().await;
    assert_eq!(world.sim.log().of(Verb::Patch, NODES).len(), 0);
    assert_eq!(world.exporter.asked(), asked);
    // A period and its slack: every node was due once, and nothing had moved.
    running.pass(180 + 18).await;
    assert_eq!(world.exporter.asked(), asked + 21);
    assert_eq!(world.sim.log().of(Verb::Patch, NODES).len(), 0);
}

#[tokio::test]
async fn a_restart_after_a_long_stop_writes_each_node_once() {
    let mut world = World::with_node().await;
    let running = world.start().await;
    world.stop(running).await;
    world.sim.log().clear();
    world.sim.change(NODES, "", "a", |node| {
        for key in ["cpu_usage_avg_5m", "mem_usage_avg_5m", "cpu_usage_max_avg_1h"] {
            node["metadata"]["annotations"][key] = "0.10000,2026-11-20T01:00:00Z".into();
        }
    });
    let _running = world.start().await;
    assert_eq!(world.patches("a"), 1);
}

#[tokio::test]
async fn a_time_written_in_another_zone_is_overwritten_at_once() {
    let world = World::new().await;
    let eight_hours_ahead = "0.10000,2026-11-20T17:00:00Z";
    world.sim.put(node("a").address("127.0.0.1").annotation("cpu_usage_avg_5m", eight_hours_ahead));
    let _running = world.start().await;
    world.annotated("a", "cpu_usage_avg_5m", "0.63012,2026-11-20T09:00:00Z").await;
}

#[tokio::test]
async fn times_are_written_in_the_zone_of_the_flag() {
    let world = World::with_node().await;
    let _running = world.start_with(&["--time-zone=Asia/Shanghai"]).await;
    let annotations = world.annotations("a");
    assert_eq!(annotations["cpu_usage_avg_5m"], "0.63012,2026-11-20T17:00:00Z");
}

#[tokio::test]
async fn the_exporter_annotation_overrides_the_nodes_address() {
    let world = World::new().await;
    let other = Exporter::start(r#"{"cpu_usage_avg_5m": 1}"#).await;
    // 192.0.2.1 is reserved for documentation.
    let node = node("a").address("192.0.2.1");
    world.sim.put(node.annotation("plimsoll.dev/exporter", other.address()));
    let _running = world.start().await;
    assert_eq!(world.annotations("a")["cpu_usage_avg_5m"], "0.01000,2026-11-20T09:00:00Z");
    assert!(other.heads()[0].starts_with("GET /v1/statistics HTTP/1.1\r\n"), "{:?}", other.heads());
    assert_eq!(world.exporter.asked(), 0);
}

#[tokio::test]
async fn an_annotation_that_is_more_than_host_and_port_sends_no_request() {
    let world = World::new().await;
    for (i, tail) in ["/admin?x=", "@example.org", "#"].into_iter().enumerate() {
        let text = format!("{}{tail}", world.exporter.address());
        let node = node(&format!("n{i}")).address("127.0.0.1");
        world.sim.put(node.annotation("plimsoll.dev/exporter", text));
    }
    let running = world.start().await;
    running.silent(3).await;
    assert_eq!(world.exporter.asked(), 0);
}

#[tokio::test]
async fn a_node_that_is_not_ready_is_polled_and_a_deleted_one_is_not() {
    let world = World::new().await;
    world.sim.put(node("a").address("127.0.0.1").not_ready());
    let running = world.start().await;
    assert_eq!(world.patches("a"), 1);
    world.sim.delete(NODES, "", "a");
    running.idle(0).await;
    let asked = world.exporter.asked();
    running.pass_minutes(10).await;
    assert_eq!(world.exporter.asked(), asked);
}

#[tokio::test]
async fn a_new_node_is_written_at_once() {
    let world = World::new().await;
    let running = world.start().await;
    world.sim.put(node("late").address("127.0.0.1"));
    running.idle(1).await;
    world.annotated("late", "cpu_usage_avg_5m", "0.63012,2026-11-20T09:00:00Z").await;
}

#[tokio::test]
async fn no_more_exporters_are_polled_at_once_than_allowed() {
    let mut world = World::new().await;
    (0..30).for_each(|i| drop(world.sim.put(node(&format!("n{i}")).address("127.0.0.1"))));
    world.concurrency = Some(4);
    world.poll_timeout = Duration::from_secs(3600);
    let running = world.start().await;
    assert_eq!(world.exporter.asked(), 30);
    world.exporter.take_most_at_once();
    world.exporter.set(Answer::Hang);
    // Every node's 5-minute means are due.
    running.advance(198);
    running.counted("plimsoll_annotator_jobs 4").await;
    world.exporter.say(CALM);
    running.idle(30).await;
    let most = world.exporter.take_most_at_once();
    assert!((1..=4).contains(&most), "{most}");
    assert!(running.metrics().contains("plimsoll_annotator_nodes 30\n"));
}

#[tokio::test]
async fn nodes_that_do_not_match_the_selector_are_left_alone() {
    let world = World::new().await;
    let linux = node("a").address("127.0.0.1").label("kubernetes.io/os", "linux");
    world.sim.put(linux.clone());
    world.sim.put(node("unlabelled").address("127.0.0.1"));
    world
        .sim
        .put(node("virtual").label("kubernetes.io/os", "linux").label("type", "virtual-kubelet"));
    let running =
        world.launch(&["--node-selector=kubernetes.io/os=linux,type!=virtual-kubelet"]).await;
    running.idle(1).await;
    assert_eq!((world.patches("a"), world.exporter.asked()), (1, 1));
    assert!(running.metrics().contains("plimsoll_annotator_nodes_silent 0\n"));
    // A label is as good as a deletion.
    world.sim.put(linux.clone().label("type", "virtual-kubelet"));
    running.idle(0).await;
    world.sim.put(linux);
    running.idle(1).await;
}

#[tokio::test]
async fn a_broken_watch_is_resumed() {
    let world = World::with_node().await;
    let running = world.start().await;
    world.sim.faults().disconnect_watches();
    world.sim.faults().expire_watches();
    world.sim.put(node("b").address("127.0.0.1"));
    running.idle(2).await;
    world.annotated("b", "cpu_usage_avg_5m", "0.63012,2026-11-20T09:00:00Z").await;
    assert_eq!(world.exporter.asked(), 2);
}
