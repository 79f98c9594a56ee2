//! Asks both in turns.

use std::fs;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::Args;
use crate::api::Api;
use crate::client::Client;
use crate::cluster::{CALLS, Cluster, Load, Order, requests};
use crate::process::Server;
use crate::report::{Figures, Row, print, write_json};

/// What kube-scheduler asks about each pod, and what about GPU pods too.
const VERBS: [&str; 3] =
    ["load-aware/filter", "load-aware/prioritize", "gpushare-scheduler/filter"];

/// The policy of `deploy/`, which most clusters have.
const POLICY: &str = include_str!("../../../deploy/chart/policies/shipped.yaml");

/// The extender, with a cluster that it has read.
pub(super) struct Measured {
    pub(super) server: Server,
    pub(super) api: Api,
    _files: TempDir,
}

impl Measured {
    pub(super) fn start(runtime: &Runtime, args: &Args, cluster: Cluster) -> anyhow::Result<Self> {
        let api = runtime.block_on(Api::start(cluster))?;
        let files = tempfile::tempdir()?;
        let kubeconfig = files.path().join("kubeconfig");
        let policy = files.path().join("policy");
        api.write_kubeconfig(&kubeconfig)?;
        fs::write(&policy, POLICY)?;
        let server = Server::extender(args, &kubeconfig, &policy)?;
        // What reading the cluster took is given back, or not.
        server.settle()?;
        Ok(Self { server, api, _files: files })
    }
}

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for nodes in &args.nodes {
        let clusters: &[Load] = if args.all { &[Load::Low, Load::ThirdOver] } else { &[Load::Low] };
        for load in clusters {
            let cluster = Cluster::new(args, *nodes, *load);
            let extender = Measured::start(&runtime, args, cluster)?;
            let rejects = args.echo_rejects && *load == Load::ThirdOver;
            let servers = [&extender.server, &Server::echo(rejects)?];
            let orders: &[Order] = if args.all {
                &[Order::Workers, Order::Same, Order::Random]
            } else {
                &[Order::Workers]
            };
            for order in orders {
                rows.extend(compare(servers, &cluster, *order, args.rounds)?);
            }
        }
    }
    print(&rows);
    match &args.json {
        Some(file) => write_json(&rows, file),
        None => Ok(()),
    }
}

fn compare(
    servers: [&Server; 2],
    cluster: &Cluster,
    order: Order,
    rounds: usize,
) -> anyhow::Result<Vec<Row>> {
    let mut clients = [Client::new(servers[0].address)?, Client::new(servers[1].address)?];
    let verbs = if cluster.gpu { &VERBS[..] } else { &VERBS[..2] };
    let requests: Vec<_> =
        verbs.iter().map(|verb| requests(&format!("/{verb}"), cluster, order)).collect();
    let mut figures: Vec<_> =
        verbs.iter().map(|_| [Figures::default(), Figures::default()]).collect();
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
    let Cluster { nodes, load, .. } = *cluster;
    let rows = verbs.iter().zip(figures);
    Ok(rows.map(|(verb, [ours, echo])| Row { verb, nodes, load, order, ours, echo }).collect())
}

/// The time of each call, and the CPU that the server used for all of them, in microseconds.
pub(super) fn ask_all(
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
