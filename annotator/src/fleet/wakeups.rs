//! When a Node is written for no other reason than that nodes have cooled, while readings are in NodeLoads.
//!
//! kube-scheduler retries a pod that an extender rejected when some Node changes, whichever that is, and otherwise after
//! minutes. It does not see a NodeLoad change. So one note on one Node serves all nodes that cool within [`INTERVAL`], and
//! however many hover around a limit, rejected pods are retried that often at most.

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

/// Between the write of a NodeLoad and the note: the extender has nearly always seen the NodeLoad by then. Where its watch is late,
/// rejected pods are retried at a second note, an [`INTERVAL`] later.
const SETTLE: SignedDuration = SignedDuration::from_secs(1);

/// Between two notes. With 100 rejected pods, 4 a minute make 400 Filter calls.
const INTERVAL: SignedDuration = SignedDuration::from_secs(15);

/// The next note.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakeups {
    /// The node that cooled last.
    cooled: Option<NodeName>,
    due: Option<Timestamp>,
    last: Option<Timestamp>,
    /// Whether the next note is the second one for the node that cooled last, or there is none.
    repeats: bool,
}

impl Wakeups {
    /// It was written at `now` that the node has cooled.
    pub(super) fn cooled(&mut self, node: NodeName, now: Timestamp) {
        self.cooled = Some(node);
        self.repeats = false;
        let earliest = self.last.map_or(Timestamp::MIN, |last| after(last, INTERVAL));
        self.due = self.due.or(Some(after(now, SETTLE).max(earliest)));
    }

    /// When the next note is due; it may be past.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// Where a note is due at `now`: the node that cooled last. A second note follows.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<NodeName> {
        self.due.filter(|due| *due <= now)?;
        self.last = Some(now);
        self.due = (!self.repeats).then(|| after(now, INTERVAL));
        self.repeats = true;
        self.cooled.clone()
    }

    /// The clock was set back: nothing is waited for.
    pub(super) fn clock_set_back(&mut self) {
        (self.due, self.last) = (self.due.map(|_| Timestamp::MIN), None);
    }
}

/// So long after a time.
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
        let mut wakeups = Wakeups::default();
        assert_eq!((wakeups.next(), wakeups.take(at(0))), (None, None));
        wakeups.cooled("a".into(), at(0));
        assert_eq!((wakeups.next(), wakeups.take(at(999))), (Some(at(1000)), None));
        assert_eq!(wakeups.take(at(1000)), Some("a".into()));
        wakeups.cooled("b".into(), at(2_000));
        wakeups.cooled("c".into(), at(3_000));
        assert_eq!((wakeups.take(at(15_999)), wakeups.next()), (None, Some(at(16_000))));
        assert_eq!(wakeups.take(at(16_000)), Some("c".into()));
    }

    #[test]
    fn a_second_note_follows_for_an_extender_whose_watch_is_late() {
        let mut wakeups = Wakeups::default();
        wakeups.cooled("a".into(), at(0));
        assert_eq!(wakeups.take(at(1000)), Some("a".into()));
        assert_eq!((wakeups.next(), wakeups.take(at(15_999))), (Some(at(16_000)), None));
        assert_eq!((wakeups.take(at(16_000)), wakeups.next()), (Some("a".into()), None));
        wakeups.cooled("b".into(), at(60_000));
        assert_eq!(wakeups.take(at(61_000)), Some("b".into()));
    }

    #[test]
    fn a_node_that_cools_right_before_a_note_has_another_one() {
        let mut wakeups = Wakeups::default();
        wakeups.cooled("a".into(), at(0));
        wakeups.cooled("b".into(), at(900));
        assert_eq!(wakeups.take(at(1000)), Some("b".into()));
        assert_eq!((wakeups.take(at(15_999)), wakeups.take(at(16_000))), (None, Some("b".into())));
        assert_eq!(wakeups.next(), None);
    }
}
