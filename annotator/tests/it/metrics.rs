//! The page of metrics, checked by Prometheus's promtool.

use std::time::Duration;

use crate::exporter::Answer;
use crate::world::{CALM, World};

#[tokio::test]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_the_page() {
    let mut world = World::with_node().await;
    world.poll_timeout = Duration::from_millis(50);
    world.pod_use_period = Duration::from_secs(60);
    let running = world.start().await;
    world.exporter.set(Answer::Hang);
    running.pass_minutes(10).await;
    world.exporter.say(CALM);
    running.pass(120).await;
    std::fs::write(world.policy_file(), "nonsense").unwrap();
    running.advance(5);
    running.counted("plimsoll_file_changes_total{file=\"policy\",outcome=\"refused\"} 1").await;
    support::promtool::check(&running.metrics());
}
