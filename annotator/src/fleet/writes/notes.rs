//! When a note is written on a Node because nodes have cooled, while readings are in NodeLoads.
//!
//! kube-scheduler retries a pod that an extender rejected when any Node changes, and otherwise after minutes. It does
//! not watch NodeLoads. So one note on one Node serves all nodes that cool within [`INTERVAL`]. Rejected pods are
//! retried at most that often, even if many nodes hover around a limit.

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

/// The time between the write of a NodeLoad and the note: the extender's watch nearly always has the NodeLoad by then.
/// If its watch is late, rejected pods are retried at a second note, an [`INTERVAL`] later.
const SETTLE: SignedDuration = SignedDuration::from_secs(1);

/// The time between two notes. With 100 rejected pods, 4 notes a minute cause 400 Filter calls.
const INTERVAL: SignedDuration = SignedDuration::from_secs(15);

/// The next note.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// The node that cooled last.
    cooled: Option<NodeName>,
    due: Option<Timestamp>,
    last: Option<Timestamp>,
    /// Whether the next note, if any, is the second one for the node that cooled last.
    repeats: bool,
}

impl Notes {
    /// Readings were written at `now` by which the node has cooled.
    pub(crate) fn add_cooled(&mut self, node: NodeName, now: Timestamp) {
        self.cooled = Some(node);
        self.repeats = false;
        let earliest = self.last.map_or(Timestamp::MIN, |last| after(last, INTERVAL));
        self.due = self.due.or(Some(after(now, SETTLE).max(earliest)));
    }

    /// When the next note is due; it may be past.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// The node that cooled last, if a note is due at `now`. A second note follows.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<NodeName> {
        self.due.filter(|due| *due <= now)?;
        self.last = Some(now);
        self.due = (!self.repeats).then(|| after(now, INTERVAL));
        self.repeats = true;
        self.cooled.clone()
    }

    /// The clock was set back: all waits are dropped.
    pub(crate) fn drop_waits(&mut self) {
        self.due = self.due.map(|_| Timestamp::MIN);
        self.last = None;
    }
}

/// `at` plus `span`.
fn after(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + millisecond).unwrap()
    }

    #[test]
    fn the_first_note_waits_a_second_and_the_next_one_for_the_interval() {
        let mut notes = Notes::default();
        assert_eq!((notes.next(), notes.take(at(0))), (None, None));
        notes.add_cooled("a".into(), at(0));
        assert_eq!((notes.next(), notes.take(at(999))), (Some(at(1000)), None));
        assert_eq!(notes.take(at(1000)), Some("a".into()));
        notes.add_cooled("b".into(), at(2_000));
        notes.add_cooled("c".into(), at(3_000));
        assert_eq!((notes.take(at(15_999)), notes.next()), (None, Some(at(16_000))));
        assert_eq!(notes.take(at(16_000)), Some("c".into()));
    }

    #[test]
    fn a_second_note_follows_for_an_extender_whose_watch_is_late() {
        let mut notes = Notes::default();
        notes.add_cooled("a".into(), at(0));
        assert_eq!(notes.take(at(1000)), Some("a".into()));
        assert_eq!((notes.next(), notes.take(at(15_999))), (Some(at(16_000)), None));
        assert_eq!((notes.take(at(16_000)), notes.next()), (Some("a".into()), None));
        notes.add_cooled("b".into(), at(60_000));
        assert_eq!(notes.take(at(61_000)), Some("b".into()));
    }

    #[test]
    fn a_node_that_cools_right_before_a_note_has_another_one() {
        let mut notes = Notes::default();
        notes.add_cooled("a".into(), at(0));
        notes.add_cooled("b".into(), at(900));
        assert_eq!(notes.take(at(1000)), Some("b".into()));
        assert_eq!((notes.take(at(15_999)), notes.take(at(16_000))), (None, Some("b".into())));
        assert_eq!(notes.next(), None);
    }
}
