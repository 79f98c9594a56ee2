//! Who binds, when, and what comes of a failure.

use serde_json::json;

use super::extender::{Entry, Verb};
use super::rig::Rig;
use crate::rig::{Refuted, same};

pub(super) async fn bind_is_asked_of_the_extender_for_the_pods_that_it_manages_and_no_others(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.pod("plain").await?;
    rig.placed("plain").await?;
    let made = rig.managed("managed").await?;
    let asked = rig.called(Verb::Bind, "managed", 1).await?;
    same("where it is before the answer", rig.node_of("managed").await?, String::new())?;
    let node = rig.bind("managed", 1).await?;
    let meta = &made["metadata"];
    let expected = json!({
        "PodName": "managed", "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node,
    });
    same("what is asked", &asked.body, &expected)?;
    same("whom it asks", asked.entry, Entry::Managed)?;
    same("how often it is asked to bind the plain one", rig.asked(Verb::Bind, "plain").len(), 0)?;
    same("where it is", rig.node_of("managed").await?, node)
}

pub(super) async fn the_next_filter_may_come_before_the_last_bind_is_answered(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.managed("first").await?;
    rig.called(Verb::Bind, "first", 1).await?;
    rig.managed("second").await?;
    rig.called(Verb::Filter, "second", 1).await?;
    rig.called(Verb::Bind, "second", 1).await?;
    same("where the first is", rig.node_of("first").await?, String::new())?;
    rig.bind("second", 1).await?;
    rig.bind("first", 1).await?;
    same("how often the first is filtered", filtered(rig, "first"), 1)
}

/// How often the second extender was asked to filter for a pod.
fn filtered(rig: &Rig<'_>, pod: &str) -> usize {
    let calls = rig.asked(Verb::Filter, pod);
    calls.iter().filter(|call| call.entry == Entry::Managed).count()
}

pub(super) async fn after_a_failed_bind_the_pod_is_tried_again_from_filter(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    const WORDS: &str = "no card is left";
    rig.managed("failed").await?;
    rig.called(Verb::Bind, "failed", 1).await?;
    same("how often it is filtered", filtered(rig, "failed"), 1)?;
    rig.answer_bind("failed", WORDS).await?;
    same("what is told", rig.unplaced("failed", "SchedulerError").await?.as_str(), WORDS)?;
    rig.bind("failed", 2).await?;
    same("how often it is filtered", filtered(rig, "failed"), 2)
}
