//! Which nodes the extenders are asked about, and which node is chosen.

use serde_json::{Value, json};

use super::extender::{Entry, Verb};
use super::rig::SchedulerRig;
use crate::rig::{Refuted, same, text};

pub(super) async fn filter_is_asked_by_name_about_the_nodes_that_pass_the_schedulers_own_filters(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    for node in rig.nodes.clone() {
        let name = format!("only-{node}");
        let selector = json!({"nodeSelector": {"kubernetes.io/hostname": node}});
        let made = rig.pod_with(&name, selector).await?;
        same("the node", rig.placed(&name).await?, node.clone())?;
        let call = rig.called(Verb::Filter, &name, 1).await?;
        same("the extender", call.entry, Entry::All)?;
        same("the nodes", call.nodes(), vec![node])?;
        same("the whole nodes", &call.body["Nodes"], &Value::Null)?;
        same("the pod", &call.body["Pod"]["metadata"]["uid"], &made["metadata"]["uid"])?;
        same(
            "the pod's spec",
            &call.body["Pod"]["spec"]["nodeSelector"],
            &made["spec"]["nodeSelector"],
        )?;
    }
    rig.pod("anywhere").await?;
    rig.placed("anywhere").await?;
    let call = rig.called(Verb::Filter, "anywhere", 1).await?;
    same("the nodes", call.nodes(), rig.nodes.clone())
}

pub(super) async fn the_next_extender_is_asked_about_the_nodes_that_the_last_one_let_pass(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.reject(&rig.nodes[..1]);
    rig.managed("managed").await?;
    rig.bind("managed", 1).await?;
    let calls = rig.calls(Verb::Filter, "managed");
    let calls: Vec<_> = calls.iter().map(|call| (call.entry, call.nodes())).collect();
    let expected = vec![(Entry::All, rig.nodes.clone()), (Entry::Managed, rig.nodes[1..].to_vec())];
    same("the extenders and nodes", calls, expected)
}

pub(super) async fn a_node_that_filter_rejects_is_not_chosen_and_not_scored(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    for rejected in rig.nodes.clone() {
        rig.extender.reset();
        rig.reject(std::slice::from_ref(&rejected));
        rig.score(Entry::All, &rejected);
        let name = format!("not-{rejected}");
        rig.pod(&name).await?;
        same("whether it is chosen", rig.placed(&name).await? == rejected, false)?;
        let calls = rig.calls(Verb::Prioritize, &name);
        let is_scored = calls.iter().any(|call| call.nodes().contains(&rejected));
        same("whether it is scored", is_scored, false)?;
    }
    Ok(())
}

pub(super) async fn a_single_node_that_passes_is_not_scored(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.pod("scored").await?;
    rig.placed("scored").await?;
    let call = rig.called(Verb::Prioritize, "scored", 1).await?;
    same("the nodes", call.nodes(), rig.nodes.clone())?;
    same("the whole nodes", &call.body["Nodes"], &Value::Null)?;
    for node in rig.nodes.clone() {
        rig.extender.reset();
        let others = rig.nodes.iter().filter(|other| **other != node).cloned();
        rig.reject(&others.collect::<Vec<_>>());
        let name = format!("single-{node}");
        rig.pod(&name).await?;
        same("the node", rig.placed(&name).await?, node)?;
        same("the calls of Prioritize", rig.calls(Verb::Prioritize, &name).len(), 0)?;
    }
    Ok(())
}

pub(super) async fn scores_count_by_their_weights(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    for (node, other) in rig.nodes.clone().into_iter().zip(rig.nodes.iter().cycle().skip(1)) {
        rig.extender.reset();
        rig.score(Entry::All, &node);
        let name = format!("best-{node}");
        rig.pod(&name).await?;
        same("the first one's node", rig.placed(&name).await?, node.clone())?;
        // The other extender's weight is three times as large.
        rig.score(Entry::Managed, other);
        let name = format!("outweighs-{node}");
        rig.managed(&name).await?;
        same("the second one's node", &rig.bind(&name, 1).await?, other)?;
    }
    Ok(())
}

pub(super) async fn scores_above_ten_count_in_full(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    for (node, other) in rig.nodes.clone().into_iter().zip(rig.nodes.iter().cycle().skip(1)) {
        rig.extender.reset();
        // 60 · 10 · 10 points for the other node. The first extender has 20 · 10 for each of its own: cut off at 10
        // they would be fewer, and 40 are more by 2,000, which kube-scheduler's own 1,400 cannot make up for.
        rig.score(Entry::Managed, other);
        rig.score_points(Entry::All, &node, 40);
        let name = format!("above-ten-{node}");
        rig.managed(&name).await?;
        same("the node with 40 points", &rig.bind(&name, 1).await?, &node)?;
    }
    Ok(())
}

/// kube-scheduler would place them by what it found for the first (OpportunisticBatching), had it no extenders.
pub(super) async fn identical_pods_in_a_row_are_each_asked_about(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    let names: Vec<String> = (0..8).map(|number| format!("alike-{number}")).collect();
    for name in &names {
        rig.pod(name).await?;
    }
    for name in &names {
        rig.placed(name).await?;
        for verb in [Verb::Filter, Verb::Prioritize] {
            let call = rig.called(verb, name, 1).await?;
            same("the nodes", call.nodes(), rig.nodes.clone())?;
        }
    }
    Ok(())
}

pub(super) async fn pods_of_other_schedulers_are_left_alone(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.pod_with("theirs", json!({"schedulerName": "none"})).await?;
    rig.pod("ours").await?;
    let node = rig.placed("ours").await?;
    let calls = rig.extender.calls();
    same("whether an extender is called", calls.iter().any(|call| call.pod == "theirs"), false)?;
    rig.bind_to("theirs", &node).await?;
    let theirs = rig.api.get("pods/theirs").await?.is(200)?;
    same("the node that it was bound to", text(&theirs["spec"]["nodeName"]), &node)
}
