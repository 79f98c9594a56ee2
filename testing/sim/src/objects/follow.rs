//! Following a kind's objects inside the process, as an informer does over HTTP.
//!
//! Invariant: a follower sees every object's last state, and the changes of a kind in their order. Where the history
//! was compacted, it gets all present objects anew.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::kind::Kind;
use super::store::{Change, Store};

/// What has happened since the last update.
pub(crate) enum Update {
    /// All present objects. An object that is not among them is deleted.
    All(Vec<Arc<Value>>),
    /// The changes, at least one.
    Changes(Vec<Change>),
}

/// A follower of one kind.
pub(crate) struct Follower {
    store: Store,
    kind: Kind,
    newest: watch::Receiver<u64>,
    /// The version up to which updates were delivered.
    version: Option<u64>,
}

impl Follower {
    pub(crate) fn new(store: &Store, kind: Kind) -> Self {
        Self { store: store.clone(), kind, newest: store.newest(), version: None }
    }

    /// Waits for the next update. The first one is [`Update::All`].
    pub(crate) async fn next(&mut self) -> Update {
        loop {
            self.newest.mark_unchanged();
            if let Some(update) = self.pending() {
                return update;
            }
            // It cannot fail: `self` holds the sender.
            let _ = self.newest.changed().await;
        }
    }

    /// The next update, if there is one already.
    fn pending(&mut self) -> Option<Update> {
        let Some(version) = self.version else { return Some(self.all()) };
        match self.store.since(self.kind, version) {
            Err(_) => Some(self.all()),
            Ok((changes, version)) => {
                self.version = Some(version);
                (!changes.is_empty()).then_some(Update::Changes(changes))
            }
        }
    }

    fn all(&mut self) -> Update {
        let (objects, version) = self.store.list(self.kind);
        self.version = Some(version);
        Update::All(objects)
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

/// Everything that happens to the objects of a kind, see [`Sim::follow`](crate::Sim::follow).
pub struct Objects {
    follower: Follower,
}

impl Objects {
    pub(crate) fn new(store: &Store, kind: Kind) -> Self {
        Self { follower: Follower::new(store, kind) }
    }

    /// Waits for the next events. The first call returns at once, with all present objects.
    pub async fn next(&mut self) -> Vec<ObjectEvent> {
        object_events(self.follower.next().await)
    }

    /// The events that are there already.
    pub fn pending(&mut self) -> Vec<ObjectEvent> {
        self.follower.pending().map_or_else(Vec::new, object_events)
    }
}

fn object_events(update: Update) -> Vec<ObjectEvent> {
    match update {
        Update::All(objects) => objects.into_iter().map(ObjectEvent::Applied).collect(),
        Update::Changes(changes) => changes
            .into_iter()
            .map(|change| {
                change.after.map_or(ObjectEvent::Deleted(change.last), ObjectEvent::Applied)
            })
            .collect(),
    }
}
