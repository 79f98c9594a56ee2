//! What the check of autoscalers finds.

use super::*;

/// A policy with these fields of `scoring`.
fn scoring(fields: &str) -> Read<Option<ConfigMap>> {
    let text = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n  \
         - {{name: cpu_shared_busy_avg_5m, period: 1m, maxAge: 8m, limit: 0.8, weight: 1}}\n  scoring: {{{fields}}}\n"
    );
    Ok(Some(policy(&text)))
}

/// As Cluster Autoscaler and Karpenter leave them.
fn with_cluster_autoscaler(facts: &mut Facts) {
    facts.autoscaler_status = Ok(Some(ConfigMap::default()));
}

fn with_karpenter(facts: &mut Facts) {
    let node = &mut facts.nodes.as_mut().unwrap()[0];
    node.metadata.labels.insert("karpenter.sh/nodepool".to_owned(), "default".to_owned());
}

#[test]
fn a_cluster_without_an_autoscaler_has_nothing_to_check() {
    assert_eq!(ok_text(&healthy(), "autoscalers"), "does not apply: no autoscaler is seen");
}

#[test]
fn a_score_that_outweighs_the_soft_taint_is_found() {
    let mut facts = healthy();
    facts.policy = scoring("scale: 100");
    let mut with_a_candidate = facts.clone();
    with_cluster_autoscaler(&mut facts);
    assert_only(&facts, Level::Warn, "autoscalers", "up to 1000 points");
    facts.policy = scoring("scale: 10");
    assert_eq!(
        ok_text(&facts, "autoscalers"),
        "Cluster Autoscaler beside a score by load of at most 300 points, more for pods with GPU memory (docs/autoscalers.md)"
    );
    // Its ConfigMap can have another name, or be switched off.
    let taint = json!([{"key": "DeletionCandidateOfClusterAutoscaler", "value": "1795600000", "effect": "PreferNoSchedule"}]);
    with_a_candidate.nodes.as_mut().unwrap()[1].spec.taints = of(taint);
    assert_only(&with_a_candidate, Level::Warn, "autoscalers", "up to 1000 points");
    // A node that Karpenter drains takes no pod at all.
    let mut facts = healthy();
    facts.policy = scoring("scale: 100");
    with_karpenter(&mut facts);
    assert_eq!(
        ok_text(&facts, "autoscalers"),
        "Karpenter beside a score by load of at most 1000 points, more for pods with GPU memory (docs/autoscalers.md)"
    );
}

#[test]
fn a_second_scheduler_that_packs_is_found() {
    let mut facts = healthy();
    with_second_scheduler(&mut facts);
    facts.policy = scoring("direction: spread");
    let args = "{scoringStrategy: {type: MostAllocated}}";
    let text = format!(
        "profiles:\n- schedulerName: plimsoll-scheduler\n  pluginConfig: [{{name: NodeResourcesFit, args: {args}}}]\n\
         extenders:\n- {{urlPrefix: 'https://x:19100/load-aware', nodeCacheCapable: true}}\n"
    );
    facts.second_config = Ok(Some(of(json!({"data": {"config.yaml": text}}))));
    let what = "the score by load spreads pods: plimsoll-scheduler (MostAllocated)";
    assert_only(&facts, Level::Warn, "autoscalers", what);
    facts.policy = scoring("model: craneLinear, direction: pack");
    assert_eq!(
        ok_text(&facts, "autoscalers"),
        "does not apply: the policy does not spread pods by load"
    );
}

#[test]
fn a_policy_that_is_missing_is_a_finding_of_another_check() {
    let mut facts = healthy();
    with_cluster_autoscaler(&mut facts);
    facts.policy = Ok(None);
    let what = "does not apply: there is no policy, or a faulty one";
    assert_eq!(ok_text(&facts, "autoscalers"), what);
    assert!(of_check(&facts, "policy").iter().any(|finding| finding.level == Level::Fail));
}
