//! Checks of what works against an autoscaler, which wants to remove nodes, and against a scheduler that packs them.

use placement::policy::LoadPolicy;

use super::facts::{Facts, SECOND_SCHEDULER};
use super::finding::Findings;
use super::programs::{NODES, has_extender};
use crate::packing::packing_profiles;
use crate::scheduler_config::{most_points, spreads_by_load};

/// The key of the taint `PreferNoSchedule` of a node that Cluster Autoscaler is about to remove.
const CANDIDATE: &str = "DeletionCandidateOfClusterAutoscaler";
/// What that costs a node at kube-scheduler: TaintToleration, 100 points times its weight 3.
const SOFT_TAINT: u32 = 300;
/// The label of each node that Karpenter has made.
const OF_KARPENTER: &str = "karpenter.sh/nodepool";

/// Whether the score by load works against what else decides how many nodes are in use.
pub(crate) fn autoscalers(facts: &Facts, found: &mut Findings) {
    if !has_extender(facts, found) {
        return;
    }
    let Some(text) = found.read("the policy", facts.policy_text()) else { return };
    // A faulty one is a finding of the check `policy`.
    let Some(policy) = text.and_then(|text| LoadPolicy::from_yaml(text).ok()) else {
        return found.does_not_apply("there is no policy, or a faulty one");
    };
    if !spreads_by_load(&policy) {
        return found.does_not_apply("the policy does not spread pods by load");
    }
    if facts.has(SECOND_SCHEDULER) {
        second_scheduler(facts, found);
    }
    let status =
        found.read("the ConfigMap cluster-autoscaler-status", facts.autoscaler_status.as_ref());
    let nodes = found.read(NODES, facts.nodes.as_ref());
    let (Some(status), Some(nodes)) = (status, nodes) else { return };
    let is_candidate =
        nodes.iter().any(|node| node.spec.taints.iter().any(|it| it["key"] == CANDIDATE));
    let has_cluster_autoscaler = status.is_some() || is_candidate;
    let has_karpenter = nodes.iter().any(|node| node.metadata.labels.contains_key(OF_KARPENTER));
    let seen = match (has_cluster_autoscaler, has_karpenter) {
        (false, false) => return found.does_not_apply("no autoscaler is seen"),
        (true, false) => "Cluster Autoscaler",
        (false, true) => "Karpenter",
        (true, true) => "Cluster Autoscaler and Karpenter",
    };
    let points = most_points(&policy);
    if has_cluster_autoscaler && points > SOFT_TAINT {
        found.warn(
            format!(
                "the score by load has up to {points} points, and the taint of a node that Cluster Autoscaler is about \
                 to remove costs {SOFT_TAINT}: pods may be drawn to such nodes"
            ),
            "a lower scoring.scale in the policy (docs/autoscalers.md), and kube-scheduler's configuration written anew: \
             kubectl plimsoll scheduler-config",
        );
    }
    found.ok_if_nothing(format!(
        "{seen} beside a score by load of at most {points} points, more for pods with GPU memory (docs/autoscalers.md)"
    ));
}

/// Whether the scheduler that Plimsoll runs beside the provider's packs. Another one's configuration is not seen here.
fn second_scheduler(facts: &Facts, found: &mut Findings) {
    let map = found.read("the ConfigMap kube-scheduler", facts.second_config.as_ref());
    let text = map.and_then(Option::as_ref).and_then(|map| map.data.values().next());
    // A faulty one is a finding of the check `kube-scheduler`.
    let packing = text.and_then(|text| packing_profiles(text).ok()).unwrap_or_default();
    found.warn_of(
        "kube-scheduler packs nodes, and the score by load spreads pods",
        &packing,
        "one of the two: LeastAllocated in the profile, or the model craneLinear with direction: pack in the policy \
         (docs/autoscalers.md)",
    );
}
