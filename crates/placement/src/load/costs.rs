//! What costs a node points whatever the pod is. A rule is a type with [`NodeRule`] and a place in [`RULES`]: scores,
//! prepared ones too, and explanations follow from that.
//!
//! Invariant: a cost follows from policy, node and time alone, so that it is computed once for many pods.

use jiff::{SignedDuration, Timestamp};

use super::{NodeLoad, ResolvedPolicy};
use crate::reading::{HOT_VALUE_MAX_AGE, MAX_AHEAD, is_fresh};

/// Points that each whole hot value costs: crane's 10 of 100.
const POINTS_PER_HOT_VALUE: f64 = 10.0;

/// What a rule costs a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeCost {
    /// The rule, by the name of its field in policies.
    pub name: &'static str,
    /// What the rule measures.
    pub value: f64,
    /// Whole points of 100.
    pub points: f64,
    /// What costs them.
    pub text: &'static str,
}

/// A rule by which a node costs points.
trait NodeRule: Sync {
    /// What the node costs. No points where the policy does not have the rule.
    fn cost(&self, policy: &ResolvedPolicy, node: &NodeLoad, now: Timestamp) -> NodeCost;

    /// Calls `may_change` with the times at which the cost may change without an event: so long after so much.
    fn change_times(
        &self,
        policy: &ResolvedPolicy,
        node: &NodeLoad,
        may_change: &mut dyn FnMut(Timestamp, SignedDuration),
    );
}

/// All rules, in the order of explanations.
const RULES: [&dyn NodeRule; 1] = [&HotValue];

/// What costs the node points, each rule once.
pub(super) fn costs<'a>(
    policy: &'a ResolvedPolicy,
    node: &'a NodeLoad,
    now: Timestamp,
) -> impl Iterator<Item = NodeCost> + 'a {
    RULES.iter().map(move |rule| rule.cost(policy, node, now)).filter(|cost| cost.points != 0.0)
}

/// As [`NodeRule::change_times`], of all rules.
pub(super) fn change_times(
    policy: &ResolvedPolicy,
    node: &NodeLoad,
    mut may_change: impl FnMut(Timestamp, SignedDuration),
) {
    for rule in RULES {
        rule.change_times(policy, node, &mut may_change);
    }
}

/// crane's hot value by the recent pods, or by its own annotation if that is fresh and higher.
struct HotValue;

impl NodeRule for HotValue {
    fn cost(&self, policy: &ResolvedPolicy, node: &NodeLoad, now: Timestamp) -> NodeCost {
        let counted = node.recent.hot_value(policy.hot(), now) as f64;
        let note = node.crane_hot_value.filter(|note| is_fresh(note.at, now, HOT_VALUE_MAX_AGE));
        let value = note.map_or(counted, |note| note.value.max(counted));
        let points = (POINTS_PER_HOT_VALUE * value).trunc();
        NodeCost { name: "hotValue", value, points, text: "recent bindings" }
    }

    fn change_times(
        &self,
        policy: &ResolvedPolicy,
        node: &NodeLoad,
        may_change: &mut dyn FnMut(Timestamp, SignedDuration),
    ) {
        // Without rules, recent pods cost nothing.
        if !policy.hot().is_empty() {
            for (at, after) in node.recent.change_times(policy.hot()) {
                may_change(at, after);
            }
        }
        if let Some(note) = node.crane_hot_value {
            may_change(note.at, HOT_VALUE_MAX_AGE);
            may_change(note.at, -MAX_AHEAD);
        }
    }
}
