//! A kubelet that is killed and started again. Plugins have about a second to register anew before it goes on with its
//! pods.

use std::time::Duration;

use super::admission::allocated;
use super::rig::{KubeletRig, Part, UNITS};
use crate::rig::{Refuted, same, text};

/// Time between two attempts to create a pod in a later second than another. Creation times are whole seconds.
const RETRY: Duration = Duration::from_millis(100);

pub(super) async fn a_restarted_kubelet_keeps_running_pods_and_allocates_nothing_again(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("runs", &[Part::App("main", 2)]).await?;
    rig.phase("runs", "Running").await?;
    let calls = rig.plugin.calls();
    let held = rig.held("runs", "main").await?;
    rig.stop_kubelet().await?;
    same("whether the plugin's socket is there", rig.plugin.socket().exists(), true)?;
    rig.start_kubelet().await?;
    rig.start_plugin().await?;
    // Once this one runs, the kubelet has gone over those from before.
    rig.run("next", &[Part::App("main", UNITS - 2)]).await?;
    rig.phase("next", "Running").await?;
    rig.phase("runs", "Running").await?;
    same("the ids", rig.held("runs", "main").await?, held.clone())?;
    let later: Vec<_> = rig.plugin.calls().split_off(calls.len());
    let next = rig.held("next", "main").await?;
    same("the ids allocated later", allocated(&later), vec![next.clone()])?;
    same("whether they share none", next.is_disjoint(&held), true)?;
    same("the number of later calls", later.len(), 3)?;
    rig.offered(UNITS, UNITS).await
}

pub(super) async fn pods_bound_meanwhile_are_admitted_in_the_order_of_creation(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    let names = ["oldest", "middle", "youngest"];
    let mut last = String::new();
    for (size, name) in (1..).zip(names) {
        last = create_after(rig, name, size, &last).await?;
    }
    rig.stop_kubelet().await?;
    for name in ["youngest", "oldest", "middle"] {
        rig.bind(name).await?;
    }
    rig.start_kubelet().await?;
    rig.start_plugin().await?;
    for name in names {
        rig.phase(name, "Running").await?;
    }
    let sizes: Vec<usize> =
        allocated(&rig.plugin.calls()).iter().map(std::collections::BTreeSet::len).collect();
    same("the sizes in their order", sizes, vec![1, 2, 3])
}

/// Creates a pod in a later second than `last`. Returns its creation time.
async fn create_after(
    rig: &KubeletRig<'_>,
    name: &str,
    size: usize,
    last: &str,
) -> Result<String, Refuted> {
    loop {
        let pod = rig.create(name, &[Part::App("main", size)]).await?;
        let created = text(&pod["metadata"]["creationTimestamp"]);
        if created > last {
            return Ok(created.to_owned());
        }
        rig.remove(name).await?;
        rig.gone(name).await?;
        tokio::time::sleep(RETRY).await;
    }
}

pub(super) async fn devices_of_removed_pods_count_until_all_pods_are_admitted(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("goes", &[Part::App("main", UNITS - 1)]).await?;
    rig.phase("goes", "Running").await?;
    rig.stop_kubelet().await?;
    rig.remove("goes").await?;
    rig.gone("goes").await?;
    rig.run("comes", &[Part::App("main", 2)]).await?;
    rig.start_kubelet().await?;
    rig.start_plugin().await?;
    rig.rejected("comes", "Requested: 2, Available: 1").await?;
    rig.run("next", &[Part::App("main", UNITS)]).await?;
    rig.phase("next", "Running").await.map(drop)
}

pub(super) async fn without_its_plugin_a_restarted_kubelet_offers_nothing_and_running_pods_stay(
    rig: &mut KubeletRig<'_>,
) -> Result<(), Refuted> {
    rig.run("runs", &[Part::App("main", 2)]).await?;
    rig.phase("runs", "Running").await?;
    let calls = rig.plugin.calls().len();
    let held = rig.held("runs", "main").await?;
    rig.plugin.kill();
    rig.stop_kubelet().await?;
    rig.start_kubelet().await?;
    rig.offered(0, 0).await?;
    rig.run("early", &[Part::App("main", 1)]).await?;
    rig.rejected("early", "no healthy devices present").await?;
    rig.phase("runs", "Running").await?;
    same("the ids", rig.held("runs", "main").await?, held.clone())?;
    rig.start_plugin().await?;
    rig.offered(UNITS, UNITS).await?;
    rig.phase("runs", "Running").await?;
    same("the ids", rig.held("runs", "main").await?, held)?;
    same("the number of calls", rig.plugin.calls().len(), calls)
}
