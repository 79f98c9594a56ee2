//! What one read does, against a stand-in of the annotator.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use jiff::Timestamp;
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::units::{MetricName, Ratio};

use super::*;
use crate::view::fixtures;

const CPU: &str = "cpu_usage_avg_5m";
const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec: {metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.8, weight: 1}]}
";

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

/// A stand-in of the annotator: its next answer, and the paths that it was asked for.
#[derive(Default)]
struct Annotator {
    answer: Mutex<(StatusCode, String)>,
    asked: Mutex<Vec<String>>,
}

impl Annotator {
    /// Starts one. Returns it with a reader of it.
    async fn start() -> (Arc<Self>, ReadingsReader) {
        let annotator = Arc::<Self>::default();
        let answer = async |State(annotator): State<Arc<Self>>, uri: Uri| {
            annotator.asked.lock().unwrap().push(uri.to_string());
            annotator.answer.lock().unwrap().clone()
        };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&annotator));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (annotator, ReadingsReader::new(&url, Metrics::default()).unwrap())
    }

    /// Answers with the CPU of nodes from now on.
    fn tell(&self, version: &str, nodes: &[(&str, f64)]) {
        let mut answer = PolledReadings::new(version.to_owned(), now());
        for (node, cpu) in nodes {
            let reading = Reading::new(Ratio::new(*cpu).unwrap(), now());
            assert!(answer.push((*node).into(), &[(MetricName::from(CPU), reading)]));
        }
        self.answer(StatusCode::OK, &answer.to_json());
    }

    fn answer(&self, status: StatusCode, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    fn last_asked(&self) -> String {
        self.asked.lock().unwrap().last().cloned().unwrap()
    }
}

/// A view of the nodes a and b, without readings.
fn view() -> View {
    let view = fixtures::view_under(LoadPolicy::from_yaml(POLICY).unwrap());
    fixtures::list(&view, &["a".to_owned(), "b".to_owned()], &fixtures::gpu());
    view
}

/// The CPU of the nodes a and b.
fn cpu(view: &View) -> [Option<f64>; 2] {
    let snapshot = view.read();
    let rules = snapshot.policy.all_rules().next().unwrap();
    let metric = rules.limits[0].metric.id;
    let cpu = |node| Some(snapshot.load(node)?.readings.get(metric)?.value.get());
    [cpu("a"), cpu("b")]
}

async fn read(reader: &mut ReadingsReader, view: &View) -> Duration {
    let clock: Clock = Arc::new(now);
    reader.read(view, &clock).await
}

#[tokio::test]
async fn each_read_asks_for_what_is_newer_than_the_last_answer() {
    let ((annotator, mut reader), view) = (Annotator::start().await, view());
    annotator.tell("5f-2", &[("a", 0.4), ("b", 0.5), ("unknown", 0.6)]);
    assert_eq!(read(&mut reader, &view).await, PERIOD);
    assert_eq!(
        (annotator.last_asked().as_str(), cpu(&view)),
        ("/v1/readings", [Some(0.4), Some(0.5)])
    );
    annotator.tell("5f-3", &[("b", 0.7)]);
    read(&mut reader, &view).await;
    assert_eq!(annotator.last_asked(), "/v1/readings?since=5f-2");
    assert_eq!(cpu(&view), [Some(0.4), Some(0.7)]);
    assert_eq!(view.read().names().len(), 2);
}

#[tokio::test]
async fn a_read_that_fails_changes_nothing_and_the_next_one_goes_on() {
    let ((annotator, mut reader), view) = (Annotator::start().await, view());
    annotator.tell("5f-2", &[("a", 0.4)]);
    read(&mut reader, &view).await;
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let cut = half(&annotator.answer.lock().unwrap().1);
    for (status, body) in [
        (StatusCode::SERVICE_UNAVAILABLE, "a standby"),
        (StatusCode::NOT_FOUND, ""),
        (StatusCode::OK, ""),
        (StatusCode::OK, &cut),
        (
            StatusCode::OK,
            "{\"version\":\"&\",\"time\":\"2026-11-22T07:00:00Z\",\"nodes\":[],\"metrics\":[]}",
        ),
    ] {
        annotator.answer(status, body);
        assert_eq!(read(&mut reader, &view).await, RETRY);
        assert_eq!(
            (annotator.last_asked().as_str(), cpu(&view)[0]),
            ("/v1/readings?since=5f-2", Some(0.4))
        );
    }
    // Another replica leads, and has polled one node so far.
    annotator.tell("7a-1", &[("b", 0.2)]);
    read(&mut reader, &view).await;
    assert_eq!(cpu(&view), [Some(0.4), Some(0.2)]);
    annotator.tell("7a-2", &[]);
    read(&mut reader, &view).await;
    assert_eq!(annotator.last_asked(), "/v1/readings?since=7a-1");
}

#[tokio::test]
async fn nothing_is_asked_before_the_nodes_are_listed() {
    let (annotator, mut reader) = Annotator::start().await;
    let view = fixtures::view();
    assert_eq!(read(&mut reader, &view).await, UNTIL_LISTED);
    assert_eq!(annotator.asked.lock().unwrap().len(), 0);
}
