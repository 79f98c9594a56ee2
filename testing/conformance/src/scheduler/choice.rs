//! Which nodes the extenders are asked about, and which one is chosen.

use serde_json::{Value, json};

use super::extender::{Entry, Verb};
use super::rig::Rig;
use crate::rig::{Refuted, same, text};

pub(super) async fn filter_is_asked_by_name_about_the_nodes_that_pass_the_schedulers_own_filters(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    for node in rig.nodes.clone() {
        let name = format!("only-{node}");
        let selector = json!({"nodeSelector": {"kubernetes.io/hostname": node}});
        let made = rig.pod_with(&name, selector).await?;
        same("where it is", rig.placed(&name).await?, node.clone())?;
        let asked = rig.called(Verb::Filter, &name, 1).await?;
        same("whom it asks", asked.entry, Entry::All)?;
        same("about which nodes", asked.nodes(), vec![node])?;
        same("whether whole nodes are sent", &asked.body["Nodes"], &Value::Null)?;
        same("about which pod", &asked.body["Pod"]["metadata"]["uid"], &made["metadata"]["uid"])?;
        same(
            "whether it is told whole",
            &asked.body["Pod"]["spec"]["nodeSelector"],
            &made["spec"]["nodeSelector"],
        )?;
    }
    rig.pod("anywhere").await?;
    rig.placed("anywhere").await?;
    same(
        "about which nodes",
        rig.called(Verb::Filter, "anywhere", 1).await?.nodes(),
        rig.nodes.clone(),
    )
}

pub(super) async fn the_next_extender_is_asked_about_the_nodes_that_the_last_one_left(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    let (out, left) = split(&rig.nodes)?;
    rig.leave_out(&[out]);
    rig.managed("handed-on").await?;
    rig.bind("handed-on", 1).await?;
    let asked = rig.asked(Verb::Filter, "handed-on");
    let asked: Vec<_> = asked.iter().map(|call| (call.entry, call.nodes())).collect();
    let expected = vec![(Entry::All, rig.nodes.clone()), (Entry::Managed, left)];
    same("who is asked about which nodes", asked, expected)
}

/// One node, and all others.
fn split(nodes: &[String]) -> Result<(String, Vec<String>), Refuted> {
    let (first, others) = nodes.split_first().ok_or_else(|| Refuted("no node".to_owned()))?;
    Ok((first.clone(), others.to_vec()))
}

pub(super) async fn a_node_that_filter_left_out_is_not_chosen_and_not_scored(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    for out in rig.nodes.clone() {
        rig.extender.forget();
        rig.leave_out(std::slice::from_ref(&out));
        rig.score(Entry::All, &out);
        let name = format!("not-{out}");
        rig.pod(&name).await?;
        same("whether it is there", rig.placed(&name).await? == out, false)?;
        let scored = rig.asked(Verb::Prioritize, &name);
        let named = scored.iter().any(|call| call.nodes().contains(&out));
        same("whether it is scored", named, false)?;
    }
    Ok(())
}

pub(super) async fn a_single_node_that_is_left_is_not_scored(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.pod("scored").await?;
    rig.placed("scored").await?;
    let scored = rig.called(Verb::Prioritize, "scored", 1).await?;
    same("which nodes are scored", scored.nodes(), rig.nodes.clone())?;
    same("whether whole nodes are sent", &scored.body["Nodes"], &Value::Null)?;
    for node in rig.nodes.clone() {
        rig.extender.forget();
        let others = rig.nodes.iter().filter(|other| **other != node).cloned();
        rig.leave_out(&others.collect::<Vec<_>>());
        let name = format!("single-{node}");
        rig.pod(&name).await?;
        same("where it is", rig.placed(&name).await?, node)?;
        same("how often it is scored", rig.asked(Verb::Prioritize, &name).len(), 0)?;
    }
    Ok(())
}

pub(super) async fn scores_count_by_their_weights(rig: &mut Rig<'_>) -> Result<(), Refuted> {
    for (node, other) in rig.nodes.clone().into_iter().zip(rig.nodes.iter().cycle().skip(1)) {
        rig.extender.forget();
        rig.score(Entry::All, &node);
        let name = format!("best-{node}");
        rig.pod(&name).await?;
        same("where the one with points is", rig.placed(&name).await?, node.clone())?;
        // The other extender's points weigh three times as much.
        rig.score(Entry::Managed, other);
        let name = format!("outweighs-{node}");
        rig.managed(&name).await?;
        same("where the one with weightier points is", &rig.bind(&name, 1).await?, other)?;
    }
    Ok(())
}

pub(super) async fn pods_of_other_schedulers_are_left_alone(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.pod_with("theirs", json!({"schedulerName": "nobody"})).await?;
    rig.pod("ours").await?;
    let node = rig.placed("ours").await?;
    let calls = rig.extender.calls();
    same("whether it is asked about", calls.iter().any(|call| call.pod == "theirs"), false)?;
    rig.bind_to("theirs", &node).await?;
    let theirs = rig.api.get("pods/theirs").await?.is(200)?;
    same("where it is bound by hand", text(&theirs["spec"]["nodeName"]), &node)
}
