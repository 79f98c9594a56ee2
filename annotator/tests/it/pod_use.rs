//! What pods use: asked of exporters, learned by workload, and served.

use std::time::Duration;

use api::workloads::Workloads;
use jiff::SignedDuration;
use serde_json::json;
use sim::{KeptAddress, LEASES, node, pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::exporter::PodsAnswer;
use crate::world::{CALM, Running, World};

/// A world with a node of four cores and a pod of default/web on it, and one of default/db on another node.
async fn world() -> World {
    let mut world = World::new().await;
    world.pod_use_period = Duration::from_secs(60);
    world.sim.put(node("a").address("127.0.0.1").with("cpu", 4));
    world.sim.put(pod("web-1").uid("uid-web").owned_by("StatefulSet", "web").on("a"));
    world.sim.put(pod("db-1").uid("uid-db").owned_by("StatefulSet", "db").on("elsewhere"));
    world
}

/// Starts the annotator with a port of its own.
async fn start(world: &World) -> (Running, KeptAddress) {
    start_with(world, &[]).await
}

async fn start_with(world: &World, flags: &[&str]) -> (Running, KeptAddress) {
    let kept = KeptAddress::new().unwrap();
    let listen = format!("--listen-address={}", kept.address());
    let flags = [&[listen.as_str()], flags].concat();
    (world.start_with(&flags).await, kept)
}

/// The exporter's answer after so many minutes of its own clock, in which each pod used a core.
fn used(minute: i64) -> PodsAnswer {
    let time = "2026-11-19T21:00:00Z".parse::<jiff::Timestamp>().unwrap();
    let time = time + SignedDuration::from_mins(minute);
    let pods = ["uid-web", "uid-db", "uid-unknown"]
        .map(|uid| json!({ "uid": uid, "cpu_seconds_total": 60.0 * minute as f64 + 0.5 }));
    PodsAnswer::Body(json!({ "time": time, "omitted": 0, "pods": pods }).to_string())
}

/// Lets minutes pass in which pods use a core each.
async fn work(world: &World, running: &Running, minutes: i64) {
    for minute in 1..=minutes {
        world.exporter.say_of_pods(used(minute));
        running.pass(60).await;
    }
}

/// Status line with headers, and body.
async fn ask(kept: &KeptAddress, header: &str) -> (String, String) {
    let mut stream = TcpStream::connect(kept.address()).await.unwrap();
    let request =
        format!("GET /v1/workloads HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_use_of_a_nodes_own_pods_is_learned_and_served() {
    let world = world().await;
    world.exporter.say_of_pods(used(0));
    let (running, address) = start(&world).await;
    let (_, nothing) = ask(&address, "").await;
    assert_eq!(Workloads::from_json(&nothing).unwrap().workloads, []);
    work(&world, &running, 10).await;
    let (head, body) = ask(&address, "").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    // The pod of default/db is on another node.
    let [web] = &Workloads::from_json(&body).unwrap().workloads[..] else { panic!("{body}") };
    assert_eq!(
        (web.namespace.as_str(), web.kind.as_str(), web.name.as_str()),
        ("default", "StatefulSet", "web")
    );
    let cpu = web.cpu.unwrap().amount;
    assert!((cpu.p50 - 1.0).abs() < 0.05, "{cpu:?}");
    assert_eq!(web.memory, None);
    running.counted("plimsoll_annotator_pod_use_polls_total{outcome=\"ok\"} 11").await;
    running.counted("plimsoll_annotator_workloads 1").await;
    let metrics = running.metrics();
    assert!(metrics.contains("annotator_pod_uses_total{result=\"observed\"} 10\n"), "{metrics}");
    assert!(metrics.contains("annotator_pod_uses_total{result=\"elsewhere\"} 22\n"), "{metrics}");
}

#[tokio::test]
async fn a_client_that_has_the_newest_list_is_told_so_in_a_few_bytes() {
    let world = world().await;
    world.exporter.say_of_pods(used(0));
    let (running, address) = start(&world).await;
    work(&world, &running, 6).await;
    let (head, _) = ask(&address, "").await;
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let known = format!("If-None-Match: {tag}\r\n");
    let (head, body) = ask(&address, &known).await;
    assert!(head.starts_with("HTTP/1.1 304 "), "{head}");
    assert_eq!(body, "");
    work(&world, &running, 8).await;
    assert!(ask(&address, &known).await.0.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_exporter_without_the_path_is_asked_again_after_ten_minutes() {
    let world = world().await;
    let (running, _kept) = start(&world).await;
    running.pass_minutes(9).await;
    assert_eq!(world.exporter.asked_about_pods(), 1);
    running.counted("plimsoll_annotator_pod_use_polls_total{outcome=\"not_known\"} 1").await;
    running.pass_minutes(3).await;
    assert_eq!(world.exporter.asked_about_pods(), 2);
}

#[tokio::test]
async fn an_exporter_that_hangs_or_lies_about_pods_disturbs_no_reading() {
    // A busy node is late, and its pods count most; another program's answers are asked for seldom.
    for (answer, asked) in [
        (PodsAnswer::Hang, 4..=5),
        (PodsAnswer::Body("{\"pods\":".to_owned()), 1..=1),
        (PodsAnswer::Body("x".repeat(300_000)), 1..=1),
    ] {
        let mut world = world().await;
        world.poll_timeout = Duration::from_secs(3);
        world.exporter.say_of_pods(answer);
        let (running, _kept) = start(&world).await;
        world.annotated("a", "mem_usage_avg_5m", "0.07000,2026-11-20T09:00:00Z").await;
        world.exporter.say(&CALM.replace("\": 7,", "\": 8,"));
        running.pass_minutes(4).await;
        let written = world.annotations("a")["mem_usage_avg_5m"].as_str().unwrap().to_owned();
        assert!(written.starts_with("0.08000,2026-11-20T09:0"), "{written}");
        let times = world.exporter.asked_about_pods();
        assert!(asked.contains(&times), "{times}");
        running.silent(0).await;
    }
}

#[tokio::test]
async fn a_standby_says_that_it_is_one_and_not_that_no_workload_is_known() {
    let world = world().await;
    let held = json!({"holderIdentity": "other", "leaseDurationSeconds": 300});
    world.sim.put(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l"}, "spec": held,
    }));
    let (running, address) = start_with(&world, &["--lease-name=l"]).await;
    let (head, body) = ask(&address, "").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(body, "a standby: ask the replica that holds the Lease\n");
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 1});
    world.sim.change(LEASES, "default", "l", |lease| lease["spec"] = released.clone());
    running.counted("plimsoll_annotator_leader 1").await;
    let (head, _) = ask(&address, "").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[tokio::test]
async fn a_replica_that_takes_over_tells_on_what_the_leader_before_has_learned() {
    let mut world = world().await;
    world.exporter.say_of_pods(used(0));
    let (leader, address) = start_with(&world, &["--lease-name=annotator"]).await;
    leader.counted("plimsoll_annotator_leader 1").await;
    leader.idle(1).await;
    work(&world, &leader, 10).await;
    leader.counted("plimsoll_annotator_workloads 1").await;
    let before = ask(&address, "").await.1;
    let replicas = format!("--replicas-address={}", address.address());
    let kept = KeptAddress::new().unwrap();
    let listen = format!("--listen-address={}", kept.address());
    let flags = ["--lease-name=annotator", &listen, &replicas];
    world.set_time(leader.now());
    let standby = world.launch(&flags).await;
    standby.counted("plimsoll_annotator_workloads 1").await;
    world.stop(leader).await;
    standby.counted("plimsoll_annotator_leader 1").await;
    let (head, body) = ask(&kept, "").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let workloads = Workloads::from_json(&body).unwrap().workloads;
    assert_eq!(workloads, Workloads::from_json(&before).unwrap().workloads);
    assert_eq!(workloads.len(), 1);
}
