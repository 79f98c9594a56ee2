//! Owns what the annotator has written on Nodes.

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};

use crate::env::TestEnv;
use crate::support::pods::START;

/// Flags of Helm with which the annotator writes whatever has moved.
pub(crate) const WRITTEN_AT_ONCE: [&str; 2] = [
    "--set-string=annotator.env.PLIMSOLL_BURST_INTERVAL=0s",
    "--set-string=annotator.env.PLIMSOLL_DEAD_BAND=0",
];

/// A metric of the shipped policy, and of that of the last release.
const READING: &str = "mem_usage_avg_5m";

/// Waits until each node has a reading for the shipped policy that was measured from now on.
pub(crate) fn written_from_now_on(env: &TestEnv) -> Result<()> {
    let nodes: Api<Node> = Api::all(env.client());
    let start = Timestamp::now();
    wait_for("a new reading of each node", START, || {
        for node in env.block_on(nodes.list(&ListParams::default()))? {
            let time = time_of(&node, READING)?;
            ensure!(time >= start, "{READING} is of {time}");
        }
        Ok(Some(()))
    })
}

/// The time of a reading on a node. An error where it has none.
pub(crate) fn time_of(node: &Node, metric: &str) -> Result<Timestamp> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(metric)).context("a node has no reading")?;
    let (_, time) = text.split_once(',').context("a reading without a time")?;
    Ok(time.parse()?)
}
