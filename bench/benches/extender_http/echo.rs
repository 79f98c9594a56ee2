//! The floor: an extender that reads the names and the pod's own name with serde, and answers every name; or, to answer
//! as many bytes as one that rejects nodes, every third one with a reason.

use std::borrow::Cow;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

/// What the extender says of a node over the limit.
const REASON: &str =
    "Load[cpu_shared_busy_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Args<'a> {
    #[serde(borrow)]
    pod: Pod<'a>,
    #[serde(borrow)]
    node_names: Vec<Name<'a>>,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
}

#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Passed<'a> {
    node_names: Vec<Name<'a>>,
    failed_nodes: Option<Failed<'a>>,
    error: &'static str,
}

/// Names, each with the reason.
struct Failed<'a>(Vec<Name<'a>>);

impl Serialize for Failed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for name in &self.0 {
            map.serialize_entry(&name.0, REASON)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Priority<'a> {
    host: &'a str,
    score: i64,
}

/// Serves on a free port, and prints it.
pub(super) fn serve(rejects: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let router = Router::new()
            .route("/load-aware/filter", post(move |body| filter(body, rejects)))
            .route("/load-aware/prioritize", post(prioritize))
            .route("/gpushare-scheduler/filter", post(move |body| filter(body, rejects)))
            .layer(DefaultBodyLimit::disable());
        axum::serve(listener, router).await.context("the echo ends")
    })
}

fn read(body: &[u8]) -> Option<Args<'_>> {
    let args: Args<'_> = serde_json::from_slice(body).ok()?;
    (!args.pod.metadata.uid.is_empty()).then_some(args)
}

async fn filter(body: Bytes, rejects: bool) -> Json {
    let args = read(&body);
    if rejects { Json::of(&args.map(third_rejected)) } else { Json::of(&args.map(passed)) }
}

fn passed(args: Args<'_>) -> Passed<'_> {
    Passed { node_names: args.node_names, failed_nodes: None, error: "" }
}

fn third_rejected(args: Args<'_>) -> Passed<'_> {
    let mut number = 0_usize;
    let (failed, node_names) = args.node_names.into_iter().partition(|_| {
        number += 1;
        number.is_multiple_of(3)
    });
    Passed { node_names, failed_nodes: Some(Failed(failed)), error: "" }
}

async fn prioritize(body: Bytes) -> Json {
    Json::of(&read(&body).as_ref().map(scored))
}

fn scored<'a>(args: &'a Args<'_>) -> Vec<Priority<'a>> {
    args.node_names.iter().map(|name| Priority { host: &name.0, score: 0 }).collect()
}

/// An answer as JSON.
struct Json(Vec<u8>);

impl Json {
    fn of(answer: &impl Serialize) -> Self {
        Self(serde_json::to_vec(answer).unwrap_or_default())
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}
