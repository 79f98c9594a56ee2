//! The table of nodes whose readings are the same from the exporter, from Prometheus and from metrics-server
//! (`testing/readings/nodes.json`): the parts of Prometheus and metrics-server. The exporter's tests have its own.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use sim::node;

use crate::world::{START, World};

const NODES: &str = include_str!("../../../testing/readings/nodes.json");
const SIGNALS: [&str; 5] =
    ["cpu_busy", "cpu_shared_busy", "cpu_foreground_busy", "cpu_usage", "mem_usage"];

fn nodes() -> Vec<Value> {
    serde_json::from_str(NODES).unwrap()
}

/// A world with the nodes of the table, each with 4 CPUs, and a policy of these aggregates of each signal.
async fn world(aggregates: &[&str]) -> World {
    let world = World::new().await;
    let mut policy = "apiVersion: scheduler.policy.crane.io/v1alpha1\n\
                      kind: DynamicSchedulerPolicy\nspec:\n  syncPolicy:\n"
        .to_owned();
    for signal in SIGNALS {
        for aggregate in aggregates {
            policy += &format!("  - {{name: {signal}_{aggregate}, period: 1m}}\n");
        }
    }
    std::fs::write(world.policy_file(), policy).unwrap();
    for (number, row) in (1..).zip(nodes()) {
        let name = row["name"].as_str().unwrap();
        let mut object = Value::from(node(name).address(&format!("10.0.0.{number}")));
        let mut capacity = Map::from_iter([("cpu".to_owned(), json!("4"))]);
        capacity.extend(row["capacity"].as_object().unwrap().clone());
        object["status"]["capacity"] = capacity.into();
        world.sim.put(object);
    }
    world
}

/// Waits for the readings of every node, and compares them with the table: with what this source can know.
async fn compare(world: &World, source: &str, aggregate: &str) {
    for row in nodes() {
        let name = row["name"].as_str().unwrap();
        for (signal, expected) in row["expected"].as_object().unwrap() {
            let of_source = &row["cannot_know"][source][signal];
            let expected = of_source.as_f64().or(expected.as_f64()).unwrap();
            let key = format!("{signal}_{aggregate}");
            let text = world.annotation(name, &key).await;
            let found: f64 = text.split_once(',').unwrap().0.parse().unwrap();
            assert!((found - expected).abs() < 2e-3, "{key} on {name}: {found}, not {expected}");
        }
    }
}

#[tokio::test]
async fn metrics_server_has_the_expected_readings_of_every_node_of_the_table() {
    let world = world(&["active"]).await;
    let at = START.parse::<Timestamp>().unwrap() - SignedDuration::from_secs(5);
    for row in nodes() {
        world.sim.put(json!({
            "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
            "metadata": {"name": row["name"], "creationTimestamp": START},
            "timestamp": at.to_string(), "window": "10s", "usage": row["node_metrics"],
        }));
    }
    let _running = world.start_with(&["--metrics-server"]).await;
    compare(&world, "metrics_server", "active").await;
}

/// The samples of node_exporter on a node, each five seconds from `first` to `last`, by metric family.
fn samples(row: &Value, labels: &str, first: i64, last: i64) -> Vec<(String, String)> {
    let times: Vec<i64> = (first..=last).step_by(5).collect();
    let exported = &row["node_exporter"];
    let mut families = Vec::new();
    let mut cpu = String::new();
    for (mode, rate) in exported["cpu_seconds_each_second"].as_object().unwrap() {
        for number in 0..4 {
            let rate = rate.as_f64().or(rate[number].as_f64()).unwrap();
            for at in &times {
                let value = 10_000.0 + rate * (at - first) as f64;
                cpu += &format!(
                    "node_cpu_seconds_total{{cpu=\"{number}\",mode=\"{mode}\",{labels}}} {value} {at}\n"
                );
            }
        }
    }
    families.push(("node_cpu_seconds counter".to_owned(), cpu));
    for (metric, value) in exported["metrics"].as_object().unwrap() {
        let (metric, own) = metric.split_once('{').unwrap_or((metric, "}"));
        let labels = own.replace('}', &format!(",{labels}"));
        let labels = labels.trim_start_matches(',');
        let text = times.iter().map(|at| format!("{metric}{{{labels}}} {value} {at}\n")).collect();
        families.push((format!("{metric} gauge"), text));
    }
    families
}

/// The text that promtool reads: each family once.
fn exposition(families: Vec<(String, String)>) -> String {
    let mut by_family = std::collections::BTreeMap::<String, String>::new();
    for (family, samples) in families {
        *by_family.entry(family).or_default() += &samples;
    }
    by_family.iter().map(|(family, samples)| format!("# TYPE {family}\n{samples}")).collect()
}

#[tokio::test]
#[ignore = "needs a Prometheus: make oracle"]
async fn a_real_prometheus_has_the_expected_readings_of_every_node_of_the_table() {
    let mut world = world(&["avg_5m", "max_avg_1h"]).await;
    let begin = Timestamp::now().as_second();
    let all = nodes();
    let mut families = Vec::new();
    for row in &all {
        let labels = format!("instance=\"{}:9100\"", row["name"].as_str().unwrap());
        families.extend(samples(row, &labels, begin - 900, begin + 600));
    }
    let real = support::promtool::Server::over(&exposition(families));
    world.set_time(Timestamp::now());
    let url = format!("--prometheus-url=http://{}", real.address);
    let _running = world.start_with(&[&url]).await;
    for aggregate in ["avg_5m", "max_avg_1h"] {
        compare(&world, "prometheus", aggregate).await;
    }
}

/// As after a rollout of node_exporter whose series have the name of its pod.
#[tokio::test]
#[ignore = "needs a Prometheus: make oracle"]
async fn a_real_prometheus_has_the_use_of_a_node_whose_series_changed_within_the_window() {
    let mut world = world(&["avg_5m"]).await;
    let begin = Timestamp::now().as_second();
    let row = &nodes()[0];
    let name = row["name"].as_str().unwrap();
    let mut families = Vec::new();
    for (pod, first, last) in [("old", begin - 900, begin - 100), ("new", begin - 95, begin + 600)]
    {
        families.extend(samples(
            row,
            &format!("instance=\"{name}:9100\",pod=\"{pod}\""),
            first,
            last,
        ));
    }
    // What is scraped no longer is gone at once, as Prometheus marks it.
    let real = support::promtool::Server::over_with(
        &exposition(families),
        &["--query.lookback-delta=10s"],
    );
    world.set_time(Timestamp::now());
    let url = format!("--prometheus-url=http://{}", real.address);
    let _running = world.start_with(&[&url]).await;
    for signal in SIGNALS {
        let text = world.annotation(name, &format!("{signal}_avg_5m")).await;
        let found: f64 = text.split_once(',').unwrap().0.parse().unwrap();
        let expected = if signal == "mem_usage" { 0.75 } else { 0.5 };
        assert!((found - expected).abs() < 0.02, "{signal}: {found}");
    }
}

#[tokio::test]
#[ignore = "needs a Prometheus: make oracle"]
async fn a_node_that_a_real_prometheus_has_of_two_clusters_has_no_reading() {
    let mut world = world(&["avg_5m", "max_avg_1h"]).await;
    let begin = Timestamp::now().as_second();
    let all = nodes();
    let twice = all[0]["name"].as_str().unwrap();
    let once = all[1]["name"].as_str().unwrap();
    let open = begin + 600;
    let mut families = Vec::new();
    for (row, name, cluster, until) in [
        (&all[0], twice, "one", open),
        (&all[1], twice, "two", open),
        // Its exporter had another label until seven minutes ago, as after a rollout.
        (&all[1], once, "before", begin - 420),
        (&all[1], once, "one", open),
    ] {
        let labels = format!("instance=\"{name}:9100\",cluster=\"{cluster}\"");
        families.extend(samples(row, &labels, begin - 900, until));
    }
    let real = support::promtool::Server::over(&exposition(families));
    world.set_time(Timestamp::now());
    let url = format!("--prometheus-url=http://{}", real.address);
    let running = world.start_with(&[&url]).await;
    for metric in SIGNALS.map(|signal| [format!("{signal}_avg_5m"), format!("{signal}_max_avg_1h")])
    {
        for metric in metric {
            world.annotation(once, &metric).await;
            assert!(world.annotations(twice)[&metric].is_null(), "{}", world.annotations(twice));
        }
    }
    drop(running);
}
