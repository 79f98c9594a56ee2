//! The program under its shipped memory limit, on a node with pods as large as the API server takes.

use sim::memory::{Measured, large_pod, memory_limit};
use sim::{PODS, Sim};

use crate::rig::{A, NODE, Rig};

/// 28 MB as JSON.
const COUNT: usize = 12;

/// The number of lists of pods that the API server has answered.
fn lists(sim: &Sim) -> usize {
    sim.log().of(sim::Verb::List, PODS).len()
}

async fn stays_within_its_limit(streamed: bool) {
    let mut rig = Rig::unregistered(&[(A, 4)]).await;
    rig.stop_plugin().await;
    if !streamed {
        rig.sim.refuse_streamed_lists();
    }
    (0..COUNT).for_each(|number| drop(rig.sim.put(large_pod(number).on(NODE))));
    let flags = rig.flags_of_process();
    let program = env!("CARGO_BIN_EXE_gpushare-device-plugin");
    let mut plugin = Measured::start(program, &flags).unwrap();
    plugin.ready().await.unwrap();
    let before = lists(&rig.sim);
    rig.sim.faults().expire_watches();
    rig.sim.until("another list", |sim| (lists(sim) > before).then_some(())).await.unwrap();
    let limit = memory_limit("gpushare-device-plugin");
    // As after a kill: all over again, with the second list under way.
    let peak = plugin.peak().unwrap();
    drop(plugin);
    let mut plugin = Measured::start(program, &flags).unwrap();
    plugin.ready().await.unwrap();
    let peak = peak.max(plugin.peak().unwrap());
    assert!(peak < limit.unwrap(), "{} MiB", peak >> 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_the_memory_limit_where_lists_are_streamed() {
    stays_within_its_limit(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_the_memory_limit_where_lists_come_in_pages() {
    stays_within_its_limit(false).await;
}
