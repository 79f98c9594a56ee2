//! Connections to exporters that are kept from one poll to the next. Those behind TLS are in [`crate::tls`].

use std::time::Duration;

use crate::exporter::{Answer, Exporter, PodsAnswer};
use crate::world::{CALM, World};

const CPU: &str = "cpu_usage_avg_5m";

#[tokio::test]
async fn one_connection_serves_all_questions_to_an_exporter() {
    let mut world = World::with_node().await;
    world.pod_use_period = Duration::from_secs(60);
    let pods = r#"{"time":"2026-11-20T09:00:00Z","pods":[]}"#;
    world.exporter.say_of_pods(PodsAnswer::Body(pods.to_owned()));
    let running = world.start().await;
    running.pass_minutes(30).await;
    assert!(world.exporter.asked() > 10 && world.exporter.asked_about_pods() > 20);
    assert_eq!(world.exporter.connections(), 1);
    let metrics = running.metrics();
    assert!(metrics.contains("plimsoll_annotator_connections_opened_total 1\n"), "{metrics}");
}

#[tokio::test]
async fn an_exporter_in_the_older_format_is_asked_over_one_connection() {
    let world = World::with_node().await;
    world.exporter.set(Answer::FlatWithHome(CALM.to_owned()));
    let running = world.start().await;
    running.pass_minutes(30).await;
    assert!(world.exporter.asked() > 10);
    assert_eq!(world.exporter.connections(), 1);
}

#[tokio::test]
async fn the_restart_of_an_exporter_fails_no_poll() {
    let mut world = World::with_node().await;
    let kept = sim::KeptAddress::new().unwrap();
    let address = kept.address().to_string();
    world.exporter = Exporter::start_at(&address, CALM, None).await;
    let running = world.start().await;
    std::mem::replace(&mut world.exporter, Exporter::start(CALM).await).stop().await;
    let busy = CALM.replace("63.012", "99");
    world.exporter = Exporter::start_at(&address, &busy, None).await;
    running.pass_minutes(4).await;
    assert!(world.annotations("a")[CPU].as_str().unwrap().starts_with("0.99000,"));
    let metrics = running.metrics();
    let polls = metrics.lines().filter(|line| line.contains("polls_total{"));
    assert!(polls.clone().all(|line| line.contains("outcome=\"ok\"")), "{metrics}");
}

#[tokio::test]
async fn an_exporter_that_closes_after_each_answer_fails_no_poll() {
    let world = World::with_node().await;
    let body = r#"{"values":{}}"#;
    let length = body.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    world.exporter.set(Answer::Raw(answer));
    let running = world.start().await;
    running.pass_minutes(10).await;
    assert!(world.exporter.asked() > 3);
    assert_eq!(world.exporter.connections(), world.exporter.asked());
    assert!(!running.metrics().contains("outcome=\"broken\""), "{}", running.metrics());
}

#[tokio::test]
async fn an_answer_in_chunks_leaves_the_connection_open() {
    let world = World::with_node().await;
    let body = r#"{"cpu_usage_avg_5m": 50}"#;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (first, second) = body.split_at(7);
    let chunks = [first, second].map(|part| format!("{:x}\r\n{part}\r\n", part.len())).concat();
    world.exporter.set(Answer::RawAgain(format!("{head}{chunks}0\r\n\r\n")));
    let running = world.start().await;
    running.pass_minutes(10).await;
    assert_eq!(world.exporter.connections(), 1);
    assert!(!running.metrics().contains("outcome=\"broken\""), "{}", running.metrics());
}

#[tokio::test]
async fn after_a_change_of_its_address_a_node_is_asked_there() {
    let world = World::with_node().await;
    let running = world.start().await;
    let busy = CALM.replace("63.012", "99");
    let port = world.exporter.port;
    let other = Exporter::start_at(&format!("127.0.0.2:{port}"), &busy, None).await;
    let before = world.exporter.asked();
    world.sim.put(sim::node("a").address("127.0.0.2"));
    // The first is the annotator's own patch.
    running.nodes_changed(2).await;
    running.pass_minutes(4).await;
    assert_eq!((world.exporter.asked(), other.connections()), (before, 1));
    assert!(world.annotations("a")[CPU].as_str().unwrap().starts_with("0.99000,"));
}
