//! What the node offers while its plugin lives, sickens, dies and returns.

use serde_json::json;

use super::admission::hooks;
use super::rig::{Part, Rig, UNITS};
use super::{Call, Orders};
use crate::rig::{Refuted, same};

pub(super) async fn what_a_plugin_lists_can_be_had_on_the_node(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.offered(UNITS, UNITS).await?;
    rig.run("all", &[Part::App("main", UNITS)]).await?;
    rig.phase("all", "Running").await?;
    same("what is held", rig.held("all", "main").await?, rig.plugin.devices().into_keys().collect())
}

pub(super) async fn unhealthy_devices_stay_in_the_capacity_and_are_not_offered(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.sicken(UNITS - 2);
    rig.offered(UNITS, 2).await?;
    rig.run("rest", &[Part::App("main", 2)]).await?;
    rig.phase("rest", "Running").await?;
    let Some(Call::Preferred { available, .. }) = rig.plugin.calls().first().cloned() else {
        return Err(Refuted(format!("no preference: {:?}", rig.plugin.calls())));
    };
    let healthy = rig.plugin.devices().into_iter().filter(|(_, healthy)| *healthy);
    same("what is offered", available, healthy.map(|(id, _)| id).collect())?;
    rig.plugin.sicken(0);
    rig.offered(UNITS, UNITS).await
}

pub(super) async fn without_its_plugin_nothing_can_be_had_and_running_pods_stay(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.run("runs", &[Part::App("main", 2)]).await?;
    rig.phase("runs", "Running").await?;
    let (calls, held) = (rig.plugin.calls().len(), rig.held("runs", "main").await?);
    rig.plugin.end();
    rig.offered(UNITS, 0).await?;
    same("what is held", rig.held("runs", "main").await?, held.clone())?;
    rig.begin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.phase("runs", "Running").await?;
    same("what is held", rig.held("runs", "main").await?, held)?;
    same("the number of calls", rig.plugin.calls().len(), calls)
}

pub(super) async fn a_pod_bound_while_the_plugin_is_away_fails_at_admission(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.end();
    rig.offered(UNITS, 0).await?;
    rig.run("early", &[Part::App("main", 1)]).await?;
    rig.rejected("early", "no healthy devices present; cannot allocate unhealthy devices").await?;
    rig.begin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.run("next", &[Part::App("main", UNITS)]).await?;
    rig.phase("next", "Running").await?;
    // For good.
    rig.rejected("early", "no healthy devices present").await
}

pub(super) async fn a_plugin_that_wants_no_hooks_is_asked_to_allocate_and_nothing_else(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.end();
    rig.offered(UNITS, 0).await?;
    rig.plugin.order(Orders { no_hooks: true, ..Orders::default() });
    rig.begin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.run("bare", &[Part::App("a", 2), Part::App("b", 1)]).await?;
    rig.phase("bare", "Running").await?;
    same("the order", hooks(&rig.plugin.calls()).as_str(), "AA")
}

pub(super) async fn what_no_plugin_ever_registered_is_not_looked_after(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.order(Orders { refuse_allocate: usize::MAX, ..Orders::default() });
    let mut pod = rig.pod("plain", &[Part::App("main", 1)]);
    pod["spec"]["containers"][0]["resources"] =
        json!({"limits": {"conformance.plimsoll.dev/never": "1"}});
    rig.run_as_written(pod).await?;
    rig.phase("plain", "Running").await?;
    same("what is held", rig.held("plain", "main").await?.len(), 0)?;
    same("the calls", rig.plugin.calls(), Vec::new())
}
