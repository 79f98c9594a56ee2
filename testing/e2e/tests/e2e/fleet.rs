//! Facts about choosing among many nodes, with the real kube-scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::audit::claim;
use crate::phantoms::{self, Phantom, only_here, reading};
use crate::pods::{GPU, all_bound, create, create_all, gpu_container, idle_container, node, pod};
use crate::world::World;
use crate::{Fact, anywhere};

pub(crate) const FACTS: &[Fact] = &[
    anywhere("the_one_node_of_three_hundred_with_a_large_enough_card_is_found", one_card_fits),
    anywhere("the_one_node_of_three_hundred_below_the_limit_is_found", one_load_fits),
    anywhere("fifty_pods_at_once_do_not_herd_onto_the_coldest_of_fifty_nodes", no_herd),
];

const MANY: usize = 300;
/// Neither first nor last in any order.
const FITTING: usize = 217;
const BINDING: Duration = Duration::from_secs(30);
/// A load above the shipped policy's limits.
const TOO_HOT: f64 = 0.9;
/// Pods on one node that are no herd yet; without any regard for pods that are not bound yet it is half of all.
const HERD: usize = 8;

/// Every node offers eight units, but only one has them on a single card.
fn one_card_fits(world: &World) -> Result<()> {
    let phantoms: Vec<Phantom> = (0..MANY).map(gpu_phantom).collect();
    phantoms::with(world, &phantoms, || {
        create(world, only_here(pod("large", &[gpu_container("main", 6)])))?;
        let pods = all_bound(world, BINDING)?;
        let large = pods.first().context("the pod is gone")?;
        ensure!(node(large) == Some(&name(FITTING)), "it went to {:?}", node(large));
        let claimed = claim(large)?;
        ensure!(claimed["main"].keys().eq([&uuid(FITTING, 0)]), "it claims {claimed:?}");
        Ok(())
    })
}

fn gpu_phantom(n: usize) -> Phantom {
    let sizes: &[u64] = if n == FITTING { &[8] } else { &[4, 4] };
    let card = |(index, units): (usize, &u64)| {
        json!({
            "uuid": uuid(n, index), "index": index, "model": "NVIDIA A10", "memoryMiB": units * 1024, "units": units,
            "numaNode": 0, "healthy": true, "pods": {},
        })
    };
    let cards: Vec<_> = sizes.iter().enumerate().map(card).collect();
    Phantom {
        name: name(n),
        annotations: json!({"plimsoll.dev/gpu-cards": json!(cards).to_string()}),
        offers: json!({GPU: "8", "aliyun.com/gpu-count": sizes.len().to_string()}),
    }
}

fn one_load_fits(world: &World) -> Result<()> {
    let load = |n| if n == FITTING { 0.6 } else { TOO_HOT };
    let phantoms: Vec<Phantom> = (0..MANY).map(|n| loaded(n, load(n))).collect();
    phantoms::with(world, &phantoms, || {
        create_all(world, plain_pods(5))?;
        for pod in all_bound(world, BINDING)? {
            ensure!(node(&pod) == Some(&name(FITTING)), "a pod went to {:?}", node(&pod));
        }
        Ok(())
    })
}

fn no_herd(world: &World) -> Result<()> {
    let load = |n| if n == 0 { 0.02 } else { 0.2 + n as f64 / 500.0 };
    let phantoms: Vec<Phantom> = (0..50).map(|n| loaded(n, load(n))).collect();
    phantoms::with(world, &phantoms, || {
        create_all(world, plain_pods(50))?;
        let pods = all_bound(world, BINDING)?;
        let mut by_node = BTreeMap::<&str, usize>::new();
        pods.iter().filter_map(node).for_each(|node| *by_node.entry(node).or_default() += 1);
        let coldest = by_node.get(name(0).as_str()).copied().unwrap_or(0);
        world.figure(
            "fifty_pods_on_fifty_nodes",
            format!("{coldest} on the coldest, {} used", by_node.len()),
        );
        ensure!(coldest >= 1, "the coldest node got nothing: {by_node:?}");
        ensure!(by_node.values().all(|pods| *pods <= HERD), "{by_node:?}");
        Ok(())
    })
}

/// A node whose every reading of the shipped policy is this.
fn loaded(n: usize, load: f64) -> Phantom {
    let metric = |resource, window| (format!("{resource}_usage_{window}"), json!(reading(load)));
    let windows = ["avg_5m", "max_avg_1h", "max_avg_1d"];
    let readings =
        ["cpu", "mem"].iter().flat_map(|resource| windows.map(|window| metric(resource, window)));
    Phantom {
        name: name(n),
        annotations: serde_json::Value::Object(readings.collect()),
        offers: json!({}),
    }
}

fn plain_pods(count: usize) -> Vec<serde_json::Value> {
    let plain = |n| only_here(pod(&format!("plain-{n}"), &[idle_container("main")]));
    (0..count).map(plain).collect()
}

fn name(n: usize) -> String {
    format!("phantom-{n:03}")
}

fn uuid(node: usize, card: usize) -> String {
    format!("GPU-{node:06x}{card:02x}-5afe-4000-8000-000000000000")
}
