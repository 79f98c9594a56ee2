//! Events have two groups and one store: what is written in `events.k8s.io` is read in the core group
//! under that group's names, and the other way round. They are kept in the core group's.

use std::sync::Arc;

use serde_json::Value;

use crate::kind::{EVENTS, Kind, NEW_EVENTS};

/// Names in `events.k8s.io` and in the core group.
const NAMES: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// The kind under which objects of a kind are kept.
pub(crate) fn home(kind: Kind) -> Kind {
    if kind == NEW_EVENTS { EVENTS } else { kind }
}

/// A kept object as those see it who ask for this kind.
pub(crate) fn shown(kind: Kind, kept: &Arc<Value>) -> Arc<Value> {
    if kind != NEW_EVENTS {
        return kept.clone();
    }
    let mut object = Value::clone(kept);
    NAMES.iter().for_each(|(new, old)| rename(&mut object, old, new));
    object["apiVersion"] = NEW_EVENTS.api_version().into();
    Arc::new(object)
}

/// An object of this kind as it is kept.
pub(crate) fn kept(kind: Kind, mut object: Value) -> Value {
    if kind == NEW_EVENTS {
        NAMES.iter().for_each(|(new, old)| rename(&mut object, new, old));
        object["apiVersion"] = EVENTS.api_version().into();
    }
    object
}

fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(fields) = object.as_object_mut()
        && let Some(value) = fields.remove(from)
    {
        fields.insert(to.to_owned(), value);
    }
}
