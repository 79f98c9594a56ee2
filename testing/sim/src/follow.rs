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
            let Some(version) = self.version else { return self.all() };
            match self.store.since(self.kind, version) {
                Err(_) => return self.all(),
                Ok((changes, version)) => {
                    self.version = Some(version);
                    if !changes.is_empty() {
                        return News::Changes(changes);
                    }
                }
            }
            // The store that sends is in `self`.
            let _ = self.newest.changed().await;
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
pub enum Seen {
    /// It is there, or has changed.
    Applied(Arc<Value>),
    /// It is gone; this was its last state.
    Gone(Arc<Value>),
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

    /// What is new; waits until something is.
    pub async fn next(&mut self) -> Vec<Seen> {
        match self.follow.next().await {
            News::All(objects) => objects.into_iter().map(Seen::Applied).collect(),
            News::Changes(changes) => changes.into_iter().map(seen).collect(),
        }
    }
}

fn seen(change: Change) -> Seen {
    change.after.map_or(Seen::Gone(change.last), Seen::Applied)
}
