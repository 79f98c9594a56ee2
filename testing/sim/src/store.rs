//! The objects, their versions, and the history that watches read.
//!
//! Invariant: every change takes the next resource version, is in the history until that is
//! compacted, and is seen by watches in that order. A write that changes nothing is no change, as
//! in etcd3-backed API servers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::Failure;
use crate::event;
use crate::kind::Kind;
use crate::merge::merge;

/// Changes remembered for watches; older ones are gone, and a watch from there gets 410.
const HISTORY: usize = 20_000;

/// Kind, namespace (empty for cluster-wide kinds) and name.
type Key = (Kind, String, String);

/// One change, as watches see it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) kind: Kind,
    /// The object before, unless it was created.
    pub(crate) before: Option<Arc<Value>>,
    /// The object after, unless it was deleted.
    pub(crate) after: Option<Arc<Value>>,
    /// The last state, at this change's version.
    pub(crate) last: Arc<Value>,
}

impl Change {
    fn shown(&self, kind: Kind) -> Self {
        let shown = |object: &Arc<Value>| event::shown(kind, object);
        Self {
            version: self.version,
            kind,
            before: self.before.as_ref().map(shown),
            after: self.after.as_ref().map(shown),
            last: shown(&self.last),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    uids: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Change>,
    /// The version of the newest change that is forgotten.
    forgotten: u64,
}

/// The store; clones share one.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    state: Arc<Mutex<State>>,
    newest: watch::Sender<u64>,
}

impl Store {
    pub(crate) fn new() -> Self {
        // Resource version 0 means "any" to clients, so the first object must not carry it.
        let state = State { version: 1, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), newest: watch::Sender::new(1) }
    }

    /// Marked changed whenever anything in the store changes.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = (event::home(kind), namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).map(|object| event::shown(kind, object))
    }

    /// Every object of a kind, and the version of the whole.
    pub(crate) fn list(&self, kind: Kind) -> (Vec<Arc<Value>>, u64) {
        let state = self.lock();
        let home = event::home(kind);
        let objects = state.objects.range((home, String::new(), String::new())..);
        let objects = objects.take_while(|(key, _)| key.0 == home);
        (objects.map(|(_, object)| event::shown(kind, object)).collect(), state.version)
    }

    /// The changes to a kind after a version, and the version up to which they reach.
    pub(crate) fn since(&self, kind: Kind, version: u64) -> Result<(Vec<Change>, u64), Failure> {
        let state = self.lock();
        if version < state.forgotten {
            return Err(Failure::too_old(version, state.forgotten));
        }
        let start = state.history.partition_point(|c| c.version <= version);
        let changes = state.history.range(start..).filter(|c| c.kind == event::home(kind));
        Ok((changes.map(|change| change.shown(kind)).collect(), state.version))
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

    /// Reads and changes one object in one step. `change` is given the present object and returns
    /// what should be there instead.
    pub(crate) fn change(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
    ) -> Result<Option<Arc<Value>>, Failure> {
        self.step(kind, namespace, name, change, State::commit)
    }

    /// What [`Store::change`] would give. Nothing changes, and the object keeps its version; one that
    /// is not there has none.
    pub(crate) fn rehearse(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
    ) -> Result<Option<Arc<Value>>, Failure> {
        self.step(kind, namespace, name, change, State::rehearse)
    }

    fn step(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
        end: impl FnOnce(&mut State, &Key, Option<Arc<Value>>, Option<Value>) -> Option<Arc<Value>>,
    ) -> Result<Option<Arc<Value>>, Failure> {
        let mut state = self.lock();
        let key = (event::home(kind), namespace.to_owned(), name.to_owned());
        let before = state.objects.get(&key).cloned();
        let shown = before.as_ref().map(|object| event::shown(kind, object));
        let after = change(shown.as_deref())?.map(|object| event::kept(kind, object));
        if after.as_ref() == before.as_deref() {
            return Ok(shown);
        }
        let object = end(&mut state, &key, before, after);
        let version = state.version;
        drop(state);
        self.newest.send_if_modified(|newest| std::mem::replace(newest, version) != version);
        Ok(object.map(|object| event::shown(kind, &object)))
    }

    // A panic in a caller's closure leaves the state as it was before the change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Stores `after` (or deletes), and returns the object's last state.
    fn commit(
        &mut self,
        key: &Key,
        before: Option<Arc<Value>>,
        after: Option<Value>,
    ) -> Option<Arc<Value>> {
        self.version += 1;
        let mut last = after.clone().or_else(|| before.as_deref().cloned())?;
        self.stamp(key, before.as_deref(), &mut last);
        let last = Arc::new(last);
        let after = after.map(|_| last.clone());
        match &after {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(key),
        };
        self.remember(Change {
            version: self.version,
            kind: key.0,
            before,
            after,
            last: last.clone(),
        });
        Some(last)
    }

    /// What [`State::commit`] would return.
    fn rehearse(
        &mut self,
        key: &Key,
        before: Option<Arc<Value>>,
        after: Option<Value>,
    ) -> Option<Arc<Value>> {
        let mut last = after.or_else(|| before.as_deref().cloned())?;
        self.stamp(key, before.as_deref(), &mut last);
        let version = before.map(|object| object["metadata"]["resourceVersion"].clone());
        merge(&mut last["metadata"], &json!({ "resourceVersion": version }));
        Some(Arc::new(last))
    }

    /// Fills in what only the server may set.
    fn stamp(&mut self, (kind, namespace, name): &Key, before: Option<&Value>, object: &mut Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.name.into();
        let meta = &mut object["metadata"];
        meta["name"] = name.as_str().into();
        if kind.namespaced {
            meta["namespace"] = namespace.as_str().into();
        }
        meta["resourceVersion"] = self.version.to_string().into();
        for (field, make) in
            [("uid", Self::uid as fn(&mut Self) -> Value), ("creationTimestamp", now)]
        {
            if meta[field].is_null() {
                meta[field] = before.map_or(Value::Null, |b| b["metadata"][field].clone());
            }
            if meta[field].is_null() {
                meta[field] = make(self);
            }
        }
    }

    fn uid(&mut self) -> Value {
        self.uids += 1;
        json!(format!("00000000-0000-4000-8000-{:012x}", self.uids))
    }

    fn remember(&mut self, change: Change) {
        self.history.push_back(change);
        while self.history.len() > HISTORY {
            if let Some(old) = self.history.pop_front() {
                self.forgotten = old.version;
            }
        }
    }
}

fn now(_: &mut State) -> Value {
    json!(time())
}

/// The present time as objects carry it: to the second.
pub(crate) fn time() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
}
