//! The admin endpoints, asked as a probe and a scraper ask them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::health::ConditionState;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use daemon::metrics::set_counter;
use daemon::{Context, Program, Status};
use http_body_util::BodyExt;
use tower::ServiceExt;

const PROGRAM: Program = Program { name: "annotator", version: "1.2.3", git: Some("abc123") };

struct Answer {
    status: StatusCode,
    content_type: String,
    body: String,
}

async fn get(context: &Context, path: &str) -> Answer {
    get_as(context, path, "*/*").await
}

/// An answer to a request with this `Accept` header.
async fn get_as(context: &Context, path: &str, accept: &str) -> Answer {
    let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
    let response = daemon::admin::router(context).oneshot(request).await.unwrap();
    let status = response.status();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer { status, content_type, body: String::from_utf8(body.to_vec()).unwrap() }
}

#[tokio::test]
async fn metrics_are_text_whatever_a_client_accepts() {
    let context = Context::new(PROGRAM);
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3";
    for accept in ["*/*", "text/plain;version=0.0.4", "text/html", prometheus] {
        let answer = get_as(&context, "/metrics", accept).await;
        assert_eq!(answer.content_type, "text/plain; version=0.0.4; charset=utf-8", "{accept}");
        assert!(answer.body.contains("# TYPE process_cpu_seconds_total counter\n"));
        assert!(answer.body.contains("# TYPE plimsoll_build_info gauge\n"));
        assert!(!answer.body.contains("# EOF"));
    }
}

#[tokio::test]
async fn metrics_tell_build_and_process() {
    let answer = get(&Context::new(PROGRAM), "/metrics").await;
    let build = "plimsoll_build_info{name=\"annotator\",version=\"1.2.3\",git=\"abc123\"} 1\n";
    assert!(answer.body.contains(build), "{}", answer.body);
    assert!(answer.body.contains("process_resident_memory_bytes "));
}

#[tokio::test]
async fn a_programs_metrics_are_on_the_page_as_of_the_scrape() {
    let context = Context::new(PROGRAM);
    let polls = context.register(|registry| registry.counter("plimsoll_polls_total", "Polls"));
    let counted = Arc::new(AtomicU64::new(1));
    context.before_scrape(&polls, Arc::clone(&counted), |polls, counted| {
        set_counter(polls, counted.load(Ordering::Relaxed));
    });
    counted.store(2, Ordering::Relaxed);
    assert!(context.metrics().unwrap().contains("\nplimsoll_polls_total 2\n"));
}

#[tokio::test]
async fn ready_only_when_every_condition_holds_and_not_while_stopping() {
    let context = Context::new(PROGRAM);
    assert_eq!(get(&context, "/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let nodes = context.health().gate("nodes-listed");
    let waiting = get(&context, "/readyz").await;
    assert_eq!(waiting.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(waiting.body, "[-] nodes-listed: not yet\n");
    nodes.set_ready();
    assert_eq!(get(&context, "/readyz").await.status, StatusCode::OK);
    context.shutdown().cancel();
    let stopping = get(&context, "/readyz").await;
    assert_eq!(stopping.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(stopping.body.starts_with("[-] stopping\n"));
}

#[tokio::test]
async fn health_is_the_list_of_conditions_as_of_the_answer() {
    let context = Context::new(PROGRAM);
    context.health().gate("nodes-listed").set_ready();
    context.health().look("leader", || Status::failed("no replica leads", "wait"));
    let answer = get(&context, "/v1/health").await;
    assert_eq!(answer.content_type, "application/json");
    let health: api::health::Health = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((health.program.as_str(), health.version.as_str()), ("annotator", "1.2.3"));
    let states: Vec<_> = health.conditions.iter().map(|it| (it.id.as_str(), it.state)).collect();
    let expected = [("leader", ConditionState::Failed), ("nodes-listed", ConditionState::Ok)];
    assert_eq!(states, expected);
}

#[tokio::test]
async fn alive_until_a_task_dies() {
    let context = Context::new(PROGRAM);
    assert_eq!(get(&context, "/livez").await.status, StatusCode::OK);
    context.spawn("watch", async { anyhow::bail!("gone") });
    context.shutdown().cancelled().await;
    let answer = get(&context, "/livez").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body, "[-] task died: watch\n");
}

#[tokio::test]
async fn version_has_the_commit_only_where_the_build_named_one() {
    let known = get(&Context::new(PROGRAM), "/version").await;
    assert_eq!(known.body, r#"{"git":"abc123","name":"annotator","version":"1.2.3"}"#);
    let unknown = get(&Context::new(Program { git: None, ..PROGRAM }), "/version").await;
    assert_eq!(unknown.body, r#"{"name":"annotator","version":"1.2.3"}"#);
}
