//! The policy file, read again.

use crate::world::{CALM, POLICY, World};

#[tokio::test]
async fn a_changed_policy_is_in_force_without_a_restart() {
    let world = World::with_node().await;
    world.exporter.say(&CALM.replace('{', r#"{"disk_usage_avg_5m": 2, "#));
    let running = world.start().await;
    let more =
        POLICY.replace("  hotValue", "  - {name: disk_usage_avg_5m, period: 3m}\n  hotValue");
    std::fs::write(world.policy_file(), more).unwrap();
    running.advance(5);
    world.annotated("a", "disk_usage_avg_5m", "0.02000,2026-11-20T09:00:05Z").await;
}

#[tokio::test]
async fn a_faulty_policy_leaves_the_last_good_one_in_force() {
    let world = World::with_node().await;
    let running = world.start().await;
    std::fs::write(world.policy_file(), POLICY.replace("3m", "soon")).unwrap();
    world.sim.log().clear();
    running.advance(5);
    running.counted("plimsoll_annotator_policy_reads_total{outcome=\"refused\"} 1").await;
    running.pass_minutes(9).await;
    assert_eq!(world.patches("a"), 3);
    assert!(running.metrics().contains("policy_reads_total{outcome=\"refused\"} 1\n"));
}

#[tokio::test]
async fn a_start_without_a_valid_policy_is_refused_with_file_line_and_field() {
    let world = World::with_node().await;
    std::fs::write(world.policy_file(), POLICY.replace("15m", "soon")).unwrap();
    let error = world.refused().await;
    assert!(error.starts_with("--policy-file /"), "{error}");
    assert!(error.contains("line 7: spec.syncPolicy[2].period"), "{error}");
}
