//! Following a kind's objects inside the process, as an informer does over HTTP.
//!
//! Invariant: whoever follows sees every object's last state, changes of one kind in order; where
//! the history was forgotten, everything that is there comes anew.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use crate::kind::Kind;
use crate::store::{Change, Store};

/// What is new.
pub(crate) enum News {
    /// Everything that is there; what is not in it is gone.
    All(Vec<Arc<Value>>),
    /// What has changed since.
    Changes(Vec<Change>),
}

/// Where a follower stands.
pub(crate) struct Follow {
    store: Store,
    kind: Kind,
    newest: watch::Receiver<u64>,
    version: Option<u64>,
}

impl Follow {
    pub(crate) fn new(store: &Store, kind: Kind) -> Self {
        Self { store: store.clone(), kind, newest: store.newest(), version: None }
    }

    /// The next news; the first are everything.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            self.newest.mark_unchanged();
            if let Some(news) = self.pending() {
                return news;
            }
            // The store that sends is in `self`.
            let _ = self.newest.changed().await;
        }
    }

    fn pending(&mut self) -> Option<News> {
        let Some(version) = self.version else { return Some(self.all()) };
        match self.store.since(self.kind, version) {
            Err(_) => Some(self.all()),
            Ok((changes, version)) => {
                self.version = Some(version);
                (!changes.is_empty()).then_some(News::Changes(changes))
            }
        }
    }

    fn all(&mut self) -> News {
        let (objects, version) = self.store.list(self.kind);
        self.version = Some(version);
        News::All(objects)
    }
}

/// What happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectEvent {
    /// It was created or changed, or was there from the beginning.
    Applied(Arc<Value>),
    /// It was deleted; this was its last state.
    Deleted(Arc<Value>),
}

/// Everything that happens to the objects of a kind, from the beginning and in order. See
/// [`Sim::follow`](crate::Sim::follow).
pub struct Objects {
    follow: Follow,
}

impl Objects {
    pub(crate) fn new(store: &Store, kind: Kind) -> Self {
        Self { follow: Follow::new(store, kind) }
    }

    /// The next events, at least one of them unless there are no objects yet.
    pub async fn next(&mut self) -> Vec<ObjectEvent> {
        object_events(self.follow.next().await)
    }

    /// The events that are there already.
    pub fn pending(&mut self) -> Vec<ObjectEvent> {
        self.follow.pending().map_or_else(Vec::new, object_events)
    }
}

fn object_events(news: News) -> Vec<ObjectEvent> {
    match news {
        News::All(objects) => objects.into_iter().map(ObjectEvent::Applied).collect(),
        News::Changes(changes) => changes.into_iter().map(object_event).collect(),
    }
}

fn object_event(change: Change) -> ObjectEvent {
    change.after.map_or(ObjectEvent::Deleted(change.last), ObjectEvent::Applied)
}
