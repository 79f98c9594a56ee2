//! The query of measured loads, as descheduler asks it.

use jiff::SignedDuration;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};
use sim::{NodeBuilder, Sim, node, pod};

use crate::rig::{Rig, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;
const HOUR: SignedDuration = SignedDuration::from_hours(1);

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 1m, limit: 0.8, weight: 1}
  - {name: mem_usage_avg_5m, period: 1m, limit: 0.5}
  - {name: load_usage_avg_5m, period: 1m}
";

/// A node with these means of CPU and memory, both as old.
fn measured(name: &str, cpu: f64, memory: f64, age: SignedDuration) -> NodeBuilder {
    let reading = Reading::new(Ratio::new(memory).unwrap(), jiff::Timestamp::now() - age);
    loaded_node(name, cpu, age)
        .annotation("mem_usage_avg_5m", ReadingCodec::default().encode(&reading))
        .with("cpu", 10)
}

/// `cool` is below its limits, `hot` over that of memory, `half` has no reading of memory, `hot-half` is over that of
/// CPU beside it, `old` has stale ones and `bare` none.
async fn start() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(measured("cool", 0.2, 0.25, NOW));
    sim.put(measured("hot", 0.2, 0.6, NOW));
    sim.put(loaded_node("half", 0.2, NOW));
    sim.put(loaded_node("hot-half", 0.96, NOW));
    sim.put(measured("old", 0.9, 0.9, HOUR));
    sim.put(node("bare"));
    let rig = Rig::start_under(&sim, POLICY, &[]).await;
    (sim, rig)
}

/// What is answered, by node, in the order of the names.
async fn values(rig: &Rig, expression: &str) -> Vec<(String, f64)> {
    let (status, text) = rig.post_form("/api/v1/query", &[("query", expression)]).await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let samples = answer["data"]["result"].as_array().unwrap();
    let mut values: Vec<(String, f64)> = samples.iter().map(value).collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    values
}

fn value(sample: &Value) -> (String, f64) {
    let name = sample["metric"]["instance"].as_str().unwrap().to_owned();
    (name, sample["value"][1].as_str().unwrap().parse().unwrap())
}

fn pairs<const N: usize>(values: [(&str, f64); N]) -> Vec<(String, f64)> {
    values.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

#[tokio::test]
async fn each_node_is_answered_by_its_nearest_limit_and_the_unknown_ones_not_at_all() {
    let (_sim, rig) = start().await;
    // What is not known of a node does not make the rest unknown: many nodes cannot have every metric.
    let known = pairs([("cool", 0.25), ("half", 0.125), ("hot", 0.6), ("hot-half", 0.6)]);
    assert_eq!(values(&rig, "plimsoll_limit_ratio / 2").await, known);
}

#[tokio::test]
async fn nodes_without_a_reading_have_the_value_that_the_question_gives_and_never_zero() {
    let (_sim, rig) = start().await;
    let all = values(&rig, "plimsoll_limit_ratio / 2 or plimsoll_node * 0.5").await;
    let wanted = [
        ("bare", 0.5),
        ("cool", 0.25),
        ("half", 0.125),
        ("hot", 0.6),
        ("hot-half", 0.6),
        ("old", 0.5),
    ];
    assert_eq!(all, pairs(wanted));
}

#[tokio::test]
async fn a_metric_of_the_policy_is_answered_where_it_is_fresh() {
    let (_sim, rig) = start().await;
    let memory = values(&rig, "mem_usage_avg_5m").await;
    assert_eq!(memory, pairs([("cool", 0.25), ("hot", 0.6)]));
}

#[tokio::test]
async fn no_value_is_above_one() {
    let (_sim, rig) = start().await;
    let ratios = values(&rig, "plimsoll_limit_ratio").await;
    assert_eq!(ratios, pairs([("cool", 0.5), ("half", 0.25), ("hot", 1.0), ("hot-half", 1.0)]));
}

/// Nothing is evicted for an estimate.
#[tokio::test]
async fn pods_that_no_reading_shows_yet_count_for_placing_alone() {
    let (sim, rig) = start().await;
    let pending = json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "u-p" },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
    });
    let nodes = ["cool", "half"];
    let before = rig.scores(&pending, &nodes).await;
    let bound = pod("other").on("cool").scheduled_at(&jiff::Timestamp::now().to_string());
    sim.put(bound.asking("cpu", 4));
    rig.until("the pod to count", async || rig.scores(&pending, &nodes).await != before).await;
    assert_eq!(values(&rig, "cpu_usage_avg_5m").await[0], ("cool".to_owned(), 0.2));
}

#[tokio::test]
async fn the_answer_is_that_of_prometheus_by_get_and_by_post() {
    let sim = Sim::start().await.unwrap();
    sim.put(measured("a", 0.4, 0.1, NOW));
    let rig = Rig::start_under(&sim, POLICY, &[]).await;
    let (_, posted) =
        rig.post_form("/api/v1/query", &[("time", "1"), ("query", "cpu_usage_avg_5m")]).await;
    for text in [posted, rig.get("/api/v1/query?query=cpu_usage_avg_5m&timeout=5s").await] {
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        let time = answer["data"]["result"][0]["value"][0].take().as_f64().unwrap();
        assert!((time - jiff::Timestamp::now().as_second() as f64).abs() < 60.0, "{time}");
        let sample = json!({ "metric": { "instance": "a" }, "value": [null, "0.4"] });
        let data = json!({ "resultType": "vector", "result": [sample] });
        assert_eq!(answer, json!({ "status": "success", "data": data }));
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_with_what_is() {
    let (_sim, rig) = start().await;
    let refused = async |query: &str| {
        let (status, text) = rig.get_status(&format!("/api/v1/query?{query}")).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &answer["status"]), (400, &json!("error")), "{text}");
        assert_eq!(answer["errorType"], "bad_data");
        answer["error"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused("q=cpu").await, "the form has no field `query`");
    assert_eq!(
        refused("query=avg(cpu_usage_avg_5m)").await,
        "only `SERIES`, `SERIES / NUMBER` and either with `or plimsoll_node * NUMBER` behind it are answered: a number above 0, \
         and one from 0 to 1"
    );
    // A metric without a limit or weight has no rule for how long it is fresh.
    assert_eq!(
        refused("query=load_usage_avg_5m").await,
        "there is no series load_usage_avg_5m: there are plimsoll_limit_ratio and the metrics to which the policy gives a limit \
         or a weight: cpu_usage_avg_5m, mem_usage_avg_5m"
    );
    let long = "x".repeat(9 << 10);
    let (status, text) = rig.post_form("/api/v1/query", &[("query", &long)]).await;
    assert_eq!(status, 400, "{text}");
}
