//! The containers after an init container take over its devices.

use std::fs;

use serde_json::Value;

use super::admission::{allocated, letters};
use super::rig::{KubeletRig, Part, RESOURCE, UNITS};
use super::{Ids, PluginCall};
use crate::rig::{Refuted, same, text};

pub(super) async fn an_init_containers_ids_are_handed_on_without_asking_for_a_preference(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("fewer", &[Part::Init("init", 4), Part::App("main", 2)]).await?;
    rig.phase("fewer", "Running").await?;
    let calls = rig.plugin.calls();
    same("the calls", letters(&calls).as_str(), "PAASS")?;
    let [init, main] = &allocated(&calls)[..] else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    same("the number of ids", main.len(), 2)?;
    same("whether they are of the init container", main.is_subset(init), true)?;
    let started: Vec<&PluginCall> = calls.iter().skip(3).collect();
    let expected =
        [PluginCall::Start { ids: init.clone() }, PluginCall::Start { ids: main.clone() }];
    same("the starts", started, expected.iter().collect())?;
    same("the listed ids", &rig.held("fewer", "main").await?, main)?;
    // The others are not free as long as the pod is there.
    rig.run("other", &[Part::App("main", UNITS - 3)]).await?;
    rig.rejected("other", "Requested: 5, Available: 4").await
}

pub(super) async fn a_container_that_needs_more_must_take_the_init_containers_ids(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("more", &[Part::Init("init", 1), Part::App("main", 2)]).await?;
    rig.phase("more", "Running").await?;
    let calls = rig.plugin.calls();
    same("the calls", letters(&calls).as_str(), "PAPASS")?;
    let Some(PluginCall::Preferred { available, must, size, chosen, .. }) = calls.get(2) else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    let ids = allocated(&calls);
    same("the ids that must be chosen", must, &ids[0])?;
    same("the number to choose", *size, 2)?;
    let all = rig.plugin.devices().into_keys().collect();
    same("the ids to choose from", available, &all)?;
    same("the allocated ids", &ids[1], chosen)?;
    same("whether those of the init container are among them", ids[0].is_subset(&ids[1]), true)
}

pub(super) async fn containers_divide_the_ids_of_an_init_container(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 3), Part::App("a", 1), Part::App("b", 2)];
    rig.run("shared", &parts).await?;
    rig.phase("shared", "Running").await?;
    let calls = rig.plugin.calls();
    same("the calls", letters(&calls).as_str(), "PAAASSS")?;
    let ids = allocated(&calls);
    same("whether they share none", ids[1].is_disjoint(&ids[2]), true)?;
    same("the ids of both", &ids[1] | &ids[2], ids[0].clone())
}

pub(super) async fn a_sidecars_ids_are_its_own(rig: &mut KubeletRig<'_>) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 2), Part::Sidecar("side", 1), Part::App("main", 2)];
    rig.run("beside", &parts).await?;
    rig.phase("beside", "Running").await?;
    let calls = rig.plugin.calls();
    let ids = allocated(&calls);
    let side = rig.held("beside", "side").await?;
    let main = rig.held("beside", "main").await?;
    same("the allocated ids", &ids[1..], &[side.clone(), main.clone()][..])?;
    same("whether they share none", side.is_disjoint(&main), true)?;
    same("whether the sidecar's are of the init container", side.is_subset(&ids[0]), true)?;
    same("the calls", letters(&calls).as_str(), "PAAPASSS")
}

pub(super) async fn only_sidecars_among_init_containers_are_listed(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 2), Part::Sidecar("side", 1), Part::App("main", 1)];
    rig.run("listed", &parts).await?;
    rig.phase("listed", "Running").await?;
    for call in rig.plugin.calls() {
        let (PluginCall::Preferred { shown, .. } | PluginCall::Allocate { shown, .. }) = call
        else {
            continue;
        };
        let list = shown.map_err(|why| Refuted(format!("List during the call: {why}")))?.list;
        same(
            "the listed containers",
            list.get("listed").map(names),
            Some(strings(&["main", "side"])),
        )?;
    }
    let list = rig.list().await?;
    same("the listed containers", list.get("listed").map(names), Some(strings(&["main", "side"])))
}

fn names(held: &super::DevicesByContainer) -> Vec<String> {
    held.keys().cloned().collect::<Vec<_>>()
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Unlike PodResources, the checkpoint has UIDs, init containers and the answers to Allocate.
pub(super) async fn the_checkpoint_names_what_every_container_holds(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("kept", &[Part::Init("init", 4), Part::App("main", 2)]).await?;
    let pod = rig.phase("kept", "Running").await?;
    let ids = allocated(&rig.plugin.calls());
    let path = rig.machine.plugin_dir().join("kubelet_internal_checkpoint");
    let checkpoint = fs::read_to_string(&path).map_err(|error| Refuted(error.to_string()))?;
    let checkpoint: Value =
        serde_json::from_str(&checkpoint).map_err(|error| Refuted(error.to_string()))?;
    let data = &checkpoint["Data"];
    for (container, ids) in [("init", &ids[0]), ("main", &ids[1])] {
        let entry = data["PodDeviceEntries"].as_array().into_iter().flatten().find(|entry| {
            entry["PodUID"] == pod["metadata"]["uid"]
                && entry["ContainerName"] == container
                && entry["ResourceName"] == RESOURCE
        });
        let entry = entry.ok_or_else(|| Refuted(format!("{container} is not in {data}")))?;
        let held = entry["DeviceIDs"].as_object().into_iter().flat_map(|numa| numa.values());
        let held: Ids = held.flat_map(list).map(|id| text(id).to_owned()).collect();
        same("the ids of the container in the checkpoint", &held, ids)?;
        same(
            "whether the answer to Allocate is in the checkpoint",
            entry["AllocResp"].is_string(),
            true,
        )?;
    }
    let registered = &data["RegisteredDevices"][RESOURCE];
    same("the number of registered devices", list(registered).len(), UNITS)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
