//! The Events by which kube-scheduler tells users what it does with their pods (client-go's
//! `tools/events`).
//!
//! Invariant: one Event a pod and reason. A second occurrence makes it a series; later ones, and other
//! words, are not written: the words of the last attempt are in the pod's condition.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::config::scheduler_of;
use super::cycle::{key, text};
use crate::kind::NEW_EVENTS;
use crate::store::Store;

/// As long as an Event's words may be.
const NOTE: usize = 1024;

/// The names of the Events that were written, by the pods' UIDs and the reasons.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<HashMap<(String, &'static str), String>>);

impl Recorder {
    pub(super) fn scheduled(&self, store: &Store, pod: &Value, node: &str) {
        let (namespace, name) = key(pod);
        let note = format!("Successfully assigned {namespace}/{name} to {node}");
        self.record(store, pod, ["Normal", "Scheduled", "Binding"], &note);
    }

    pub(super) fn failed(&self, store: &Store, pod: &Value, why: &str) {
        self.record(store, pod, ["Warning", "FailedScheduling", "Scheduling"], why);
    }

    /// The pod is gone.
    pub(super) fn forget(&self, uid: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|(of, _), _| of != uid);
    }

    fn record(&self, store: &Store, pod: &Value, what: [&'static str; 3], note: &str) {
        let (namespace, pod_name) = key(pod);
        let now = Timestamp::now();
        let id = (text(&pod["metadata"]["uid"]).to_owned(), what[1]);
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || format!("{pod_name}.{:x}", now.as_nanosecond());
        let name = names.entry(id).or_insert_with(fresh).clone();
        drop(names);
        let now = format!("{now:.6}");
        // The closure below never fails.
        let _ = store.change(NEW_EVENTS, &namespace, &name, |before| {
            let Some(before) = before else { return Ok(Some(event(pod, what, note, &now))) };
            let mut after = before.clone();
            if after["series"].is_null() {
                after["series"] = json!({"count": 2, "lastObservedTime": now});
            }
            Ok(Some(after))
        });
    }
}

fn event(pod: &Value, [kind, reason, action]: [&str; 3], note: &str, now: &str) -> Value {
    let (meta, reporter) = (&pod["metadata"], scheduler_of(pod));
    json!({
        "metadata": {},
        "eventTime": now,
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"],
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        },
        "type": kind, "reason": reason, "action": action, "note": short(note),
        "reportingController": reporter, "reportingInstance": format!("{reporter}-sim"),
    })
}

fn short(note: &str) -> String {
    const END: &str = " ...";
    if note.len() <= NOTE {
        return note.to_owned();
    }
    let end = (0..=NOTE - END.len()).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{END}", &note[..end])
}
