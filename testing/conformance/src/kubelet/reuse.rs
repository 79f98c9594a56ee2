//! What becomes of an init container's devices: the containers after it take them over.

use super::Call;
use super::admission::{allocated, hooks};
use super::rig::{Part, Rig, UNITS};
use crate::rig::{Refuted, same};

pub(super) async fn an_init_containers_ids_are_handed_on_without_asking_for_a_preference(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.run("fewer", &[Part::Init("init", 4), Part::App("main", 2)]).await?;
    rig.phase("fewer", "Running").await?;
    let calls = rig.plugin.calls();
    same("the order", hooks(&calls).as_str(), "PAASS")?;
    let [init, main] = &allocated(&calls)[..] else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    same("how many the second gets", main.len(), 2)?;
    same("whether they are the first one's", main.is_subset(init), true)?;
    let started: Vec<&Call> = calls.iter().skip(3).collect();
    let expected = [Call::Start { ids: init.clone() }, Call::Start { ids: main.clone() }];
    same("what is started with", started, expected.iter().collect())?;
    same("what is listed", &rig.held("fewer", "main").await?, main)?;
    // The rest is not free as long as the pod is there.
    rig.run("other", &[Part::App("main", UNITS - 3)]).await?;
    rig.rejected("other", "Requested: 5, Available: 4").await
}

pub(super) async fn a_container_that_needs_more_must_take_the_init_containers_ids(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    rig.run("more", &[Part::Init("init", 1), Part::App("main", 2)]).await?;
    rig.phase("more", "Running").await?;
    let calls = rig.plugin.calls();
    same("the order", hooks(&calls).as_str(), "PAPASS")?;
    let Some(Call::Preferred { available, must, size, answered, .. }) = calls.get(2) else {
        return Err(Refuted(format!("the calls are {calls:?}")));
    };
    let ids = allocated(&calls);
    same("what must be chosen", must, &ids[0])?;
    same("how many are to be chosen", *size, 2)?;
    let all = rig.plugin.devices().into_keys().collect();
    same("what is offered", available, &all)?;
    same("what is allocated", &ids[1], answered)?;
    same("whether the first one's are among it", ids[0].is_subset(&ids[1]), true)
}

pub(super) async fn containers_share_out_what_an_init_container_held(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 3), Part::App("a", 1), Part::App("b", 2)];
    rig.run("shared", &parts).await?;
    rig.phase("shared", "Running").await?;
    let calls = rig.plugin.calls();
    same("the order", hooks(&calls).as_str(), "PAAASSS")?;
    let ids = allocated(&calls);
    same("whether they share none", ids[1].is_disjoint(&ids[2]), true)?;
    same("what both have", &ids[1] | &ids[2], ids[0].clone())
}

pub(super) async fn a_sidecars_ids_are_its_own(rig: &mut Rig<'_>) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 2), Part::Sidecar("side", 1), Part::App("main", 2)];
    rig.run("beside", &parts).await?;
    rig.phase("beside", "Running").await?;
    let calls = rig.plugin.calls();
    let ids = allocated(&calls);
    let (side, main) = (rig.held("beside", "side").await?, rig.held("beside", "main").await?);
    same("what is allocated", &ids[1..], &[side.clone(), main.clone()][..])?;
    same("whether they share none", side.is_disjoint(&main), true)?;
    same("whether the sidecar's were the init container's", side.is_subset(&ids[0]), true)?;
    same("the order", hooks(&calls).as_str(), "PAAPASSS")
}

pub(super) async fn only_sidecars_among_init_containers_are_listed(
    rig: &mut Rig<'_>,
) -> Result<(), Refuted> {
    let parts = [Part::Init("init", 2), Part::Sidecar("side", 1), Part::App("main", 1)];
    rig.run("listed", &parts).await?;
    rig.phase("listed", "Running").await?;
    let names = |held: &super::Held| held.keys().cloned().collect::<Vec<_>>();
    for call in rig.plugin.calls() {
        let (Call::Preferred { seen, .. } | Call::Allocate { seen, .. }) = call else { continue };
        let list = seen.map_err(|why| Refuted(format!("List in the hook: {why}")))?.list;
        same("what is listed", list.get("listed").map(names), Some(strings(&["main", "side"])))?;
    }
    let list = rig.list().await?;
    same("what is listed", list.get("listed").map(names), Some(strings(&["main", "side"])))
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
