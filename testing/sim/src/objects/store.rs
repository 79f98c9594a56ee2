//! The objects, their versions, and the history that watches read.
//!
//! Invariant: every change takes the next resource version, stays in the history until that is compacted, and is seen
//! by watches in this order. A write that changes nothing is no change, as in an API server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::failure::Failure;
use super::kind::Kind;

/// Changes kept for watches. A watch from an older version gets 410.
const HISTORY: usize = 20_000;

/// Kind, namespace (empty for kinds without) and name.
type ObjectKey = (Kind, String, String);

/// One change of one object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The resource version that it took.
    pub(crate) version: u64,
    pub(crate) kind: Kind,
    /// The object before, unless it was created.
    pub(crate) before: Option<Arc<Value>>,
    /// The object after, unless it was deleted.
    pub(crate) after: Option<Arc<Value>>,
    /// The last state, with this change's version.
    pub(crate) last: Arc<Value>,
}

#[derive(Debug, Default)]
struct StoreState {
    version: u64,
    /// Number of UIDs given out.
    uids: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: VecDeque<Change>,
    /// The version of the newest change that is no longer in the history.
    forgotten: u64,
}

/// The store. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    state: Arc<Mutex<StoreState>>,
    newest: watch::Sender<u64>,
}

impl Store {
    pub(crate) fn new() -> Self {
        // To clients resource version 0 means "any", so no object may have it.
        let state = StoreState { version: 1, ..StoreState::default() };
        Self { state: Arc::new(Mutex::new(state)), newest: watch::Sender::new(1) }
    }

    /// The newest version. It changes with everything in the store.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).cloned()
    }

    /// Every object of a kind, and the version of the list.
    pub(crate) fn list(&self, kind: Kind) -> (Vec<Arc<Value>>, u64) {
        let state = self.lock();
        let objects = state.objects.range((kind, String::new(), String::new())..);
        let objects = objects.take_while(|(key, _)| key.0 == kind);
        (objects.map(|(_, object)| object.clone()).collect(), state.version)
    }

    /// The changes to a kind after a version, and the version that they lead to.
    ///
    /// # Errors
    /// 410 where the history does not reach back that far.
    pub(crate) fn since(&self, kind: Kind, version: u64) -> Result<(Vec<Change>, u64), Failure> {
        let state = self.lock();
        if version < state.forgotten {
            return Err(Failure::too_old(version, state.forgotten));
        }
        let start = state.history.partition_point(|change| change.version <= version);
        let changes = state.history.range(start..).filter(|change| change.kind == kind);
        Ok((changes.cloned().collect(), state.version))
    }

    /// Whether the history reaches back to a version.
    pub(crate) fn reaches(&self, version: u64) -> bool {
        version >= self.lock().forgotten
    }

    /// Forgets the history: every watch from before now gets 410.
    pub(crate) fn compact(&self) {
        let mut state = self.lock();
        state.version += 1;
        state.forgotten = state.version;
        state.history.clear();
        let version = state.version;
        drop(state);
        self.newest.send_replace(version);
    }

    /// Reads and changes one object in one step. `change` gets the present object and returns what replaces it; `None`
    /// stands for no object. Returns the object's last state.
    ///
    /// # Errors
    /// Those of `change`. Nothing changes then.
    pub(crate) fn change(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
    ) -> Result<Option<Arc<Value>>, Failure> {
        let mut state = self.lock();
        let key = (kind, namespace.to_owned(), name.to_owned());
        let before = state.objects.get(&key).cloned();
        let after = change(before.as_deref())?;
        if after.as_ref() == before.as_deref() {
            return Ok(before);
        }
        let last = state.commit(&key, before, after);
        let version = state.version;
        drop(state);
        self.newest.send_replace(version);
        Ok(last)
    }

    // A panic in a caller's closure comes before the change.
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreState {
    /// Stores `after`, or deletes. Returns the object's last state.
    fn commit(
        &mut self,
        key: &ObjectKey,
        before: Option<Arc<Value>>,
        after: Option<Value>,
    ) -> Option<Arc<Value>> {
        self.version += 1;
        let mut last = after.clone().or_else(|| before.as_deref().cloned())?;
        self.set_server_fields(key, before.as_deref(), &mut last);
        let last = Arc::new(last);
        let after = after.map(|_| last.clone());
        match &after {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(key),
        };
        let change =
            Change { version: self.version, kind: key.0, before, after, last: last.clone() };
        self.remember(change);
        Some(last)
    }

    /// Sets the fields that belong to the server. A UID and a creation time that are there already stay.
    fn set_server_fields(
        &mut self,
        (kind, namespace, name): &ObjectKey,
        before: Option<&Value>,
        object: &mut Value,
    ) {
        object["apiVersion"] = kind.api_version.into();
        object["kind"] = kind.name.into();
        let meta = &mut object["metadata"];
        meta["name"] = name.as_str().into();
        if kind.namespaced {
            meta["namespace"] = namespace.as_str().into();
        }
        meta["resourceVersion"] = self.version.to_string().into();
        for (field, make) in [
            ("uid", Self::next_uid as fn(&mut Self) -> Value),
            ("creationTimestamp", |_| json!(time())),
        ] {
            if meta[field].is_null() {
                meta[field] =
                    before.map_or(Value::Null, |before| before["metadata"][field].clone());
            }
            if meta[field].is_null() {
                meta[field] = make(self);
            }
        }
    }

    fn next_uid(&mut self) -> Value {
        self.uids += 1;
        json!(format!("00000000-0000-4000-8000-{:012x}", self.uids))
    }

    fn remember(&mut self, change: Change) {
        self.history.push_back(change);
        while self.history.len() > HISTORY {
            if let Some(oldest) = self.history.pop_front() {
                self.forgotten = oldest.version;
            }
        }
    }
}

/// The present time as objects carry it: RFC 3339, to the second.
pub(crate) fn time() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
}
