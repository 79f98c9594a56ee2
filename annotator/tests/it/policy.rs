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
    assert!(running.metrics().contains("plimsoll_files_refused{file=\"policy\"} 0\n"));
    std::fs::write(world.policy_file(), POLICY.replace("3m", "soon")).unwrap();
    world.sim.log().clear();
    running.advance(5);
    running.counted("plimsoll_file_changes_total{file=\"policy\",outcome=\"refused\"} 1").await;
    running.pass_minutes(9).await;
    assert!((1..=2).contains(&world.patches("a")), "{}", world.patches("a"));
    let metrics = running.metrics();
    assert!(
        metrics.contains("plimsoll_file_changes_total{file=\"policy\",outcome=\"refused\"} 1\n"),
        "{metrics}"
    );
    assert!(metrics.contains("plimsoll_files_refused{file=\"policy\"} 1\n"), "{metrics}");
    std::fs::write(world.policy_file(), POLICY).unwrap();
    running.advance(5);
    running.counted("plimsoll_files_refused{file=\"policy\"} 0").await;
}

#[tokio::test]
async fn a_start_without_a_valid_policy_is_refused_with_file_line_and_field() {
    let world = World::with_node().await;
    std::fs::write(world.policy_file(), POLICY.replace("15m", "soon")).unwrap();
    let error = world.refused().await;
    assert!(error.starts_with("--policy-file /"), "{error}");
    assert!(error.contains("line 7: spec.syncPolicy[2].period"), "{error}");
}

#[tokio::test]
async fn a_metric_that_exporters_lack_is_a_gauge_until_the_policy_drops_it() {
    let world = World::with_node().await;
    let typo = POLICY.replace("mem_usage_avg_5m", "mem_usge_avg_5m");
    std::fs::write(world.policy_file(), typo).unwrap();
    let running = world.start().await;
    let metrics = running.metrics();
    for line in [missing_on(1, "mem_usge_avg_5m"), missing_on(0, "cpu_usage_avg_5m")] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    std::fs::write(world.policy_file(), POLICY).unwrap();
    running.advance(5);
    running.counted(&missing_on(0, "mem_usage_avg_5m")).await;
    assert!(!running.metrics().contains("mem_usge"), "{}", running.metrics());
}

/// The line that so many nodes lack the metric.
fn missing_on(nodes: u32, metric: &str) -> String {
    format!("plimsoll_annotator_metric_missing_nodes{{metric=\"{metric}\"}} {nodes}")
}

#[tokio::test]
async fn what_a_policy_probably_does_not_mean_is_counted_at_the_start_and_after_a_change() {
    let world = World::with_node().await;
    let read = "  priority:\n  - {name: cpu_usage_avg_5m, weight: 1}\n  - {name: mem_usage_avg_5m, weight: 1}\n  \
                - {name: cpu_usage_max_avg_1h, weight: 1}\n";
    let sound = POLICY.replace("  hotValue", &format!("{read}  hotValue"));
    let limit = "  predicate:\n  - {name: fs_usage_active, maxLimitPecent: 0.9}\n  hotValue";
    std::fs::write(world.policy_file(), sound.replace("  hotValue", limit)).unwrap();
    let running = world.start().await;
    running.counted("plimsoll_policy_warnings 1").await;
    std::fs::write(world.policy_file(), sound).unwrap();
    running.advance(5);
    running.counted("plimsoll_policy_warnings 0").await;
}
