//! The annotations of a Node whose readings are in a NodeLoad: old readings are removed once, and a note is written when nodes
//! have cooled.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Annotations to set (`Some`) or remove.
pub type Changes = Vec<(String, Option<String>)>;

/// The annotations of one Node that wait to be written.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeAnnotations {
    /// Keys of old readings, which are no longer updated.
    leftovers: Vec<String>,
    /// Key and text of the note.
    cooled: Option<(String, String)>,
    due: Option<Timestamp>,
}

impl NodeAnnotations {
    /// The pending annotations of a node that is new to this process.
    pub(crate) fn new(leftovers: Vec<String>) -> Self {
        Self { leftovers, ..Self::default() }
    }

    /// The watch shows the Node's annotations: old readings that are not there need not be removed.
    pub(crate) fn observe(&mut self, annotations: &BTreeMap<String, String>) {
        self.leftovers.retain(|key| annotations.contains_key(key));
        self.end_where_nothing_waits();
    }

    fn end_where_nothing_waits(&mut self) {
        if self.leftovers.is_empty() && self.cooled.is_none() {
            self.due = None;
        }
    }

    /// The NodeLoad was written: from `at` on the old readings may be removed.
    pub(crate) fn replaced(&mut self, at: Timestamp) {
        if !self.leftovers.is_empty() {
            self.due = self.due.or(Some(at));
        }
    }

    /// Makes the note due at `now` that nodes have cooled.
    pub(crate) fn cooled(&mut self, key: String, now: Timestamp) {
        self.cooled = Some((key, now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
        self.due = Some(now);
    }

    /// Whether the note is not written yet.
    pub(crate) fn note_waits(&self) -> bool {
        self.cooled.is_some()
    }

    /// When a write is due.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// The clock was set back, so `due` may be far ahead: it is due at once.
    pub(crate) fn clock_set_back(&mut self) {
        self.due = self.due.map(|_| Timestamp::MIN);
    }

    /// The changes that a job at `now` writes.
    pub(crate) fn changes(&self, now: Timestamp) -> Changes {
        if self.due.is_none_or(|due| due > now) {
            return Changes::new();
        }
        let cooled = self.cooled.iter().map(|(key, text)| (key.clone(), Some(text.clone())));
        self.leftovers.iter().map(|key| (key.clone(), None)).chain(cooled).collect()
    }

    /// These changes were written. Later changes stay due.
    pub(crate) fn written(&mut self, changes: &Changes) {
        let is_written = |key: &str, text: Option<&str>| {
            changes.iter().any(|(other, written)| other == key && written.as_deref() == text)
        };
        self.leftovers.retain(|key| !is_written(key, None));
        self.cooled.take_if(|(key, text)| is_written(key, Some(text)));
        self.end_where_nothing_waits();
    }
}
