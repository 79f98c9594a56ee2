//! Exporters and API servers that misbehave.

use std::time::Duration;

use sim::{Failure, Fault, NODES, Verb};

use crate::exporter::Answer;
use crate::world::{CALM, START, World};

const CPU: &str = "cpu_usage_avg_5m";

#[tokio::test]
async fn the_readings_of_a_silent_exporter_stay_until_it_answers_again() {
    let mut world = World::with_node().await;
    world.poll_timeout = Duration::from_secs(1);
    let running = world.start().await;
    let before = world.annotations("a");
    world.exporter.set(Answer::Hang);
    running.pass_minutes(10).await;
    running.silent(1).await;
    assert_eq!(world.annotations("a"), before);
    let metrics = running.metrics();
    assert!(metrics.contains("plimsoll_annotator_polls_total{outcome=\"timeout\"}"), "{metrics}");
    assert!(metrics.contains("plimsoll_annotator_nodes_silent 1\n"), "{metrics}");
    world.exporter.say(CALM);
    // No wait between attempts is longer than 2 minutes.
    running.pass(120).await;
    running.silent(0).await;
    assert_eq!(world.annotations("a")[CPU], "0.63012,2026-11-20T09:12:00Z");
}

#[tokio::test]
async fn an_answer_that_is_no_object_of_numbers_writes_nothing() {
    let world = World::with_node().await;
    let elsewhere = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}/other\r\nContent-Length: 0\r\n\r\n",
        world.exporter.address()
    );
    let huge = format!("{{\"{CPU}\": 1, \"x\": \"{}\"}}", "x".repeat(300_000));
    let wrong = [
        (Answer::Body("<html>".to_owned()), "body"),
        (Answer::Body("[1, 2]".to_owned()), "body"),
        (Answer::Body(format!("{{\"{CPU}\": 1")), "body"),
        (Answer::Body(huge), "too_long"),
        (Answer::Raw("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned()), "status"),
        (Answer::Raw(elsewhere), "status"),
        (Answer::Raw("SSH-2.0-x\r\n".to_owned()), "broken"),
    ];
    world.exporter.set(wrong[0].0.clone());
    let running = world.start().await;
    for (answer, reason) in &wrong {
        world.exporter.set(answer.clone());
        running.pass(120).await;
        let counted = format!("polls_total{{outcome=\"{reason}\"}}");
        assert!(running.metrics().contains(&counted), "{}", running.metrics());
    }
    assert_eq!(world.patches("a"), 0);
    assert!(world.exporter.heads().iter().all(|head| head.starts_with("GET /v1/statistics ")));
}

#[tokio::test]
async fn a_node_without_an_address_is_counted_and_written_once_it_has_one() {
    let world = World::new().await;
    world.sim.put(sim::node("a"));
    let running = world.start().await;
    running.silent(1).await;
    world.sim.put(sim::node("a").address("127.0.0.1"));
    running.becomes_due_within(1).await;
    running.pass(1).await;
    assert_eq!(world.annotations("a")[CPU], "0.63012,2026-11-20T09:00:01Z");
}

#[tokio::test]
async fn a_closed_port_and_an_impossible_address_are_counted_as_connect() {
    let world = World::new().await;
    for (name, address) in [("a", "127.0.0.1:1"), ("b", "1.2.3.456:19101")] {
        world.sim.put(sim::node(name).annotation("plimsoll.dev/exporter", address));
    }
    let running = world.start().await;
    running.silent(2).await;
    assert!(running.metrics().contains("polls_total{outcome=\"connect\"} 2\n"));
}

#[tokio::test]
async fn an_exporter_at_a_loopback_address_is_not_asked_where_the_api_server_is_at_none() {
    let world = World::with_node().await;
    // Linux connects to the loopback here too.
    let kubeconfig = world.folder.path().join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace("127.0.0.1", "0.0.0.0")).unwrap();
    let exporter = format!("localhost:{}", world.exporter.port);
    world.sim.put(sim::node("b").address("10.0.0.1").annotation("plimsoll.dev/exporter", exporter));
    let args = world.args(&[]);
    let context = daemon::Context::new(daemon::program!());
    let (clock, _time) = annotator::clock::Clock::manual(START.parse().unwrap());
    let mut status = annotator::app::start(args, &context, clock).await.unwrap();
    let silent = status.wait_for(|status| status.silent == 2);
    let silent = tokio::time::timeout(Duration::from_secs(120), silent).await;
    assert!(silent.is_ok_and(|silent| silent.is_ok()));
    assert!(world.exporter.heads().is_empty(), "{:?}", world.exporter.heads());
    context.shutdown().cancel();
}

#[tokio::test]
async fn a_failed_patch_is_retried_with_back_off() {
    let world = World::with_node().await;
    for failure in [Failure::too_many_requests(), Failure::internal("etcdserver: no leader")] {
        world.sim.faults().next(1, Verb::Patch, NODES, Fault::Answer(failure));
    }
    let running = world.start().await;
    assert_eq!(world.patches("a"), 1);
    running.pass(5).await;
    assert_eq!(world.patches("a"), 2);
    running.pass(10).await;
    assert_eq!(world.patches("a"), 3);
    assert_eq!(world.annotations("a")[CPU], "0.63012,2026-11-20T09:00:00Z");
    let metrics = running.metrics();
    for outcome in ["ok", "refused", "unknown"] {
        let counted = format!("patches_total{{outcome=\"{outcome}\"}} 1\n");
        assert!(metrics.contains(&counted), "{metrics}");
    }
}

#[tokio::test]
async fn a_patch_whose_reply_was_lost_is_seen_on_the_node_and_not_repeated() {
    let world = World::with_node().await;
    world.sim.faults().next(1, Verb::Patch, NODES, Fault::DropReply);
    let running = world.launch(&[]).await;
    world.annotated("a", CPU, "0.63012,2026-11-20T09:00:00Z").await;
    running.nodes_changed(1).await;
    running.idle(1).await;
    // Longer than the first wait after a failure, shorter than the time to the next tick.
    running.pass(10).await;
    assert_eq!(world.patches("a"), 1);
}

#[tokio::test]
async fn the_program_is_ready_once_nodes_and_pods_were_listed() {
    let world = World::with_node().await;
    world.sim.faults().next(1, Verb::List, sim::PODS, Fault::Hang);
    let running = world.launch(&[]).await;
    world.annotated("a", CPU, "0.63012,2026-11-20T09:00:00Z").await;
    assert!(world.annotations("a")["node_hot_value"].is_null());
    assert!(!running.context.health().is_ready());
    world.sim.faults().release();
    running.idle(1).await;
    assert!(running.context.health().is_ready());
}
