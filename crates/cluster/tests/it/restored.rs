//! A server whose data was restored: its versions begin lower, and it accepts watches from versions that are still to
//! come, on which it sends nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cluster::{Client, Event, Events, Scope, WatchHealth, watch_pods};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// What the server has, and what its watches do.
#[derive(Default)]
struct Data {
    version: u64,
    pods: Vec<&'static str>,
    /// Lines that each next watch sends at once.
    sends: Vec<Value>,
    /// The time after which a watch ends.
    lasts: Duration,
    lists: usize,
    watches: usize,
}

struct Server(Arc<Mutex<Data>>);

impl Server {
    fn start(version: u64, pods: &[&'static str]) -> (Self, Events<String>, WatchHealth) {
        let lasts = Duration::from_secs(80);
        let data = Data { version, pods: pods.to_vec(), lasts, ..Data::default() };
        let server = Self(Arc::new(Mutex::new(data)));
        let health = WatchHealth::default();
        let events = watch_pods(server.client(), Scope::All, health.clone(), |pod, _| {
            Some(pod.name().to_owned())
        });
        (server, events, health)
    }

    fn client(&self) -> Client {
        let data = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let data = data.clone();
            async move { Ok::<_, std::io::Error>(answer(&data, &request)) }
        });
        Client::new(service, "default")
    }

    fn change(&self, change: impl FnOnce(&mut Data)) {
        change(&mut self.0.lock().unwrap());
    }

    fn counts(&self) -> (usize, usize) {
        let data = self.0.lock().unwrap();
        (data.lists, data.watches)
    }
}

fn pod(name: &str, version: u64) -> Value {
    json!({ "metadata": { "name": name, "resourceVersion": version.to_string() } })
}

fn bookmark(version: u64, annotations: Value) -> Value {
    let metadata = json!({ "resourceVersion": version.to_string(), "annotations": annotations });
    json!({ "type": "BOOKMARK", "object": { "apiVersion": "v1", "kind": "Pod", "metadata": metadata } })
}

/// The parts of an answer.
type Parts = BoxStream<'static, std::io::Result<Frame<Bytes>>>;

fn answer(data: &Mutex<Data>, request: &Request<Body>) -> Response<StreamBody<Parts>> {
    let mut data = data.lock().unwrap();
    let query = request.uri().query().unwrap_or_default();
    let mut lines: Vec<Value> = Vec::new();
    if query.contains("sendInitialEvents=true") {
        data.lists += 1;
        let pods = data
            .pods
            .iter()
            .map(|name| json!({ "type": "ADDED", "object": pod(name, data.version) }));
        lines.extend(pods);
        lines.push(bookmark(data.version, json!({ "k8s.io/initial-events-end": "true" })));
    } else {
        data.watches += 1;
        lines.extend(data.sends.iter().cloned());
    }
    let first = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let lasts = data.lasts;
    let text = (!first.is_empty()).then(|| Ok(Frame::data(Bytes::from(first))));
    // As the client's read timeout ends a watch.
    let end = sleep(lasts).map(|()| Err(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    Response::new(StreamBody::new(stream::iter(text).chain(end.into_stream()).boxed()))
}

async fn listed(events: &mut Events<String>) -> Vec<String> {
    loop {
        match events.next().await.unwrap() {
            Event::Listed(all) => return all,
            Event::Listing => {}
            other => unreachable!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_silent_watches_in_a_row_are_followed_by_a_list() {
    let (server, mut events, _) = Server::start(1_200, &["old"]);
    assert_eq!(listed(&mut events).await, ["old"]);
    server.change(|data| (data.version, data.pods) = (1_001, vec!["restored"]));
    let start = Instant::now();
    assert_eq!(listed(&mut events).await, ["restored"]);
    assert_eq!(server.counts(), (2, 2));
    assert!(start.elapsed() < Duration::from_secs(5 * 60), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_version_below_one_that_was_seen_is_followed_by_a_list() {
    for line in
        [bookmark(1_001, json!({})), json!({ "type": "MODIFIED", "object": pod("x", 1_001) })]
    {
        let (server, mut events, _) = Server::start(1_200, &["old"]);
        assert_eq!(listed(&mut events).await, ["old"]);
        server.change(|data| {
            (data.version, data.pods, data.sends) = (1_001, vec!["restored"], vec![line])
        });
        assert_eq!(listed(&mut events).await, ["restored"]);
        assert_eq!(server.counts(), (2, 1));
    }
}

/// A quiet cluster, where a watch sends bookmarks alone, and a server that ends watches at once.
#[tokio::test(start_paused = true)]
async fn watches_that_send_bookmarks_or_end_soon_are_not_silent() {
    let soon = Duration::from_secs(1);
    let day = Duration::from_secs(24 * 60 * 60);
    for (sends, lasts) in
        [(vec![bookmark(1_200, json!({}))], Duration::from_secs(80)), (vec![], soon)]
    {
        let (server, mut events, health) = Server::start(1_200, &["old"]);
        assert_eq!(listed(&mut events).await, ["old"]);
        server.change(|data| (data.sends, data.lasts) = (sends, lasts));
        assert!(tokio::time::timeout(day, events.next()).await.is_err());
        assert!(server.counts().0 == 1 && server.counts().1 > 100 && health.lists() == 1);
    }
}
