//! What users are told of a pod that has no node.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::extender::{Entry, Verb};
use super::rig::Rig;
use crate::rig::{Refuted, same};

pub(super) async fn an_error_of_filter_is_told_and_the_pod_is_tried_again(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    const WORDS: &str = "the extender is not well";
    rig.extender.order(|orders| orders.filter_error = WORDS.to_owned());
    rig.pod("waits").await?;
    same("what is told", rig.unplaced("waits", "SchedulerError").await?.as_str(), WORDS)?;
    same("where it is", rig.node_of("waits").await?, String::new())?;
    // Nothing else happens to pods and nodes.
    rig.called(Verb::Filter, "waits", 2).await?;
    rig.extender.order(|orders| orders.filter_error = String::new());
    rig.placed("waits").await.map(drop)
}

pub(super) async fn a_node_that_filter_was_not_asked_about_makes_its_answer_an_error(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.extender.order(|orders| orders.invented = vec!["nowhere".to_owned()]);
    rig.pod("waits").await?;
    let words = format!(
        "extender \"{}\" claims a filtered node \"nowhere\" which is not found in the input node list",
        rig.extender.url(Entry::All)
    );
    same("what is told", rig.unplaced("waits", "SchedulerError").await?, words)?;
    same("where it is", rig.node_of("waits").await?, String::new())?;
    rig.extender.order(|orders| orders.invented.clear());
    rig.placed("waits").await.map(drop)
}

pub(super) async fn what_filter_says_of_nodes_is_told_and_a_change_of_a_node_has_the_pod_tried_again(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    const WORDS: [&str; 2] = ["too hot", "too full"];
    let reason = |place: usize| WORDS[usize::from(place > 0)].to_owned();
    let out: BTreeMap<String, String> =
        rig.nodes.iter().enumerate().map(|(place, node)| (node.clone(), reason(place))).collect();
    rig.extender.order(|orders| orders.left_out = out);
    rig.pod("turned-away").await?;
    let told = rig.unplaced("turned-away", "Unschedulable").await?;
    let all = rig.nodes.len();
    let mut counts = [format!("1 {}", WORDS[0]), format!("{} {}", all - 1, WORDS[1])];
    counts.sort_unstable();
    let words = format!("0/{all} nodes are available: {}.", counts.join(", "));
    // kube-scheduler adds what it thinks of preemption.
    let beginning = if told.starts_with(&words) { &words } else { &told };
    same("what is told", beginning, &words)?;
    rig.extender.order(|orders| orders.left_out.clear());
    touch(rig, json!("now")).await?;
    let placed = rig.placed("turned-away").await;
    touch(rig, Value::Null).await?;
    placed.map(drop)
}

/// Annotates a node, as whoever measures it does.
async fn touch(rig: &Rig<'_>, value: Value) -> Result<(), Refuted> {
    let node = rig.nodes.first().map(String::as_str).unwrap_or_default();
    let patch = json!({"metadata": {"annotations": {"conformance.plimsoll.dev/touched": value}}});
    let (path, kind) = (format!("/api/v1/nodes/{node}"), "application/merge-patch+json");
    rig.api.at("PATCH", &path, kind, Some(&patch)).await?.is(200).map(drop)
}
