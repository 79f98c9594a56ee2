//! What pods of 1.5 MB that wait cost others: each try of one, and how many small GPU pods kube-scheduler can try a
//! second beside 200 of them. kube-scheduler tries one pod at a time, and a pod that waits again after 10 seconds at
//! the soonest (`podMaxBackoffSeconds`), so 200 of them take 20 tries a second. What kube-scheduler itself spends on a
//! try, such as writing the pod as JSON, comes on top.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Args;
use crate::client::{Client, request};
use crate::cluster::{Cluster, Load, name, requests_of_try};
use crate::load::Measured;

/// Large pods that wait, and the shortest time between two tries of one.
const WAITING: u32 = 200;
const BACK_OFF: Duration = Duration::from_secs(10);

/// For how long small pods are tried, alone and beside the others.
const LASTS: Duration = Duration::from_secs(10);

/// The ways in which a pod is large, by the number of [`sim::memory::large_pod`]. One of 8 MiB as JSON is not taken.
const WAYS: [(usize, &str); 4] = [
    (0, "many arguments"),
    (1, "many annotations"),
    (2, "a long variable"),
    (4, "a long argument"),
];

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!(
        "| nodes | pod | bytes | load's Filter, ms | GPUs' Filter, ms | both, CPU, ms |\n|---|---|---|---|---|---|"
    );
    for nodes in &args.nodes {
        let cluster = Cluster { gpu: true, ..Cluster::new(args, *nodes, Load::Low) };
        let extender = Measured::start(&runtime, args, cluster)?;
        let mut client = Client::new(extender.server.address)?;
        let small: Vec<_> = (0..64).map(|number| requests_of_try(&cluster, number)).collect();
        let large: Vec<_> = WAYS.iter().map(|(way, _)| requests_of_large(&cluster, *way)).collect();
        for ((_, way), requests) in WAYS.iter().zip(&large) {
            let bytes = requests[0].len();
            let before = extender.server.cpu()?;
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..args.rounds {
                for (times, request) in times.iter_mut().zip(requests) {
                    let began = Instant::now();
                    client.ask(request)?;
                    times.push(began.elapsed());
                }
            }
            let cpu = (extender.server.cpu()? - before) / args.rounds as f64 / 1e3;
            let [load, gpus] = times.map(|times| median(times).as_secs_f64() * 1e3);
            println!("| {nodes} | {way} | {bytes} | {load:.2} | {gpus:.2} | {cpu:.2} |");
        }
        let alone = small_a_second(&mut client, &small, &large, 0)?;
        let beside = small_a_second(&mut client, &small, &large, WAITING)?;
        println!(
            "\n{nodes} nodes: {alone:.0} small pods a second alone, {beside:.0} beside {WAITING} large ones\n"
        );
    }
    Ok(())
}

/// Tries small pods one after another, and large ones when they are due. How many small ones a second.
fn small_a_second(
    client: &mut Client,
    small: &[Vec<Vec<u8>>],
    large: &[Vec<Vec<u8>>],
    waiting: u32,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let (mut small, mut large) = (small.iter().cycle(), large.iter().cycle());
    let (mut tries, mut of_large) = (0, 0);
    while began.elapsed() < LASTS {
        let is_due = BACK_OFF * of_large < began.elapsed() * waiting;
        let next = if is_due { large.next() } else { small.next() };
        for request in next.into_iter().flatten() {
            // As kube-scheduler, which asks no further entry then.
            if client.ask(request)?.starts_with(br#"{"NodeNames":[],"#) {
                break;
            }
        }
        *(if is_due { &mut of_large } else { &mut tries }) += 1;
    }
    Ok(f64::from(tries) / began.elapsed().as_secs_f64())
}

/// What kube-scheduler asks about a pod that no GPU is for: the entries' Filters.
fn requests_of_large(cluster: &Cluster, way: usize) -> Vec<Vec<u8>> {
    let mut pod = Value::from(sim::memory::large_pod(way));
    pod["metadata"]["uid"] = json!(format!("large-{way}"));
    pod["metadata"]["annotations"]["plimsoll.dev/gpu-model"] = "none".into();
    pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "1".into();
    let names: Vec<String> = (0..cluster.nodes).map(name).collect();
    let body = format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{}}}\n", json!(names));
    ["/load-aware/filter", "/gpushare-scheduler/filter"]
        .map(|path| request(path, body.as_bytes()))
        .into()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
