//! Which extender binds, when, and what follows a failure.

use serde_json::json;

use super::extender::{Entry, Verb};
use super::rig::SchedulerRig;
use crate::rig::{Refuted, same};

pub(super) async fn bind_is_asked_of_the_extender_for_the_pods_that_it_manages_and_no_others(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.pod("plain").await?;
    rig.placed("plain").await?;
    let made = rig.managed("managed").await?;
    let call = rig.called(Verb::Bind, "managed", 1).await?;
    same("the node before the answer", rig.node_of("managed").await?, String::new())?;
    let node = rig.bind("managed", 1).await?;
    let meta = &made["metadata"];
    let expected = json!({
        "PodName": "managed", "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node,
    });
    same("the request", &call.body, &expected)?;
    same("the extender", call.entry, Entry::Managed)?;
    same("the calls for the other pod", rig.calls(Verb::Bind, "plain").len(), 0)?;
    same("the node", rig.node_of("managed").await?, node)
}

pub(super) async fn the_next_filter_may_come_before_the_last_bind_is_answered(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    rig.managed("first").await?;
    rig.called(Verb::Bind, "first", 1).await?;
    rig.managed("second").await?;
    rig.called(Verb::Filter, "second", 1).await?;
    rig.called(Verb::Bind, "second", 1).await?;
    same("the first one's node", rig.node_of("first").await?, String::new())?;
    rig.bind("second", 1).await?;
    rig.bind("first", 1).await?;
    same("the first one's Filter calls", filter_calls(rig, "first"), 1)
}

/// Number of Filter calls for a pod to the second extender.
fn filter_calls(rig: &SchedulerRig<'_>, pod: &str) -> usize {
    let calls = rig.calls(Verb::Filter, pod);
    calls.iter().filter(|call| call.entry == Entry::Managed).count()
}

pub(super) async fn after_a_failed_bind_the_pod_is_tried_again_from_filter(
    rig: &mut SchedulerRig<'_>,
) -> Result<(), Refuted> {
    const ERROR: &str = "no GPU is left";
    rig.managed("failed").await?;
    rig.called(Verb::Bind, "failed", 1).await?;
    same("the Filter calls", filter_calls(rig, "failed"), 1)?;
    rig.answer_bind("failed", ERROR).await?;
    same("the message", rig.unplaced("failed", "SchedulerError").await?.as_str(), ERROR)?;
    rig.bind("failed", 2).await?;
    same("the Filter calls", filter_calls(rig, "failed"), 2)
}
