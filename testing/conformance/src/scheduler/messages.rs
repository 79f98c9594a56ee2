//! The message of a pod without a node.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::extender::{Entry, Verb};
use super::rig::SchedulerRig;
use crate::rig::{Refuted, same};

/// Checks that a message is `begin`, perhaps with a part of another plugin, and `preemption: ` with `end`.
pub(super) fn is_between(message: &str, begin: &str, end: &str) -> Result<(), Refuted> {
    let is_so = message.starts_with(begin) && message.ends_with(&format!("preemption: {end}"));
    same("the message", message, if is_so { message } else { end })
}

pub(super) async fn an_error_of_filter_is_the_message_and_the_pod_is_tried_again(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    const ERROR: &str = "the extender has no policy";
    rig.extender.set(|answers| answers.filter_error = ERROR.to_owned());
    rig.pod("waits").await?;
    same("the message", rig.unplaced("waits", "SchedulerError").await?.as_str(), ERROR)?;
    same("the node", rig.node_of("waits").await?, String::new())?;
    // No pod and no node changes meanwhile.
    rig.called(Verb::Filter, "waits", 2).await?;
    rig.extender.set(|answers| answers.filter_error.clear());
    rig.placed("waits").await.map(drop)
}

pub(super) async fn a_node_that_filter_was_not_asked_about_makes_its_answer_an_error(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.extender.set(|answers| answers.unasked = vec!["nowhere".to_owned()]);
    rig.pod("waits").await?;
    let expected = format!(
        "extender \"{}\" claims a filtered node \"nowhere\" which is not found in the input node list",
        rig.extender.url(Entry::All)
    );
    same("the message", rig.unplaced("waits", "SchedulerError").await?, expected)?;
    same("the node", rig.node_of("waits").await?, String::new())?;
    rig.extender.set(|answers| answers.unasked.clear());
    rig.placed("waits").await.map(drop)
}

pub(super) async fn filters_reasons_are_the_message_and_a_change_of_a_node_has_the_pod_tried_again(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    const REASONS: [&str; 2] = ["too hot", "too full"];
    let mut failed = BTreeMap::new();
    for (index, node) in rig.nodes.iter().enumerate() {
        let reason = if index == 0 { REASONS[0] } else { REASONS[1] };
        failed.insert(node.clone(), reason.to_owned());
    }
    rig.extender.set(|answers| answers.failed = failed);
    rig.pod("rejected").await?;
    let message = rig.unplaced("rejected", "Unschedulable").await?;
    let all = rig.nodes.len();
    let mut counts = [format!("1 {}", REASONS[0]), format!("{} {}", all - 1, REASONS[1])];
    counts.sort_unstable();
    let begin = format!("0/{all} nodes are available: {}. ", counts.join(", "));
    let end =
        format!("0/{all} nodes are available: {all} No preemption victims found for incoming pod.");
    is_between(&message, &begin, &end)?;
    rig.extender.set(|answers| answers.failed.clear());
    rig.annotate(&rig.nodes[0], json!("now")).await?;
    let placed = rig.placed("rejected").await;
    rig.annotate(&rig.nodes[0], Value::Null).await?;
    placed.map(drop)
}
