//! The bindings of the last minutes on each node, and the hot value that follows from them.
//!
//! Invariant: a pod counts once, however often the watch shows it. Its time is that of its PodScheduled condition, so
//! the counts are the same after a restart.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use placement::load::RecentPods;
use placement::policy::HotRule;
use placement::reading::is_fresh;
use placement::resources::Amounts;
use placement::units::NodeName;

use super::BoundPod;

/// Nodes with old bindings alone are dropped only from this number of nodes on.
const MIN_SWEEP: usize = 1024;

/// The bindings of the whole cluster within the policy's longest range, by node.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentBindings {
    nodes: HashMap<NodeName, RecentPods>,
    /// The number of nodes left after the last sweep.
    left: usize,
}

impl RecentBindings {
    /// Counts a pod, unless it was counted before or was bound longer than `horizon` ago. A time that is
    /// [far ahead](placement::reading::is_far_ahead) is ignored: the pod would count until that time.
    pub(crate) fn record(&mut self, pod: &BoundPod, horizon: SignedDuration, now: Timestamp) {
        if let Some(at) = pod.bound_at.filter(|at| is_fresh(*at, now, horizon)) {
            self.sweep(horizon, now);
            self.nodes.entry(pod.node.clone()).or_default().bound(
                &pod.uid,
                at,
                Amounts::default(),
                horizon,
            );
        }
    }

    /// Drops nodes that only have old bindings, each time that the number of nodes has doubled. Some nodes never appear
    /// in the watch, or are deleted before the last changes of their pods are shown.
    fn sweep(&mut self, horizon: SignedDuration, now: Timestamp) {
        if self.nodes.len() >= MIN_SWEEP.max(2 * self.left) {
            self.nodes.retain(|_, recent| recent.within(horizon, now) > 0);
            self.left = self.nodes.len();
        }
    }

    /// Drops the bindings of a deleted node.
    pub(crate) fn forget(&mut self, node: &NodeName) {
        self.nodes.remove(node);
    }

    /// crane's hot value of the node: the sum over the rules of ⌊bindings within range ÷ count⌋.
    pub(crate) fn hot_value(&self, node: &NodeName, rules: &[HotRule], now: Timestamp) -> u64 {
        self.nodes.get(node).map_or(0, |recent| recent.hot_value(rules, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: [HotRule; 1] = [HotRule { range: SignedDuration::from_mins(5), count: 1 }];
    const HORIZON: SignedDuration = SignedDuration::from_mins(5);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(uid: &str, second: Option<i64>) -> BoundPod {
        BoundPod {
            uid: uid.into(),
            node: "a".into(),
            bound_at: second.map(at),
            gpu: None,
            workload: None,
        }
    }

    #[test]
    fn a_pod_counts_once() {
        let mut bindings = RecentBindings::default();
        (0..3).for_each(|_| bindings.record(&pod("p", Some(1000)), HORIZON, at(1001)));
        bindings.record(&pod("q", Some(1002)), HORIZON, at(1003));
        assert_eq!(bindings.hot_value(&"a".into(), &RULES, at(1010)), 2);
        assert_eq!(bindings.hot_value(&"b".into(), &RULES, at(1010)), 0);
    }

    #[test]
    fn nodes_that_never_come_or_are_gone_are_forgotten_with_their_bindings() {
        let mut bindings = RecentBindings::default();
        for second in 0..20_000 {
            let node = format!("n{second}").as_str().into();
            let pod = BoundPod { node, ..pod(&format!("p{second}"), Some(second)) };
            bindings.record(&pod, HORIZON, at(second));
        }
        assert!(bindings.nodes.len() <= MIN_SWEEP, "{}", bindings.nodes.len());
        let recent = (0..20_000)
            .map(|n| bindings.hot_value(&format!("n{n}").as_str().into(), &RULES, at(20_000)));
        assert_eq!(recent.sum::<u64>(), 299);
    }

    #[test]
    fn old_undated_and_future_bindings_do_not_count() {
        let mut bindings = RecentBindings::default();
        bindings.record(&pod("old", Some(100)), HORIZON, at(1000));
        bindings.record(&pod("static", None), HORIZON, at(1000));
        bindings.record(&pod("forged", Some(4000)), HORIZON, at(1000));
        assert_eq!(bindings.hot_value(&"a".into(), &RULES, at(1000)), 0);
    }
}
