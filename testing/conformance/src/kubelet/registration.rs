//! What the node offers while its plugin runs, lists unhealthy devices, is away, and returns.

use serde_json::json;

use super::admission::letters;
use super::rig::{KubeletRig, Part, UNITS};
use super::{Behaviour, PluginCall};
use crate::rig::{Refuted, same};

pub(super) async fn the_node_offers_the_devices_that_a_plugin_lists(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.offered(UNITS, UNITS).await?;
    rig.run("all", &[Part::App("main", UNITS)]).await?;
    rig.phase("all", "Running").await?;
    let all = rig.plugin.devices().into_keys().collect();
    same("the ids", rig.held("all", "main").await?, all)
}

pub(super) async fn unhealthy_devices_stay_in_the_capacity_and_are_not_offered(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.mark_unhealthy(UNITS - 2);
    rig.offered(UNITS, 2).await?;
    rig.run("rest", &[Part::App("main", 2)]).await?;
    rig.phase("rest", "Running").await?;
    let Some(PluginCall::Preferred { available, .. }) = rig.plugin.calls().first().cloned() else {
        return Err(Refuted(format!(
            "GetPreferredAllocation is not first: {:?}",
            rig.plugin.calls()
        )));
    };
    let healthy = rig.plugin.devices().into_iter().filter(|(_, healthy)| *healthy);
    same("the ids to choose from", available, healthy.map(|(id, _)| id).collect())?;
    rig.plugin.mark_unhealthy(0);
    rig.offered(UNITS, UNITS).await
}

pub(super) async fn without_its_plugin_a_node_offers_nothing_and_running_pods_stay(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("runs", &[Part::App("main", 2)]).await?;
    rig.phase("runs", "Running").await?;
    let calls = rig.plugin.calls().len();
    let held = rig.held("runs", "main").await?;
    rig.plugin.kill();
    rig.offered(UNITS, 0).await?;
    same("the ids", rig.held("runs", "main").await?, held.clone())?;
    rig.start_plugin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.phase("runs", "Running").await?;
    same("the ids", rig.held("runs", "main").await?, held)?;
    same("the number of calls", rig.plugin.calls().len(), calls)
}

pub(super) async fn a_pod_bound_while_the_plugin_is_away_fails_at_admission(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.kill();
    rig.offered(UNITS, 0).await?;
    rig.run("early", &[Part::App("main", 1)]).await?;
    rig.rejected("early", "no healthy devices present; cannot allocate unhealthy devices").await?;
    rig.start_plugin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.run("next", &[Part::App("main", UNITS)]).await?;
    rig.phase("next", "Running").await?;
    // The pod stays rejected after the plugin lists healthy devices.
    rig.rejected("early", "no healthy devices present").await
}

pub(super) async fn a_plugin_without_optional_calls_is_asked_to_allocate_alone(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.kill();
    rig.offered(UNITS, 0).await?;
    rig.plugin.set(Behaviour { no_options: true, ..Behaviour::default() });
    rig.start_plugin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.run("bare", &[Part::App("a", 2), Part::App("b", 1)]).await?;
    rig.phase("bare", "Running").await?;
    same("the calls", letters(&rig.plugin.calls()).as_str(), "AA")
}

pub(super) async fn a_resource_that_no_plugin_registered_is_ignored(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.set(Behaviour { refuse_allocate: usize::MAX, ..Behaviour::default() });
    let mut pod = rig.pod("plain", &[Part::App("main", 1)]);
    pod["spec"]["containers"][0]["resources"] =
        json!({"limits": {"conformance.plimsoll.dev/never": "1"}});
    rig.run_pod(pod).await?;
    rig.phase("plain", "Running").await?;
    same("the number of ids", rig.held("plain", "main").await?.len(), 0)?;
    same("the calls", rig.plugin.calls(), Vec::new())
}
