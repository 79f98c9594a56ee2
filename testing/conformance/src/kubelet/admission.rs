//! How a pod is let in: which hooks are called, with what, and what comes of their errors.

use std::collections::BTreeSet;

use super::rig::{Part, Rig, UNITS};
use super::{Call, Ids, Orders};
use crate::rig::{Refuted, same};

/// The calls, by their hooks' first letters.
pub(super) fn hooks(calls: &[Call]) -> String {
    let letter = |call: &Call| match call {
        Call::Preferred { .. } => 'P',
        Call::Allocate { .. } => 'A',
        Call::Start { .. } => 'S',
    };
    calls.iter().map(letter).collect()
}

/// What Allocate was called with, each time.
pub(super) fn allocated(calls: &[Call]) -> Vec<Ids> {
    let ids = |call: &Call| match call {
        Call::Allocate { ids, .. } => Some(ids.clone()),
        _ => None,
    };
    calls.iter().filter_map(ids).collect()
}

pub(super) async fn preferred_comes_before_allocate_and_that_before_start(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.run("one", &[Part::App("main", 3)]).await?;
    rig.phase("one", "Running").await?;
    let calls = rig.plugin.calls();
    let [
        Call::Preferred { available, must, size, answered, .. },
        Call::Allocate { ids: allocated, .. },
        Call::Start { ids: started },
    ] = &calls[..]
    else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    same("what is offered", available, &rig.plugin.devices().into_keys().collect())?;
    same("what must be chosen", must.len(), 0)?;
    same("how many are to be chosen", *size, 3)?;
    same("what is allocated", allocated, answered)?;
    same("what is started with", started, allocated)?;
    same("what is listed", &rig.held("one", "main").await?, allocated)
}

/// The suite's pods are made with their node, and no scheduler has told them anything.
pub(super) async fn a_pod_that_runs_is_ready(rig: &mut Rig<'_>) -> Result<(), Refuted> {
    rig.run("ready", &[Part::App("main", 1)]).await?;
    rig.ready("ready").await
}

pub(super) async fn all_containers_are_allocated_in_order_before_any_starts(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.run("two", &[Part::App("a", 1), Part::App("b", 2)]).await?;
    rig.phase("two", "Running").await?;
    let calls = rig.plugin.calls();
    same("the order", hooks(&calls).as_str(), "PAPASS")?;
    let ids = [rig.held("two", "a").await?, rig.held("two", "b").await?];
    same("what is allocated", &allocated(&calls)[..], &ids[..])?;
    same("whether they share none", ids[0].is_disjoint(&ids[1]), true)?;
    let started = calls.into_iter().filter_map(|call| match call {
        Call::Start { ids } => Some(ids),
        _ => None,
    });
    same("what is started with", &started.collect::<Vec<_>>()[..], &ids[..])
}

/// Pods are bound all at once, in another order than they were created.
pub(super) async fn the_pod_being_admitted_is_the_only_one_shown_without_devices(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    const NAMES: [&str; UNITS] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    for name in NAMES {
        rig.create(name, &[Part::App("main", 1)]).await?;
    }
    let shuffled = [5, 2, 7, 0, 3, 6, 1, 4].map(|place: usize| NAMES[place % UNITS]);
    rig.bind_all(&shuffled).await?;
    for name in NAMES {
        rig.phase(name, "Running").await?;
    }
    let list = rig.list().await?;
    let mut admitted = BTreeSet::new();
    for call in rig.plugin.calls() {
        let (Call::Preferred { answered: ids, seen, .. } | Call::Allocate { ids, seen }) = call
        else {
            continue;
        };
        let sight = seen.map_err(|why| Refuted(format!("List in the hook: {why}")))?;
        let shown: Vec<&String> = sight.get.keys().collect();
        let [pod] = shown[..] else {
            return Err(Refuted(format!("without devices are {shown:?} while {ids:?} are given")));
        };
        same("what Get shows of it", sight.get.get(pod), Some(&sight.list.get(pod).cloned()))?;
        let held = list.get(pod).and_then(|held| held.get("main")).cloned();
        same(&format!("what {pod} holds in the end"), held, Some(ids))?;
        admitted.insert(pod.clone());
    }
    same("how many were admitted", admitted.len(), NAMES.len())
}

pub(super) async fn an_error_of_allocate_fails_the_pod_and_frees_its_ids(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.order(Orders { refuse_allocate: 1, ..Orders::default() });
    rig.run("refused", &[Part::App("main", UNITS)]).await?;
    let words = "Allocate failed due to rpc error: code = Internal desc = as it was told, \
                 which is unexpected";
    rig.rejected("refused", words).await?;
    same("whether it is listed", rig.list().await?.contains_key("refused"), false)?;
    same("the order", hooks(&rig.plugin.calls()).as_str(), "PA")?;
    rig.run("next", &[Part::App("main", UNITS)]).await?;
    rig.phase("next", "Running").await?;
    same("the order", hooks(&rig.plugin.calls()).as_str(), "PAPAS")
}

pub(super) async fn an_error_of_start_is_tried_again_without_another_allocate(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.plugin.order(Orders { refuse_start: 1, ..Orders::default() });
    rig.run("slow", &[Part::App("main", 2)]).await?;
    rig.phase("slow", "Running").await?;
    let calls = rig.plugin.calls();
    same("the order", hooks(&calls).as_str(), "PASS")?;
    same("what is started with", &calls[2], &calls[3])
}

pub(super) async fn more_than_is_free_fails_at_admission(rig: &mut Rig<'_>) -> Result<(), Refuted> {
    rig.run("some", &[Part::App("main", UNITS - 2)]).await?;
    rig.phase("some", "Running").await?;
    rig.run("more", &[Part::App("main", 3)]).await?;
    rig.rejected("more", "Requested: 3, Available: 2").await?;
    // What is handed on is not requested anew.
    rig.run("handed", &[Part::Init("init", 1), Part::App("main", 3)]).await?;
    rig.rejected("handed", "Requested: 2, Available: 1").await?;
    rig.run("rest", &[Part::App("main", 2)]).await?;
    rig.phase("rest", "Running").await.map(drop)
}

pub(super) async fn what_a_deleted_pod_held_is_free(rig: &mut Rig<'_>) -> Result<(), Refuted> {
    for name in ["first", "second"] {
        rig.run(name, &[Part::App("main", UNITS)]).await?;
        rig.phase(name, "Running").await?;
        rig.delete(name).await?;
        rig.gone(name).await?;
        same("whether it is listed", rig.list().await?.contains_key(name), false)?;
    }
    Ok(())
}
