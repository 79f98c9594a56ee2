//! Asks both in turns.

use std::fs;
use std::time::{Duration, Instant};

use sim::Sim;

use crate::Args;
use crate::client::Client;
use crate::cluster::{CALLS, Load, Order, fill, requests};
use crate::process::Server;
use crate::report::{Figures, Row, print};

const VERBS: [&str; 2] = ["filter", "prioritize"];

/// The policy of `deploy/`, which most clusters have.
const POLICY: &str = include_str!("../../../deploy/base/policy.yaml");

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for nodes in &args.nodes {
        let clusters: &[Load] = if args.all { &[Load::Low, Load::ThirdOver] } else { &[Load::Low] };
        for load in clusters {
            let sim = runtime.block_on(Sim::start())?;
            fill(&sim, *nodes, *load, args.pods);
            let files = tempfile::tempdir()?;
            let (kubeconfig, policy) =
                (files.path().join("kubeconfig"), files.path().join("policy"));
            sim.write_kubeconfig(&kubeconfig)?;
            fs::write(&policy, POLICY)?;
            let servers = [Server::extender(&kubeconfig, &policy)?, Server::echo()?];
            // What reading the cluster took is given back, or not.
            std::thread::sleep(Duration::from_secs(2));
            eprintln!("{nodes} nodes, {} pods: idle, {} KiB", args.pods, servers[0].rss()?);
            let orders: &[Order] = match args.all {
                true => &[Order::Workers, Order::Same, Order::Random],
                false => &[Order::Workers],
            };
            for order in orders {
                rows.extend(compare(&servers, *nodes, *load, *order, args.rounds)?);
            }
            eprintln!("after all calls, {} KiB", servers[0].rss()?);
        }
    }
    print(&rows);
    Ok(())
}

fn compare(
    servers: &[Server; 2],
    nodes: usize,
    load: Load,
    order: Order,
    rounds: usize,
) -> anyhow::Result<Vec<Row>> {
    let mut clients = [Client::new(servers[0].address)?, Client::new(servers[1].address)?];
    let requests = VERBS.map(|verb| requests(&format!("/load-aware/{verb}"), nodes, order));
    let mut figures = VERBS.map(|_| [Figures::default(), Figures::default()]);
    // The first round warms up.
    for round in 0..=rounds {
        for (at, (server, client)) in servers.iter().zip(&mut clients).enumerate() {
            for (verb, requests) in requests.iter().enumerate() {
                let (times, cpu) = ask_all(server, client, requests)?;
                if round > 0 {
                    figures[verb][at].add(times, cpu / CALLS as f64);
                }
            }
        }
    }
    let rows = VERBS.into_iter().zip(figures);
    Ok(rows.map(|(verb, [ours, echo])| Row { verb, nodes, load, order, ours, echo }).collect())
}

/// The time of each call, and the CPU that the server used for all of them, in microseconds.
fn ask_all(
    server: &Server,
    client: &mut Client,
    requests: &[Vec<u8>],
) -> anyhow::Result<(Vec<Duration>, f64)> {
    let before = server.cpu()?;
    let mut times = Vec::with_capacity(requests.len());
    for request in requests {
        let began = Instant::now();
        client.ask(request)?;
        times.push(began.elapsed());
    }
    Ok((times, server.cpu()? - before))
}
