//! Watches over HTTP, where `conformance` has no fact about them.

use reqwest::Response;
use serde_json::Value;
use sim::{NODES, Sim, node};

struct OpenWatch {
    response: Response,
    buffer: Vec<u8>,
}

impl OpenWatch {
    async fn start(sim: &Sim, path: &str) -> Self {
        let url = format!("{}{path}", sim.url());
        let response = sim::http_client().unwrap().get(url).send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self { response, buffer: Vec::new() }
    }

    /// The next event; `None` at the end of the stream, an error where the connection broke.
    async fn next(&mut self) -> reqwest::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            match self.response.chunk().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// Type of the next event, and name of its object.
    async fn event(&mut self) -> (String, String) {
        let event = self.next().await.unwrap().unwrap();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn is(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

async fn version(sim: &Sim) -> String {
    let url = format!("{}/api/v1/pods", sim.url());
    let list: Value =
        sim::http_client().unwrap().get(url).send().await.unwrap().json().await.unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_the_present_objects() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    let mut watch = OpenWatch::start(&sim, "/api/v1/nodes?watch=1").await;
    assert_eq!(watch.event().await, is("ADDED", "a"));
    sim.put(node("b"));
    assert_eq!(watch.event().await, is("ADDED", "b"));
}

const STREAMED: &str = "/api/v1/nodes?watch=1&sendInitialEvents=true&allowWatchBookmarks=true\
                        &resourceVersionMatch=NotOlderThan";

/// A client that asks for one then lists and watches.
#[tokio::test]
async fn a_list_that_is_asked_for_as_a_watch_is_refused_where_the_feature_is_off() {
    let sim = Sim::start().await.unwrap();
    sim.refuse_streamed_lists();
    let url = format!("{}{STREAMED}", sim.url());
    let answer = sim::http_client().unwrap().get(url).send().await.unwrap();
    assert_eq!(answer.status(), 422);
    assert_eq!(answer.json::<Value>().await.unwrap()["reason"], "Invalid");
}

#[tokio::test]
async fn the_pages_of_a_list_show_one_version_until_the_history_is_forgotten() {
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b", "c"] {
        sim.put(node(name));
    }
    let first = page(&sim, "limit=2").await;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    sim.delete(NODES, "", "c");
    let next = format!("limit=2&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let last = page(&sim, &next).await;
    assert_eq!(names(&last), ["c"]);
    assert_eq!(last["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(last["metadata"]["continue"].is_null());
    sim.faults().expire_watches();
    assert_eq!(page(&sim, &next).await["code"], 410);
}

async fn page(sim: &Sim, parameters: &str) -> Value {
    let url = format!("{}/api/v1/nodes?{parameters}", sim.url());
    sim::http_client().unwrap().get(url).send().await.unwrap().json().await.unwrap()
}

fn names(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_is_gone() {
    let sim = Sim::start().await.unwrap();
    let from = version(&sim).await;
    sim.put(node("a"));
    sim.faults().expire_watches();
    let path = format!("/api/v1/nodes?watch=1&resourceVersion={from}");
    let mut watch = OpenWatch::start(&sim, &path).await;
    let event = watch.next().await.unwrap().unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.unwrap().is_none());
}

#[tokio::test]
async fn an_open_watch_ends_when_its_history_is_forgotten() {
    let sim = Sim::start().await.unwrap();
    let mut watch = OpenWatch::start(&sim, "/api/v1/nodes?watch=1").await;
    sim.faults().expire_watches();
    assert_eq!(watch.next().await.unwrap().unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn a_watch_lasts_as_long_as_asked_and_ends_with_a_bookmark() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    let path = "/api/v1/nodes?watch=1&timeoutSeconds=0&allowWatchBookmarks=true";
    let mut watch = OpenWatch::start(&sim, path).await;
    assert_eq!(watch.event().await, is("ADDED", "a"));
    let bookmark = watch.next().await.unwrap().unwrap();
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], version(&sim).await);
    assert!(watch.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_may_ask_for_the_longest_time_that_there_is() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    let path = format!("/api/v1/nodes?watch=1&timeoutSeconds={}", i64::MAX);
    let mut watch = OpenWatch::start(&sim, &path).await;
    assert_eq!(watch.event().await, is("ADDED", "a"));
}

#[tokio::test]
async fn a_cut_watch_is_a_broken_connection_and_resumes_without_loss() {
    let sim = Sim::start().await.unwrap();
    let from = version(&sim).await;
    let path = format!("/api/v1/nodes?watch=1&resourceVersion={from}");
    let mut watch = OpenWatch::start(&sim, &path).await;
    sim.faults().disconnect_watches();
    assert!(watch.next().await.is_err());
    sim.put(node("a"));
    sim.delete(NODES, "", "a");
    let mut watch = OpenWatch::start(&sim, &path).await;
    assert_eq!(watch.event().await, is("ADDED", "a"));
    assert_eq!(watch.event().await, is("DELETED", "a"));
}
