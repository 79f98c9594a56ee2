//! Measures rounds: the time in which every node is polled once.
//!
//! A round begins with the nodes whose exporters are not silent, and ends when each of them was polled or deleted.
//! Silent exporters are polled with a back-off, so they are left out.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

/// The current round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    began: Option<Timestamp>,
    /// Nodes that are not polled in it yet.
    waiting: HashSet<NodeName>,
    /// The duration of the last round, until [`Rounds::take_ended`].
    ended: Option<SignedDuration>,
}

impl Rounds {
    /// A node was polled at `now`, with any result. `all` are the nodes of a round that begins now.
    pub(super) fn record_poll<'n>(
        &mut self,
        node: &NodeName,
        now: Timestamp,
        all: impl Iterator<Item = &'n NodeName>,
    ) {
        if self.began.is_none() {
            self.begin(now, all);
            self.waiting.remove(node);
        } else if self.waiting.remove(node) && self.waiting.is_empty() {
            self.ended = self.began.map(|began| now.duration_since(began));
            self.begin(now, all);
        }
    }

    /// A node was deleted. A round whose last nodes were deleted is not measured.
    pub(super) fn drop_node(&mut self, node: &NodeName) {
        if self.waiting.remove(node) && self.waiting.is_empty() {
            self.began = None;
        }
    }

    /// The duration of the round that has ended since the last call.
    pub(super) fn take_ended(&mut self) -> Option<SignedDuration> {
        self.ended.take()
    }

    fn begin<'n>(&mut self, now: Timestamp, nodes: impl Iterator<Item = &'n NodeName>) {
        self.waiting = nodes.cloned().collect();
        self.began = (!self.waiting.is_empty()).then_some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A node was polled at that second, of these nodes.
    fn poll(rounds: &mut Rounds, node: &str, second: i64, all: &[&str]) {
        let all: Vec<NodeName> = all.iter().map(|name| NodeName::from(*name)).collect();
        rounds.record_poll(&node.into(), at(second), all.iter());
    }

    #[test]
    fn a_round_ends_when_every_node_was_polled() {
        let mut rounds = Rounds::default();
        for (second, node, ended) in [
            (10, "a", None),
            (11, "a", None),
            (12, "b", None),
            (14, "c", Some(4)),
            (15, "c", None),
            (20, "b", None),
            (29, "a", Some(15)),
        ] {
            poll(&mut rounds, node, second, &["a", "b", "c"]);
            assert_eq!(rounds.take_ended().map(|span| span.as_secs()), ended, "{second}");
        }
    }

    #[test]
    fn a_node_that_is_gone_is_not_waited_for() {
        let mut rounds = Rounds::default();
        poll(&mut rounds, "a", 10, &["a", "b", "c"]);
        rounds.drop_node(&"b".into());
        poll(&mut rounds, "c", 12, &["a", "c"]);
        assert_eq!(rounds.take_ended(), Some(SignedDuration::from_secs(2)));
    }

    #[test]
    fn a_round_whose_last_nodes_are_gone_is_not_measured() {
        let mut rounds = Rounds::default();
        poll(&mut rounds, "a", 10, &["a", "b"]);
        rounds.drop_node(&"b".into());
        poll(&mut rounds, "a", 900, &["a"]);
        assert_eq!(rounds.take_ended(), None);
    }
}
