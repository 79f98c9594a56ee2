//! When a Node is written for no other reason than that nodes have cooled, while readings are in NodeLoads.
//!
//! kube-scheduler retries a pod that an extender rejected when some Node changes, whichever that is, and otherwise after
//! minutes. It does not see a NodeLoad change. So one note on one Node serves all nodes that cool within [`INTERVAL`], and
//! however many hover around a limit, rejected pods are retried that often at most.

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

/// Between the write of a NodeLoad and the note: the extender has seen the NodeLoad by then.
const SETTLE: SignedDuration = SignedDuration::from_secs(1);

/// Between two notes. With 100 rejected pods, 4 a minute make 400 Filter calls.
const INTERVAL: SignedDuration = SignedDuration::from_secs(15);

/// The next note.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakeups {
    /// The node that cooled last, and when.
    cooled: Option<(NodeName, Timestamp)>,
    due: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl Wakeups {
    /// It was written at `now` that the node has cooled.
    pub(super) fn cooled(&mut self, node: NodeName, now: Timestamp) {
        self.cooled = Some((node, now));
        let after = |at: Timestamp, span| at.checked_add(span).unwrap_or(Timestamp::MAX);
        let earliest = self.last.map_or(Timestamp::MIN, |last| after(last, INTERVAL));
        self.due = self.due.or(Some(after(now, SETTLE).max(earliest)));
    }

    /// When the next note is due; it may be past.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// Where a note is due at `now`: the node that cooled last. Where that was just now, another note follows.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<NodeName> {
        self.due.filter(|due| *due <= now)?;
        (self.due, self.last) = (None, Some(now));
        let (node, at) = self.cooled.clone()?;
        if now.duration_since(at) < SETTLE {
            self.cooled(node.clone(), at);
        }
        Some(node)
    }

    /// The clock was set back: nothing is waited for.
    pub(super) fn clock_set_back(&mut self) {
        (self.due, self.last) = (self.due.map(|_| Timestamp::MIN), None);
    }
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
        assert_eq!((wakeups.next(), wakeups.take(at(60_000))), (None, None));
        wakeups.cooled("b".into(), at(60_000));
        assert_eq!(wakeups.take(at(61_000)), Some("b".into()));
        wakeups.cooled("c".into(), at(62_000));
        wakeups.cooled("d".into(), at(63_000));
        assert_eq!(wakeups.next(), Some(at(76_000)));
        assert_eq!((wakeups.take(at(76_000)), wakeups.next()), (Some("d".into()), None));
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
