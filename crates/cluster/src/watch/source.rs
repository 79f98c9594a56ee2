//! Lists the objects of a kind, and then follows their changes.
//!
//! A list is the beginning of a watch: the API server sends the present objects one by one, and a bookmark after the
//! last. It shows everything that was written before it was asked for, as the replicas' change of leaders needs; kube's
//! own streamed list may be an older state. Where it fails, the next list is read in pages, and where the server does
//! not know it, every list.
//!
//! Invariant: one object at a time is in memory as text.

use std::time::Duration;

use futures::stream::{self, Stream};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::watch::WatchEvent;
use kube::core::{Request, Status};
use kube::runtime::watcher::Event;

use crate::answer::{Built, Items, Lines, PAGE};
use crate::object::Object;

/// The lifetime of a watch at the API server, in seconds; then it is resumed.
const LIFETIME: u32 = 290;

/// The longest time without an event. By then the API server has ended the watch, unless the connection is dead.
const PATIENCE: Duration = Duration::from_secs(LIFETIME as u64 + 5);

/// The time without a byte after which a watch counts as silent. The API server sends a bookmark about once a minute; a
/// proxy may end idle connections earlier.
const QUIET: Duration = Duration::from_secs(30);

/// Silent watches in a row after which everything is listed anew.
const SILENT_WATCHES: u32 = 2;

/// The annotation of the bookmark after the last of the present objects.
const LIST_ENDS: &str = "k8s.io/initial-events-end";

/// Why a list or a watch has stopped. It is begun again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("the list cannot be read: {0}")]
    List(kube::Error),
    #[error("the watch cannot be started: {0}")]
    Start(kube::Error),
    #[error("the watch cannot be read: {0}")]
    Read(kube::Error),
    #[error("the API server ended the watch: {}", .0.message)]
    Ended(Box<Status>),
    #[error("the streamed list ended before its last object")]
    CutOff,
    #[error("an object changed during the streamed list")]
    Changed,
    #[error("a list has no metadata.resourceVersion")]
    NoVersion,
    #[error(
        "the versions went back from {from} to {to}, as after the API server's data was restored"
    )]
    WentBack { from: String, to: String },
}

/// Which objects of a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

/// What is read next.
enum State {
    /// A new list.
    Unlisted,
    /// A list as a watch, which is not requested yet.
    Unopened,
    /// A list that comes as a watch.
    Streamed(Lines),
    /// The page of a list after this token; the first one, if that is empty.
    Paged(String),
    /// The rest of a page.
    Page(Items),
    /// Changes after this version.
    Listed(String),
    /// Changes after this version, from a watch.
    Watching(String, Lines),
}

/// What a watch has sent.
enum Line<K> {
    Event(WatchEvent<K>),
    End,
}

struct Source {
    client: Client,
    request: Request,
    selection: Selection,
    /// Whether the API server does not stream lists.
    refuses_streams: bool,
    /// Whether the next list is read in pages.
    in_pages: bool,
    /// Watches in a row that have ended without a byte after [`QUIET`].
    silent: u32,
    state: State,
}

/// The endless stream of what exists at this path, and of its changes. After an error it goes on where it can.
pub(crate) fn source<K>(
    client: Client,
    path: &str,
    selection: Selection,
) -> impl Stream<Item = Result<Event<K>, SourceError>> + use<K>
where
    K: Object + Clone,
{
    let request = Request::new(path);
    let source = Source {
        client,
        request,
        selection,
        refuses_streams: false,
        in_pages: false,
        silent: 0,
        state: State::Unlisted,
    };
    stream::unfold(source, |mut source| async {
        loop {
            if let Some(event) = source.step().await.transpose() {
                return Some((event, source));
            }
        }
    })
}

impl Source {
    /// One step; `None`: there is nothing to tell yet. After an error that says nothing else, the state is
    /// [`State::Unlisted`].
    async fn step<K: Object + Clone>(&mut self) -> Result<Option<Event<K>>, SourceError> {
        match std::mem::replace(&mut self.state, State::Unlisted) {
            // Sent before the request: what is learned in another way from now on may be newer than the list.
            State::Unlisted => {
                let streams = !self.in_pages && !self.refuses_streams;
                // If this list fails, the next one is read in the other way.
                self.in_pages = streams;
                self.state = if streams { State::Unopened } else { State::Paged(String::new()) };
                Ok(Some(Event::Init))
            }
            State::Unopened => self.open_stream().await,
            State::Streamed(lines) => self.streamed(lines).await,
            State::Paged(token) => {
                let page = Items::open(&self.client, self.list(&token)).await;
                self.state = State::Page(page.map_err(SourceError::List)?);
                Ok(None)
            }
            State::Page(page) => self.page(page).await,
            State::Listed(version) => {
                self.state = State::Listed(version.clone());
                let opened = Lines::open(&self.client, self.watch(&version)).await;
                let lines = opened.map_err(|error| {
                    if is_gone(&error) {
                        self.state = State::Unlisted;
                    }
                    SourceError::Start(error)
                })?;
                self.state = State::Watching(version, lines);
                Ok(None)
            }
            State::Watching(version, lines) => self.watched(version, lines).await,
        }
    }

    async fn open_stream<K>(&mut self) -> Result<Option<Event<K>>, SourceError> {
        match Lines::open(&self.client, self.stream()).await {
            Ok(lines) => self.state = State::Streamed(lines),
            // As a server answers that does not know the parameters, or has the feature off.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                tracing::info!(why = status.message, "lists are not streamed; reading pages");
                self.refuses_streams = true;
                self.state = State::Paged(String::new());
            }
            Err(error) => return Err(SourceError::Start(error)),
        }
        Ok(None)
    }

    async fn streamed<K: Object + Clone>(
        &mut self,
        mut lines: Lines,
    ) -> Result<Option<Event<K>>, SourceError> {
        match next_line::<K>(&mut lines).await.map_err(SourceError::Read)? {
            Line::Event(WatchEvent::Added(object)) => {
                self.state = State::Streamed(lines);
                Ok(Some(Event::InitApply(object)))
            }
            Line::Event(WatchEvent::Bookmark(bookmark)) => {
                let ends = bookmark.metadata.annotations.contains_key(LIST_ENDS);
                self.state = if ends {
                    self.in_pages = false;
                    State::Watching(bookmark.metadata.resource_version, lines)
                } else {
                    State::Streamed(lines)
                };
                Ok(ends.then_some(Event::InitDone))
            }
            // The objects that were sent are not kept by name, so none can be replaced or removed.
            Line::Event(WatchEvent::Modified(_) | WatchEvent::Deleted(_)) => {
                Err(SourceError::Changed)
            }
            Line::Event(WatchEvent::Error(status)) => Err(SourceError::Ended(status)),
            Line::End => Err(SourceError::CutOff),
        }
    }

    async fn page<K: Object>(&mut self, mut page: Items) -> Result<Option<Event<K>>, SourceError> {
        if let Some(object) = page.next().await.map_err(SourceError::List)? {
            self.state = State::Page(page);
            return Ok(Some(Event::InitApply(object)));
        }
        let list = page.end().map_err(SourceError::List)?;
        if !list.continue_token.is_empty() {
            self.state = State::Paged(list.continue_token);
            return Ok(None);
        }
        if list.version.is_empty() {
            return Err(SourceError::NoVersion);
        }
        self.state = State::Listed(list.version);
        Ok(Some(Event::InitDone))
    }

    async fn watched<K: Object + Clone>(
        &mut self,
        version: String,
        mut lines: Lines,
    ) -> Result<Option<Event<K>>, SourceError> {
        let line = match next_line(&mut lines).await {
            Ok(line) => line,
            Err(error) => {
                self.resume(version, &lines);
                return Err(SourceError::Read(error));
            }
        };
        let event: Event<K> = match line {
            Line::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                Event::Apply(object)
            }
            Line::Event(WatchEvent::Deleted(object)) => Event::Delete(object),
            Line::Event(WatchEvent::Bookmark(bookmark)) => {
                self.go_on(&version, bookmark.metadata.resource_version, lines)?;
                return Ok(None);
            }
            Line::Event(WatchEvent::Error(status)) => {
                if status.code != 410 {
                    self.state = State::Listed(version);
                }
                return Err(SourceError::Ended(status));
            }
            Line::End => {
                self.resume(version, &lines);
                return Ok(None);
            }
        };
        let (Event::Apply(object) | Event::Delete(object)) = &event else { return Ok(None) };
        let newest = object.about().resource_version.clone().filter(|version| !version.is_empty());
        self.go_on(&version, newest.unwrap_or_else(|| version.clone()), lines)?;
        Ok(Some(event))
    }

    /// Goes on with a watch that has come to the version `next`.
    fn go_on(&mut self, version: &str, next: String, lines: Lines) -> Result<(), SourceError> {
        if is_lower(&next, version) {
            return Err(SourceError::WentBack { from: version.to_owned(), to: next });
        }
        self.state = State::Watching(next, lines);
        Ok(())
    }

    /// After the end of a watch: the next one begins at this version. The API server accepts one from a version that is
    /// still to come, as after etcd was restored, and sends nothing on it until then. So two silent watches in a row
    /// are followed by a list.
    fn resume(&mut self, version: String, lines: &Lines) {
        if lines.has_spoken {
            self.silent = 0;
        } else if lines.since.elapsed() >= QUIET {
            self.silent += 1;
        }
        if self.silent < SILENT_WATCHES {
            self.state = State::Listed(version);
        } else {
            tracing::warn!(
                path = self.request.url_path,
                version,
                "the API server sends nothing from this version on, as after its data was restored; listing anew"
            );
            self.silent = 0;
        }
    }

    fn list(&self, token: &str) -> Built {
        self.request.list(&ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(PAGE),
            continue_token: (!token.is_empty()).then(|| token.to_owned()),
            ..ListParams::default()
        })
    }

    /// Without a version, the list is at least as new as this request.
    fn stream(&self) -> Built {
        self.request.watch(&WatchParams { send_initial_events: true, ..self.params() }, "")
    }

    fn watch(&self, version: &str) -> Built {
        self.request.watch(&self.params(), version)
    }

    fn params(&self) -> WatchParams {
        WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: Some(LIFETIME),
            bookmarks: true,
            send_initial_events: false,
        }
    }
}

async fn next_line<K: Object + Clone>(lines: &mut Lines) -> kube::Result<Line<K>> {
    match tokio::time::timeout(PATIENCE, lines.next()).await {
        Ok(line) => Ok(line?.map_or(Line::End, Line::Event)),
        Err(_) => Ok(Line::End),
    }
}

/// Whether a version is lower than another one. Those of one kind can be compared as numbers.
fn is_lower(next: &str, version: &str) -> bool {
    match (next.parse::<u64>(), version.parse::<u64>()) {
        (Ok(next), Ok(version)) => next < version,
        _ => false,
    }
}

/// Whether the version is too old to watch from.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}
