//! A watch: what is there, then every change, as one JSON object a line.

use std::collections::VecDeque;
use std::io;
use std::num::IntErrorKind;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::api::{Include, table};
use crate::error::Failure;
use crate::faults::Faults;
use crate::kind::Kind;
use crate::request::Request;
use crate::selector::Selector;
use crate::store::{Change, Store};

/// How often a quiet watch is told how far it has come; about as often as a real API server does.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// How long a watch lasts whose client does not say.
const LASTS: Duration = Duration::from_secs(30 * 60);

/// How long a watch lasts at most, in seconds: a year.
const LONGEST: u64 = 365 * 24 * 60 * 60;

struct Watch {
    store: Store,
    kind: Kind,
    selector: Selector,
    bookmarks: bool,
    /// Whether objects come as tables, and how much of them in these.
    as_table: Option<Include>,
    /// The version that the client has been told of, or is about to be.
    version: u64,
    /// Lines to be sent.
    lines: VecDeque<Value>,
    ends: Instant,
    newest: Receiver<u64>,
    cut: Receiver<u64>,
    over: bool,
}

/// Answers a watch.
pub(crate) fn start(
    store: &Store,
    faults: &Faults,
    kind: Kind,
    selector: Selector,
    request: &Request,
) -> Result<Response<Body>, Failure> {
    let mut watch = Watch {
        newest: store.newest(),
        cut: faults.cuts(),
        store: store.clone(),
        kind,
        selector,
        bookmarks: request.flag("allowWatchBookmarks"),
        as_table: Include::of(request)?,
        version: 0,
        lines: VecDeque::new(),
        ends: Instant::now() + lasts(request.parameter("timeoutSeconds"))?,
        over: false,
    };
    watch.begin(request)?;
    let mut response = Response::new(Body::from_stream(watch.into_stream()));
    let json = axum::http::HeaderValue::from_static("application/json");
    let name = axum::http::header::CONTENT_TYPE;
    response.headers_mut().insert(name, json);
    Ok(response)
}

fn lasts(seconds: &str) -> Result<Duration, Failure> {
    let asked = if seconds.is_empty() { Ok(-1) } else { seconds.parse::<i64>() };
    let asked = asked.map_err(|error| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Failure::bad_request(format!("strconv.ParseInt: parsing {seconds:?}: {why}"))
    })?;
    let lasts = |seconds: u64| Duration::from_secs(seconds.min(LONGEST));
    Ok(u64::try_from(asked).map_or(LASTS, lasts))
}

impl Watch {
    /// Where the watch begins: at the version asked for, or with everything that is there.
    fn begin(&mut self, request: &Request) -> Result<(), Failure> {
        let asked = request.parameter("resourceVersion");
        let initial = request.flag("sendInitialEvents");
        if initial || matches!(asked, "" | "0") {
            self.tell_everything(initial);
            return Ok(());
        }
        let wrong = |_| Failure::bad_request(format!("invalid resource version: {asked}"));
        self.version = asked.parse().map_err(wrong)?;
        Ok(())
    }

    fn tell_everything(&mut self, mark_the_end: bool) {
        let (objects, version) = self.store.list(self.kind);
        self.version = version;
        let matching = objects.iter().filter(|object| self.selector.matches(object));
        self.lines = matching.map(|object| event("ADDED", object)).collect();
        if mark_the_end {
            let mut bookmark = self.bookmark();
            bookmark["object"]["metadata"]["annotations"] =
                json!({"k8s.io/initial-events-end": "true"});
            self.lines.push_back(bookmark);
        }
    }

    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        stream::unfold(self, |mut watch| async move {
            let line = watch.next().await?;
            Some((line, watch))
        })
    }

    /// The next line; an error breaks the connection.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                let line = self.rendered(line);
                return Some(Ok(Bytes::from(format!("{line}\n"))));
            }
            if self.over {
                return None;
            }
            self.newest.mark_unchanged();
            self.catch_up();
            if self.lines.is_empty()
                && let Err(broken) = self.wait().await
            {
                self.over = true;
                return Some(Err(broken));
            }
        }
    }

    /// An object as a table of one row, where the client wants tables.
    fn rendered(&self, mut line: Value) -> Value {
        let of_object = matches!(line["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED"));
        if let Some(include) = self.as_table.filter(|_| of_object) {
            let object = line["object"].take();
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            line["object"] = table(self.kind, std::slice::from_ref(&object), version, include);
        }
        line
    }

    /// Until something changes, a bookmark is due, or the watch ends.
    async fn wait(&mut self) -> io::Result<()> {
        let bookmark = Instant::now() + BOOKMARK_EVERY;
        tokio::select! {
            _ = self.newest.changed() => {}
            _ = self.cut.changed() => return Err(io::ErrorKind::ConnectionReset.into()),
            () = sleep_until(self.ends) => {
                self.over = true;
                self.tell_version();
            }
            () = sleep_until(bookmark) => self.tell_version(),
        }
        Ok(())
    }

    fn catch_up(&mut self) {
        match self.store.since(self.kind, self.version) {
            Ok((changes, version)) => {
                self.version = version;
                let lines = changes.iter().filter_map(|change| self.seen(change));
                self.lines = lines.collect();
            }
            Err(gone) => {
                self.over = true;
                self.lines.push_back(event("ERROR", &gone.status()));
            }
        }
    }

    /// What the change is to this watch: an object that begins to match was added, one that ceases
    /// to match was deleted.
    fn seen(&self, change: &Change) -> Option<Value> {
        let matches = |object: &Option<std::sync::Arc<Value>>| {
            object.as_deref().is_some_and(|o| self.selector.matches(o))
        };
        match (matches(&change.before), matches(&change.after)) {
            (false, false) => None,
            (false, true) => Some(event("ADDED", &change.last)),
            (true, true) => Some(event("MODIFIED", &change.last)),
            (true, false) => Some(event("DELETED", &change.last)),
        }
    }

    fn tell_version(&mut self) {
        if self.bookmarks {
            self.lines.push_back(self.bookmark());
        }
    }

    fn bookmark(&self) -> Value {
        let object = json!({
            "kind": self.kind.name, "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": self.version.to_string()},
        });
        event("BOOKMARK", &object)
    }
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}
