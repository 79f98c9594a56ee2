//! The annotations of a Node whose readings are in a NodeLoad: old readings are removed once, and a note is written
//! when nodes have cooled.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::store::AnnotationChanges;

/// The annotations of one Node that wait to be written.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeAnnotations {
    /// Keys of old readings, which are no longer updated.
    leftovers: Vec<String>,
    /// Key and text of the note.
    note: Option<(String, String)>,
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
        self.drop_empty_write();
    }

    fn drop_empty_write(&mut self) {
        if self.leftovers.is_empty() && self.note.is_none() {
            self.due = None;
        }
    }

    /// The NodeLoad was written: from `at` on the old readings may be removed.
    pub(crate) fn remove_leftovers(&mut self, at: Timestamp) {
        if !self.leftovers.is_empty() {
            self.due = self.due.or(Some(at));
        }
    }

    /// Makes the note due at `now` that nodes have cooled.
    pub(crate) fn add_note(&mut self, key: String, now: Timestamp) {
        self.note = Some((key, now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
        self.due = Some(now);
    }

    /// Whether there is a note that is not written yet.
    pub(crate) fn has_note(&self) -> bool {
        self.note.is_some()
    }

    /// When a write is due.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// The clock was set back, so `due` may be far ahead: it is due at once.
    pub(crate) fn drop_waits(&mut self) {
        self.due = self.due.map(|_| Timestamp::MIN);
    }

    /// The changes that a job at `now` writes.
    pub(crate) fn changes(&self, now: Timestamp) -> AnnotationChanges {
        if self.due.is_none_or(|due| due > now) {
            return AnnotationChanges::new();
        }
        let mut changes: AnnotationChanges =
            self.leftovers.iter().map(|key| (key.clone(), None)).collect();
        if let Some((key, text)) = &self.note {
            changes.push((key.clone(), Some(text.clone())));
        }
        changes
    }

    /// These changes were written. Later changes stay due.
    pub(crate) fn record_write(&mut self, changes: &AnnotationChanges) {
        for (key, text) in changes {
            if text.is_none() {
                self.leftovers.retain(|leftover| leftover != key);
            } else {
                self.note.take_if(|(other, note)| other == key && text.as_ref() == Some(note));
            }
        }
        self.drop_empty_write();
    }
}
