//! Which nodes pods were bound to of late.
//!
//! Invariant: a pod counts once, however often it is seen. The time is that of its PodScheduled
//! condition, so a restart finds the same counts again.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use placement::load::Bindings;
use placement::policy::HotRule;
use placement::units::{NodeName, PodUid};

use crate::pods::BoundPod;

/// Bindings of the whole cluster within the policy's horizon.
#[derive(Debug, Clone, Default)]
pub struct Heat {
    nodes: HashMap<NodeName, Bindings>,
    counted: HashMap<PodUid, Timestamp>,
    /// When `counted` has grown to this, those beyond the horizon are forgotten.
    sweep_at: usize,
}

impl Heat {
    /// Counts a pod, unless it was counted or was bound before the horizon.
    pub fn saw(&mut self, pod: &BoundPod, horizon: SignedDuration, now: Timestamp) {
        let recent = |at: &Timestamp| now.duration_since(*at) < horizon;
        let Some(at) = pod.bound_at.filter(recent) else { return };
        if self.counted.insert(pod.uid.clone(), at).is_none() {
            self.nodes.entry(pod.node.clone()).or_default().record(at, horizon);
        }
        if self.counted.len() > self.sweep_at {
            self.counted.retain(|_, at| recent(at));
            self.sweep_at = 1024.max(2 * self.counted.len());
        }
    }

    /// The node is gone.
    pub fn forget(&mut self, node: &NodeName) {
        self.nodes.remove(node);
    }

    /// crane's hot value of the node.
    #[must_use]
    pub fn value(&self, node: &NodeName, rules: &[HotRule], now: Timestamp) -> u64 {
        self.nodes.get(node).map_or(0, |bindings| bindings.hot_value(rules, now))
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
        BoundPod { uid: uid.into(), node: "a".into(), bound_at: second.map(at), gpu: None }
    }

    #[test]
    fn a_pod_counts_once() {
        let mut heat = Heat::default();
        (0..3).for_each(|_| heat.saw(&pod("p", Some(1000)), HORIZON, at(1001)));
        heat.saw(&pod("q", Some(1002)), HORIZON, at(1003));
        assert_eq!(heat.value(&"a".into(), &RULES, at(1010)), 2);
        assert_eq!(heat.value(&"b".into(), &RULES, at(1010)), 0);
    }

    #[test]
    fn old_and_undated_bindings_do_not_count() {
        let mut heat = Heat::default();
        heat.saw(&pod("old", Some(100)), HORIZON, at(1000));
        heat.saw(&pod("static", None), HORIZON, at(1000));
        assert_eq!(heat.value(&"a".into(), &RULES, at(1000)), 0);
    }

    #[test]
    fn memory_is_bounded_by_the_horizon() {
        let mut heat = Heat::default();
        for second in 0..100_000 {
            heat.saw(&pod(&format!("p{second}"), Some(second)), HORIZON, at(second));
        }
        assert!(heat.counted.len() <= 2048, "{}", heat.counted.len());
    }
}
