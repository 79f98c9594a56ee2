//! Memory of the extender: with a cluster read, and with what decisions leave behind.

use crate::Args;
use crate::client::Client;
use crate::cluster::{Cluster, Load, request_of};
use crate::load::Measured;

/// Pods that are decided about: as many as the decision log keeps.
const PODS: usize = 1_000;

/// Of these, how many between two changes of all nodes' readings, in the second half of the measurement: as where 5
/// pods are placed a minute, and each node is written every 3 minutes.
const BETWEEN_CHANGES: usize = 16;

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!(
        "| nodes | pods | claims | GPU | when | VmRSS, KiB | VmHWM, KiB |\n|---|---|---|---|---|---|---|"
    );
    for nodes in &args.nodes {
        let cluster = Cluster::new(args, *nodes, Load::Low);
        let extender = Measured::start(&runtime, args, cluster)?;
        print(&extender, &cluster, "the cluster is read")?;
        let mut client = Client::new(extender.server.address)?;
        for (when, changes) in
            [("a thousand pods decided", false), ("another, nodes changing", true)]
        {
            for pod in 0..PODS {
                if changes && pod % BETWEEN_CHANGES == 0 {
                    extender.api.change_nodes(1 + pod / BETWEEN_CHANGES);
                    extender.server.settle()?;
                }
                for verb in ["filter", "prioritize"] {
                    let number = pod + if changes { PODS } else { 0 };
                    client.ask(&request_of(&format!("/load-aware/{verb}"), &cluster, number))?;
                }
            }
            print(&extender, &cluster, when)?;
        }
    }
    Ok(())
}

fn print(extender: &Measured, cluster: &Cluster, when: &str) -> anyhow::Result<()> {
    let Cluster { nodes, bound, claims, gpu, .. } = cluster;
    let [rss, most] = extender.server.memory()?;
    println!("| {nodes} | {bound} | {claims} | {gpu} | {when} | {rss} | {most} |");
    Ok(())
}
