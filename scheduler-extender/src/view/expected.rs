//! Where pods that are being scheduled will probably go.
//!
//! kube-scheduler asks for the next pod within a millisecond, and binds the one before some
//! milliseconds later; only then does the watch tell. Of 50 pods created at once, 26 went to the
//! coldest of 50 nodes before the first binding was seen. Until then, what was answered counts.
//!
//! Invariant: a pod is expected on one node at most, and on none once its binding is known.

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use placement::units::{NodeName, PodUid};

/// For a pod that is not bound after all. kube-scheduler binds 50 pods a second at the least.
const KEPT: SignedDuration = SignedDuration::from_secs(30);

/// One pod on one node, from a time on.
pub(super) type Guess = (NodeName, Timestamp);

/// Where pods will probably go.
#[derive(Debug, Default)]
pub(super) struct Expected {
    guesses: HashMap<PodUid, Guess>,
    /// In order of time; a pod that was asked for again is here more than once.
    order: VecDeque<(Timestamp, PodUid)>,
}

impl Expected {
    /// Expects a pod on a node; returns what is no longer expected.
    pub(super) fn expect(&mut self, pod: &PodUid, node: &NodeName, at: Timestamp) -> Vec<Guess> {
        let mut over = self.expired(at);
        over.extend(self.guesses.insert(pod.clone(), (node.clone(), at)));
        self.order.push_back((at, pod.clone()));
        over
    }

    /// Expects a pod no longer, for it was bound.
    pub(super) fn settle(&mut self, pod: &PodUid) -> Option<Guess> {
        self.guesses.remove(pod)
    }

    fn expired(&mut self, now: Timestamp) -> Vec<Guess> {
        let mut over = Vec::new();
        while let Some((at, _)) = self.order.front()
            && now.duration_since(*at) >= KEPT
        {
            let Some((at, pod)) = self.order.pop_front() else { break };
            if self.guesses.get(&pod).is_some_and(|guess| guess.1 == at) {
                over.extend(self.guesses.remove(&pod));
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn guess(node: &str, second: i64) -> Guess {
        (NodeName::from(node), at(second))
    }

    #[test]
    fn a_pod_asked_for_again_is_expected_on_its_newest_node_alone() {
        let (mut expected, pod) = (Expected::default(), PodUid::from("p"));
        assert!(expected.expect(&pod, &"a".into(), at(0)).is_empty());
        assert_eq!(expected.expect(&pod, &"b".into(), at(1)), [guess("a", 0)]);
        assert_eq!(expected.settle(&pod), Some(guess("b", 1)));
        assert_eq!(expected.settle(&pod), None);
    }

    #[test]
    fn a_pod_that_is_never_bound_is_forgotten_and_a_fresh_guess_of_it_is_not() {
        let mut expected = Expected::default();
        expected.expect(&"never".into(), &"a".into(), at(0));
        expected.expect(&"again".into(), &"a".into(), at(0));
        expected.expect(&"again".into(), &"b".into(), at(29));
        assert_eq!(expected.expect(&"new".into(), &"c".into(), at(30)), [guess("a", 0)]);
        assert_eq!(expected.settle(&"again".into()), Some(guess("b", 29)));
    }
}
