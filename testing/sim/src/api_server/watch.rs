//! Watches: the present objects, then every change, as one JSON object a line. With `sendInitialEvents`, a bookmark
//! with an annotation stands between the two.

use std::collections::VecDeque;
use std::io;
use std::num::IntErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use super::faults::Faults;
use super::request::Request;
use crate::objects::failure::Failure;
use crate::objects::kind::Kind;
use crate::objects::selector::Selector;
use crate::objects::store::{Change, Store};

/// Time between two bookmarks of a watch without events, about a real API server's.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Lifetime of a watch without `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Longest lifetime of a watch: a year, in seconds.
const MAX_TIMEOUT: u64 = 365 * 24 * 60 * 60;

struct Watch {
    store: Store,
    kind: Kind,
    selector: Selector,
    /// Whether the client takes bookmarks.
    bookmarks: bool,
    /// The version up to which events are sent or in `events`.
    version: u64,
    /// Objects that existed at the beginning, to be sent before `events`.
    initial: VecDeque<Arc<Value>>,
    /// Whether a bookmark after `initial` is still to be sent.
    marks_end: bool,
    /// Events to be sent.
    events: VecDeque<Value>,
    deadline: Instant,
    newest: Receiver<u64>,
    disconnects: Receiver<u64>,
    /// Whether the stream ends after `events`.
    over: bool,
}

/// Answers a watch.
///
/// # Errors
/// 400 where a parameter is no number.
pub(super) fn start(
    store: &Store,
    faults: &Faults,
    kind: Kind,
    selector: Selector,
    request: &Request,
) -> Result<Response<Body>, Failure> {
    let mut watch = Watch {
        newest: store.newest(),
        disconnects: faults.disconnects(),
        store: store.clone(),
        kind,
        selector,
        bookmarks: request.flag("allowWatchBookmarks"),
        version: 0,
        initial: VecDeque::new(),
        marks_end: false,
        events: VecDeque::new(),
        deadline: Instant::now() + timeout(request.parameter("timeoutSeconds"))?,
        over: false,
    };
    watch.begin(request)?;
    let mut response = Response::new(Body::from_stream(watch.into_stream()));
    let json = axum::http::HeaderValue::from_static("application/json");
    let name = axum::http::header::CONTENT_TYPE;
    response.headers_mut().insert(name, json);
    Ok(response)
}

/// The lifetime that `timeoutSeconds` asks for. A negative one counts as none.
fn timeout(seconds: &str) -> Result<Duration, Failure> {
    let asked = if seconds.is_empty() { Ok(-1) } else { seconds.parse::<i64>() };
    let asked = asked.map_err(|error| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Failure::bad_request(format!("strconv.ParseInt: parsing {seconds:?}: {why}"))
    })?;
    Ok(u64::try_from(asked)
        .map_or(DEFAULT_TIMEOUT, |seconds: u64| Duration::from_secs(seconds.min(MAX_TIMEOUT))))
}

impl Watch {
    /// Sets where the watch begins: at the version asked for, or with all present objects.
    fn begin(&mut self, request: &Request) -> Result<(), Failure> {
        let initial_events = request.query.get("sendInitialEvents").map(|_| {
            // As strconv.ParseBool reads what clients write.
            request.flag("sendInitialEvents")
        });
        let asked = request.parameter("resourceVersion");
        let version =
            match asked {
                "" | "0" => None,
                _ => Some(asked.parse().map_err(|_| {
                    Failure::bad_request(format!("invalid resource version: {asked}"))
                })?),
            };
        match (initial_events, version) {
            (Some(false), None) => self.version = *self.newest.borrow(),
            (None | Some(false), Some(version)) => self.version = version,
            (Some(true), _) | (None, None) => {
                let (objects, version) = self.store.list(self.kind);
                let matching = objects.into_iter().filter(|object| self.selector.matches(object));
                self.initial = matching.collect();
                self.version = version;
                self.marks_end = initial_events.is_some() && self.bookmarks;
            }
        }
        Ok(())
    }

    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        stream::unfold(self, |mut watch| async move {
            let line = watch.next().await?;
            Some((line, watch))
        })
    }

    /// The next line. An error breaks the connection.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let initial = self.initial.pop_front().map(|object| event("ADDED", &object));
            if let Some(event) =
                initial.or_else(|| self.mark_end()).or_else(|| self.events.pop_front())
            {
                return Some(Ok(Bytes::from(format!("{event}\n"))));
            }
            if self.over {
                return None;
            }
            self.newest.mark_unchanged();
            self.catch_up();
            if self.events.is_empty()
                && let Err(broken) = self.wait().await
            {
                self.over = true;
                return Some(Err(broken));
            }
        }
    }

    /// Waits until something changes, a bookmark is due, or the watch ends.
    async fn wait(&mut self) -> io::Result<()> {
        let bookmark = Instant::now() + BOOKMARK_EVERY;
        tokio::select! {
            _ = self.newest.changed() => {}
            _ = self.disconnects.changed() => return Err(io::ErrorKind::ConnectionReset.into()),
            () = sleep_until(self.deadline) => {
                self.over = true;
                self.push_bookmark();
            }
            () = sleep_until(bookmark) => self.push_bookmark(),
        }
        Ok(())
    }

    /// Queues the changes since `version`.
    fn catch_up(&mut self) {
        match self.store.since(self.kind, self.version) {
            Ok((changes, version)) => {
                self.version = version;
                let events = changes.iter().filter_map(|change| self.event_of(change));
                self.events = events.collect();
            }
            Err(gone) => {
                self.over = true;
                self.events.push_back(event("ERROR", &gone.status()));
            }
        }
    }

    /// The event for a change: an object that begins to match is added, and one that ceases to match is deleted. As a
    /// real API server's, the event of the latter has the object from before the change, with the version of the
    /// change.
    fn event_of(&self, change: &Change) -> Option<Value> {
        let before = change.before.as_deref().is_some_and(|object| self.selector.matches(object));
        let after = change.after.as_deref().is_some_and(|object| self.selector.matches(object));
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(event("ADDED", &change.last)),
            (true, true) => Some(event("MODIFIED", &change.last)),
            (true, false) => {
                let mut object = Value::clone(change.before.as_deref()?);
                object["metadata"]["resourceVersion"] =
                    change.last["metadata"]["resourceVersion"].clone();
                Some(event("DELETED", &object))
            }
        }
    }

    /// The bookmark after the last of the objects that existed at the beginning, once.
    fn mark_end(&mut self) -> Option<Value> {
        if !std::mem::take(&mut self.marks_end) {
            return None;
        }
        let mut object = self.bookmark();
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        Some(event("BOOKMARK", &object))
    }

    fn bookmark(&self) -> Value {
        json!({
            "kind": self.kind.name, "apiVersion": self.kind.api_version,
            "metadata": {"resourceVersion": self.version.to_string()},
        })
    }

    /// Queues a bookmark, where the client takes them: an event that tells the version alone.
    fn push_bookmark(&mut self) {
        if !self.bookmarks {
            return;
        }
        self.events.push_back(event("BOOKMARK", &self.bookmark()));
    }
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}
