//! A stand-in of the API server that makes objects as it is asked for them: 150,000 pods do not fit beside what is
//! measured.
//!
//! Nodes, pods and ResourceClaims alone, listed in pages as the API server does it, and watches that tell of changed
//! nodes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::cluster::Cluster;

/// Changes that a slow watch may be behind.
const BEHIND: usize = 64;

/// The stand-in; it serves until the runtime ends.
pub(super) struct Api {
    address: SocketAddr,
    state: Arc<Served>,
}

struct Served {
    cluster: Cluster,
    /// Bytes of the lists that were sent.
    listed: AtomicUsize,
    /// Events for the watch of nodes.
    changes: broadcast::Sender<Bytes>,
}

impl Api {
    pub(super) async fn start(cluster: Cluster) -> anyhow::Result<Self> {
        let changes = broadcast::Sender::new(BEHIND);
        let state = Arc::new(Served { cluster, listed: AtomicUsize::new(0), changes });
        let router = Router::new()
            .route("/api/v1/nodes", get(nodes))
            .route("/api/v1/pods", get(pods))
            .route("/apis/resource.k8s.io/v1/resourceclaims", get(claims))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, state })
    }

    pub(super) fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{ "name": "bench", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "bench", "user": {} }],
            "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }] });
        Ok(std::fs::write(path, config.to_string())?)
    }

    /// Bytes of the lists of nodes and of pods that were sent so far.
    pub(super) fn listed(&self) -> usize {
        self.state.listed.load(Ordering::Relaxed)
    }

    /// Tells the watch of other readings of every node.
    pub(super) fn change_nodes(&self, round: usize) {
        let Served { cluster, changes, .. } = &*self.state;
        let now = Timestamp::now();
        let mut events = String::new();
        for number in 0..cluster.nodes {
            let node = cluster.node(number, round, now);
            events += &format!("{}\n", json!({ "type": "MODIFIED", "object": node }));
        }
        // Without a watch nothing is told.
        let _ = changes.send(events.into());
    }
}

async fn nodes(State(served): State<Arc<Served>>, uri: Uri) -> Response {
    let now = Timestamp::now();
    if parameter(&uri, "watch").is_some() {
        let changes = served.changes.subscribe();
        let all = served.cluster.nodes;
        let node = move |cluster: &Cluster, number| cluster.node(number, 0, now);
        return watch("Node", all, served, node, changes);
    }
    let cluster = &served.cluster;
    page("NodeList", &uri, cluster.nodes, |number| cluster.node(number, 0, now))
}

async fn pods(State(served): State<Arc<Served>>, uri: Uri) -> Response {
    if parameter(&uri, "watch").is_some() {
        let unchanged = broadcast::Sender::new(1).subscribe();
        let all = served.cluster.bound;
        return watch("Pod", all, served, Cluster::bound_pod, unchanged);
    }
    let cluster = &served.cluster;
    page("PodList", &uri, cluster.bound, |number| cluster.bound_pod(number))
}

async fn claims(State(served): State<Arc<Served>>, uri: Uri) -> Response {
    let all = served.cluster.claims + 1;
    if parameter(&uri, "watch").is_some() {
        let unchanged = broadcast::Sender::new(1).subscribe();
        return watch("ResourceClaim", all, served, Cluster::claim, unchanged);
    }
    let cluster = &served.cluster;
    page("ResourceClaimList", &uri, all, |number| cluster.claim(number))
}

/// Part of a list: as many as `limit` says, from where `continue` says.
fn page(kind: &str, uri: &Uri, all: usize, object: impl Fn(usize) -> Value) -> Response {
    let from = number(uri, "continue").unwrap_or(0);
    let end = number(uri, "limit").map_or(all, |limit| all.min(from + limit));
    let next = if end < all { end.to_string() } else { String::new() };
    let items: Vec<Value> = (from..end).map(object).collect();
    let metadata = json!({ "resourceVersion": "1", "continue": next });
    Json(json!({ "apiVersion": version(kind), "kind": kind, "metadata": metadata, "items": items }))
        .into_response()
}

fn version(kind: &str) -> &'static str {
    if kind.starts_with("ResourceClaim") { "resource.k8s.io/v1" } else { "v1" }
}

fn number(uri: &Uri, key: &str) -> Option<usize> {
    parameter(uri, key)?.parse().ok()
}

fn parameter<'u>(uri: &'u Uri, key: &str) -> Option<&'u str> {
    let mut all = uri.query().unwrap_or("").split('&').filter_map(|one| one.split_once('='));
    all.find(|(name, _)| *name == key).map(|(_, value)| value)
}

type Changes = broadcast::Receiver<Bytes>;

/// A streaming list and what follows it: an event for each object, made as it is sent, the bookmark that ends the list,
/// and then changes without an end.
fn watch(
    kind: &'static str,
    all: usize,
    served: Arc<Served>,
    object: impl Fn(&Cluster, usize) -> Value + Send + 'static,
    changes: Changes,
) -> Response {
    let counted = Arc::clone(&served);
    let listed = (0..all)
        .map(move |number| json!({ "type": "ADDED", "object": object(&served.cluster, number) }));
    let metadata = json!({
        "resourceVersion": "1",
        "annotations": { "k8s.io/initial-events-end": "true" },
    });
    let object = json!({ "apiVersion": version(kind), "kind": kind, "metadata": metadata });
    let end = json!({ "type": "BOOKMARK", "object": object });
    let lines = listed.chain([end]).map(move |event| {
        let line = format!("{event}\n");
        counted.listed.fetch_add(line.len(), Ordering::Relaxed);
        Ok(Bytes::from(line))
    });
    Body::from_stream(stream::iter(lines).chain(stream::unfold(changes, next))).into_response()
}

async fn next(mut changes: Changes) -> Option<(Result<Bytes, Infallible>, Changes)> {
    match changes.recv().await {
        Ok(events) => Some((Ok(events), changes)),
        Err(_) => std::future::pending().await,
    }
}
