//! The page of metrics, checked by Prometheus's promtool.

use crate::exporter::Answer;
use crate::world::{CALM, World};

#[tokio::test]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_the_page() {
    let world = World::with_node().await;
    let flags = ["--poll-timeout=50ms", "--pod-use-period=1m", "--listen-address=127.0.0.1:0"];
    let running = world.start_with(&flags).await;
    world.exporter.set(Answer::Hang);
    running.pass_minutes(10).await;
    world.exporter.say(CALM);
    running.pass(120).await;
    std::fs::write(world.policy_file(), "nonsense").unwrap();
    running.advance(5);
    running.counted("plimsoll_file_changes_total{file=\"policy\",outcome=\"refused\"} 1").await;
    support::promtool::check(&running.metrics());
}
