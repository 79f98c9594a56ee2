//! metrics-server in place of exporters, served by the stand-in of the API server.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sim::{NODE_METRICS, node};

use crate::world::{Running, START, World};

const CPU: &str = "cpu_usage_avg_5m";
const MEM: &str = "mem_usage_avg_5m";
const NOW: &str = "cpu_usage_active";

const POLICY: &str = "\
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu_usage_avg_5m, period: 1m}
  - {name: mem_usage_avg_5m, period: 1m}
  - {name: cpu_usage_active, period: 1m}
  - {name: cpu_usage_max_avg_1h, period: 15m}
";

/// A world with metrics-server, and a node `a` of 4 cores and 16 GiB.
async fn world() -> World {
    let world = World::new().await;
    std::fs::write(world.policy_file(), POLICY).unwrap();
    let mut a = Value::from(node("a").address("10.0.0.1"));
    a["status"]["capacity"] = json!({"cpu": "4", "memory": "16Gi", "pods": "110"});
    world.sim.put(a);
    world
}

/// metrics-server has a sample of the node, some seconds after the start.
fn sample(world: &World, seconds: i64, cpu: &str, memory: &str) {
    let at = START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds);
    world.sim.put(json!({
        "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "a", "creationTimestamp": START, "labels": {"kubernetes.io/os": "linux"}},
        "timestamp": at.to_string(), "window": "10.064s", "usage": {"cpu": cpu, "memory": memory},
    }));
}

/// Lets a round of the annotator pass.
async fn round(running: &Running, number: i64) {
    running.pass(15).await;
    let asked = format!("plimsoll_annotator_source_queries_total{{outcome=\"ok\"}} {}", number + 1);
    running.counted(&asked).await;
}

#[tokio::test]
async fn a_sample_is_written_at_once_and_a_mean_once_half_of_its_window_was_sampled() {
    let world = world().await;
    sample(&world, -5, "1000000000n", "4Gi");
    let running = world.start_with(&["--metrics-server"]).await;
    world.annotated("a", NOW, "0.25000,2026-11-20T08:59:55Z").await;
    for number in 1..=9 {
        sample(&world, 15 * number - 5, "3", "8Gi");
        round(&running, number).await;
    }
    assert!(world.annotations("a")[CPU].is_null(), "{}", world.annotations("a"));
    for metric in [CPU, MEM] {
        let now = format!("readings_held_back{{metric=\"{metric}\",reason=\"coverage\"}} 1\n");
        assert!(running.metrics().contains(&now), "{}", running.metrics());
    }
    for number in 10..=40 {
        sample(&world, 15 * number - 5, "3", "8Gi");
        round(&running, number).await;
    }
    // The first sample is out of the window, so the mean does not move any more.
    for (metric, expected) in [(CPU, "0.75000,"), (MEM, "0.50000,")] {
        let written = world.annotations("a")[metric].clone();
        assert!(
            written.as_str().is_some_and(|text| text.starts_with(expected)),
            "{metric} {written}"
        );
    }
    assert!(world.annotations("a")["cpu_usage_max_avg_1h"].is_null());
    assert_eq!(world.exporter.asked() + world.exporter.asked_about_pods(), 0);
}

#[tokio::test]
async fn a_node_that_metrics_server_cannot_scrape_gets_no_newer_reading() {
    let world = world().await;
    sample(&world, -5, "1", "4Gi");
    let running = world.start_with(&["--metrics-server"]).await;
    world.annotated("a", NOW, "0.25000,2026-11-20T08:59:55Z").await;
    world.sim.delete(NODE_METRICS, "", "a");
    for number in 1..=8 {
        round(&running, number).await;
    }
    assert_eq!(world.annotations("a")[NOW], "0.25000,2026-11-20T08:59:55Z");
    running.counted("plimsoll_annotator_metric_missing_nodes{metric=\"cpu_usage_active\"} 1").await;
}

#[tokio::test]
async fn a_node_that_does_not_tell_its_capacity_has_no_reading() {
    let world = world().await;
    world.sim.put(node("a").address("10.0.0.1"));
    sample(&world, -5, "1", "4Gi");
    let running = world.start_with(&["--metrics-server"]).await;
    running.counted("plimsoll_annotator_metric_missing_nodes{metric=\"cpu_usage_active\"} 1").await;
    assert!(world.annotations("a")[NOW].is_null());
}
