//! What keeps a pod of higher priority from preemption, and what an extender's Preempt decides.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::extender::Verb;
use super::messages::is_between;
use super::rig::{SLOT, SchedulerRig};
use crate::rig::{Refuted, same, version};

/// Every node could take the pod by the scheduler's own filters, so a dry run would find no victims, and say so of the
/// nodes in any order: each attempt would write another message into the pod, and each write would cause another
/// attempt.
pub(super) async fn a_pod_that_no_eviction_helps_is_written_once(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    for node in rig.nodes.clone() {
        let name = format!("low-{node}");
        rig.pod_with(&name, json!({"nodeSelector": {"kubernetes.io/hostname": node}})).await?;
        rig.placed(&name).await?;
    }
    let hot = rig.nodes.iter().map(|node| (node.clone(), "too hot".to_owned())).collect();
    rig.extender.set(|answers| answers.unresolvable = hot);
    rig.important("waits", false).await?;
    let all = rig.nodes.len();
    let begin = format!("0/{all} nodes are available: {all} too hot. ");
    let end =
        format!("0/{all} nodes are available: {all} Preemption is not helpful for scheduling.");
    is_between(&rig.unplaced("waits", "Unschedulable").await?, &begin, &end)?;
    // A change of a node causes an attempt. Once the second such one is at Filter, the first is over.
    let before = attempted_twice(rig).await?;
    let after = attempted_twice(rig).await?;
    same("the version of the pod", version(&after), version(&before))?;
    same("the calls of Preempt", rig.calls(Verb::Preempt, "waits").len(), 0)?;
    rig.extender.set(|answers| answers.unresolvable.clear());
    rig.annotate(&rig.nodes[0], Value::Null).await?;
    rig.placed("waits").await.map(drop)
}

/// Causes two attempts, one after the other. Returns the pod.
async fn attempted_twice(rig: &SchedulerRig<'_>) -> Result<Value, Refuted> {
    for _ in 0..2 {
        let count = rig.calls(Verb::Filter, "waits").len();
        rig.annotate(&rig.nodes[0], count.to_string().into()).await?;
        rig.called(Verb::Filter, "waits", count + 1).await?;
    }
    rig.api.get("pods/waits").await?.is(200)
}

pub(super) async fn preempt_is_asked_with_victims_by_uid_and_a_node_that_it_leaves_out_is_no_candidate(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    let (chosen, others) =
        rig.nodes.split_last().ok_or_else(|| Refuted("there is no node".to_owned()))?;
    rig.add_slots().await?;
    let mut victims = serde_json::Map::new();
    for node in &rig.nodes {
        let pod = rig.fill(&format!("low-{node}"), node).await?;
        let uid = &pod["metadata"]["uid"];
        let of_node = json!({"Pods": [{"UID": uid}], "NumPDBViolations": 0});
        victims.insert(node.clone(), of_node);
    }
    let left_out: BTreeSet<String> = others.iter().cloned().collect();
    rig.extender.set(|answers| answers.not_preempted = left_out);
    let made = rig.important("preempts", true).await?;
    let call = rig.called(Verb::Preempt, "preempts", 1).await?;
    same("the victims", &call.body["NodeNameToMetaVictims"], &Value::from(victims))?;
    same("the whole victims", &call.body["NodeNameToVictims"], &Value::Null)?;
    let uid = &call.body["Pod"]["metadata"]["uid"];
    same("the pod", uid, &made["metadata"]["uid"])?;
    same("the node", &rig.placed("preempts").await?, chosen)?;
    rig.gone(&format!("pods/low-{chosen}")).await?;
    for node in others {
        same("the other node's pod", &rig.node_of(&format!("low-{node}")).await?, node)?;
    }
    Ok(())
}

pub(super) async fn where_preempt_leaves_no_node_nothing_is_evicted(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.add_slots().await?;
    for node in &rig.nodes {
        rig.fill(&format!("low-{node}"), node).await?;
    }
    let left_out: BTreeSet<String> = rig.nodes.iter().cloned().collect();
    rig.extender.set(|answers| answers.not_preempted = left_out);
    rig.important("waits", true).await?;
    let all = rig.nodes.len();
    let begin = format!("0/{all} nodes are available: {all} Insufficient {SLOT}. ");
    let end = "no candidate node for preemption";
    is_between(&rig.unplaced("waits", "Unschedulable").await?, &begin, end)?;
    for node in &rig.nodes {
        same("the node's pod", &rig.node_of(&format!("low-{node}")).await?, node)?;
    }
    same("the node", rig.node_of("waits").await?, String::new())
}
