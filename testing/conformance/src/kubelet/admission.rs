//! Admission of a pod: the plugin's calls, their arguments, and the effect of their errors.

use std::collections::BTreeSet;

use super::rig::{KubeletRig, Part, UNITS};
use super::{Behaviour, Ids, PluginCall};
use crate::rig::{Refuted, same};

/// The calls as letters: P for GetPreferredAllocation, A for Allocate, S for PreStartContainer.
pub(super) fn letters(calls: &[PluginCall]) -> String {
    calls
        .iter()
        .map(|call| match call {
            PluginCall::Preferred { .. } => 'P',
            PluginCall::Allocate { .. } => 'A',
            PluginCall::Start { .. } => 'S',
        })
        .collect()
}

/// The ids of each call of Allocate.
pub(super) fn allocated(calls: &[PluginCall]) -> Vec<Ids> {
    calls
        .iter()
        .filter_map(|call| match call {
            PluginCall::Allocate { ids, .. } => Some(ids.clone()),
            _ => None,
        })
        .collect()
}

pub(super) async fn preferred_comes_before_allocate_and_that_before_start(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("one", &[Part::App("main", 3)]).await?;
    rig.phase("one", "Running").await?;
    let calls = rig.plugin.calls();
    let [
        PluginCall::Preferred { available, must, size, chosen, .. },
        PluginCall::Allocate { ids: allocated, .. },
        PluginCall::Start { ids: started },
    ] = &calls[..]
    else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    same("the ids to choose from", available, &rig.plugin.devices().into_keys().collect())?;
    same("the ids that must be chosen", must.len(), 0)?;
    same("the number to choose", *size, 3)?;
    same("the allocated ids", allocated, chosen)?;
    same("the ids at the start", started, allocated)?;
    same("the listed ids", &rig.held("one", "main").await?, allocated)
}

/// The suite's pods are created with their node. No scheduler has written a condition to them.
pub(super) async fn a_pod_that_runs_is_ready(rig: &mut KubeletRig<'_>) -> Result<(), Refuted> {
    rig.run("ready", &[Part::App("main", 1)]).await?;
    rig.ready("ready").await
}

pub(super) async fn all_containers_are_allocated_in_order_before_any_starts(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("two", &[Part::App("a", 1), Part::App("b", 2)]).await?;
    rig.phase("two", "Running").await?;
    let calls = rig.plugin.calls();
    same("the calls", letters(&calls).as_str(), "PAPASS")?;
    let ids = [rig.held("two", "a").await?, rig.held("two", "b").await?];
    same("the allocated ids", &allocated(&calls)[..], &ids[..])?;
    same("whether they share none", ids[0].is_disjoint(&ids[1]), true)?;
    let started = calls.into_iter().filter_map(|call| match call {
        PluginCall::Start { ids } => Some(ids),
        _ => None,
    });
    same("the ids at the start", &started.collect::<Vec<_>>()[..], &ids[..])
}

/// The pods are bound one right after the other, in another order than they were created.
pub(super) async fn the_pod_being_admitted_is_the_only_one_shown_without_devices(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    const NAMES: [&str; UNITS] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    for name in NAMES {
        rig.create(name, &[Part::App("main", 1)]).await?;
    }
    let shuffled = [5, 2, 7, 0, 3, 6, 1, 4].map(|index: usize| NAMES[index % UNITS]);
    rig.bind_all(&shuffled).await?;
    for name in NAMES {
        rig.phase(name, "Running").await?;
    }
    let list = rig.list().await?;
    let mut admitted = BTreeSet::new();
    for call in rig.plugin.calls() {
        let (PluginCall::Preferred { chosen: ids, shown, .. }
        | PluginCall::Allocate { ids, shown }) = call
        else {
            continue;
        };
        let shown = shown.map_err(|why| Refuted(format!("List during the call: {why}")))?;
        let without_devices: Vec<&String> = shown.get.keys().collect();
        let [pod] = without_devices[..] else {
            let found =
                format!("without devices are {without_devices:?}, the call is about {ids:?}");
            return Err(Refuted(found));
        };
        same("the pod in Get", shown.get.get(pod), Some(&shown.list.get(pod).cloned()))?;
        let held = list.get(pod).and_then(|held| held.get("main")).cloned();
        same(&format!("the ids of {pod} in the end"), held, Some(ids))?;
        admitted.insert(pod.clone());
    }
    same("the number of admitted pods", admitted.len(), NAMES.len())
}

pub(super) async fn an_error_of_allocate_fails_the_pod_and_frees_its_ids(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.set(Behaviour { refuse_allocate: 1, ..Behaviour::default() });
    rig.run("refused", &[Part::App("main", UNITS)]).await?;
    let message = "Allocate failed due to rpc error: code = Internal desc = refused by the fact, \
                   which is unexpected";
    rig.rejected("refused", message).await?;
    same("whether it is listed", rig.list().await?.contains_key("refused"), false)?;
    same("the calls", letters(&rig.plugin.calls()).as_str(), "PA")?;
    rig.run("next", &[Part::App("main", UNITS)]).await?;
    rig.phase("next", "Running").await?;
    same("the calls", letters(&rig.plugin.calls()).as_str(), "PAPAS")
}

pub(super) async fn an_error_of_start_is_tried_again_without_another_allocate(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.set(Behaviour { refuse_start: 1, ..Behaviour::default() });
    rig.run("slow", &[Part::App("main", 2)]).await?;
    rig.phase("slow", "Running").await?;
    let calls = rig.plugin.calls();
    same("the calls", letters(&calls).as_str(), "PASS")?;
    same("the second start", &calls[3], &calls[2])
}

pub(super) async fn a_pod_that_asks_for_more_than_is_free_fails_at_admission(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("some", &[Part::App("main", UNITS - 2)]).await?;
    rig.phase("some", "Running").await?;
    rig.run("more", &[Part::App("main", 3)]).await?;
    rig.rejected("more", "Requested: 3, Available: 2").await?;
    // Ids that an init container hands on are not requested anew.
    rig.run("handed", &[Part::Init("init", 1), Part::App("main", 3)]).await?;
    rig.rejected("handed", "Requested: 2, Available: 1").await?;
    rig.run("rest", &[Part::App("main", 2)]).await?;
    rig.phase("rest", "Running").await.map(drop)
}

pub(super) async fn the_devices_of_a_deleted_pod_are_free(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    for name in ["first", "second"] {
        rig.run(name, &[Part::App("main", UNITS)]).await?;
        rig.phase(name, "Running").await?;
        rig.delete(name).await?;
        rig.gone(name).await?;
        same("whether it is listed", rig.list().await?.contains_key(name), false)?;
    }
    Ok(())
}
