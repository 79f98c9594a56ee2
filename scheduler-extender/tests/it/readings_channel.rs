//! Readings from the annotator over its own channel, beside those of annotations.

use api::readings::PolledReadings;
use axum::Router;
use axum::routing::get;
use jiff::{SignedDuration, Timestamp};
use placement::reading::Reading;
use placement::units::{MetricName, Ratio};
use serde_json::json;
use sim::Sim;

use crate::rig::{Rig, loaded_node};

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}]
  limits: {mode: hard}
";

/// The URL of an annotator that has just polled these loads.
async fn annotator(loads: &[(&str, f64)]) -> String {
    // No earlier than the stand-in says that it made the nodes: it rounds to seconds.
    let now = Timestamp::now() + SignedDuration::from_secs(1);
    let mut polled = PolledReadings::new("5f-1".to_owned(), now);
    for (node, load) in loads {
        let reading = Reading::new(Ratio::new(*load).unwrap(), now);
        assert!(polled.push((*node).into(), &[(MetricName::from("cpu_usage_avg_5m"), reading)]));
    }
    let answer = polled.to_json();
    let router = Router::new().route("/v1/readings", get(|| async move { answer }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn what_the_annotator_polled_last_counts_and_no_forged_answer_lets_a_hot_node_pass() {
    let sim = Sim::start().await.unwrap();
    let minute = SignedDuration::from_mins(1);
    for (name, load) in [("a", 0.30), ("b", 0.30), ("hot", 0.80)] {
        sim.put(loaded_node(name, load, minute).with("cpu", 10));
    }
    let pod = json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "u-p" },
        "spec": { "containers": [{ "name": "c", "image": "nginx" }] },
    });
    let passing = async |rig: &Rig| {
        let answer = rig.filter("/load-aware", &pod, &["a", "b", "hot"]).await;
        answer["NodeNames"].clone()
    };
    let url = annotator(&[("a", 0.60), ("b", 0.70), ("hot", 0.0), ("unknown", 0.0)]).await;
    let rig = Rig::start_under(&sim, POLICY, &["--learned-use-url", &url]).await;
    rig.until("the readings", async || passing(&rig).await == json!(["a"])).await;
    let page = rig.context.metrics().unwrap();
    assert!(page.contains("readings_reads_total{outcome=\"ok\"} "), "{page}");
    let explained = rig.post("/explain", &json!({ "Pod": pod, "NodeNames": ["a", "hot"] })).await;
    let told = explained["nodes"].to_string();
    assert!(told.contains("0.6") && told.contains("0.8"), "{told}");

    // A restarted extender whose annotator is away begins with what annotations say.
    let away = Rig::start_under(&sim, POLICY, &["--learned-use-url", "http://127.0.0.1:9"]).await;
    assert_eq!(passing(&away).await, json!(["a", "b"]));
    away.until("the count", async || {
        let page = away.context.metrics().unwrap();
        page.contains("readings_reads_total{outcome=\"no_answer\"} ")
            && page.contains("\nplimsoll_extender_readings_read_seconds 0\n")
    })
    .await;
}
