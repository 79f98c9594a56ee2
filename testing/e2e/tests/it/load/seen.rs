//! Owns waits until those that decide have seen what a test wrote: each of them reads a watch by itself, and may be
//! behind.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::{REPLICAS, replicas};
use crate::support::http;
use crate::support::pods::{START, create, delete_all, idle_container, pod, unschedulable};

/// The extender's port of what only tells, in the shipped manifests.
const INSPECT_PORT: u16 = 19107;
/// A pod that no node suits.
const NOWHERE: &str = "fits-nowhere";
/// How far a reading may be from the load that a node shows.
const NEAR: f64 = 0.05;

/// Whether a reading shows this load.
pub(super) fn is_near(reading: f64, load: f64) -> bool {
    (reading - load).abs() < NEAR
}

/// Waits until kube-scheduler knows as many nodes as there are: it says so of a pod that none suits. The extender is
/// not asked about that pod. Before, kube-scheduler chooses among the nodes that it knows.
pub(super) fn by_kube_scheduler(env: &TestEnv) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    let all = env.block_on(nodes.list_metadata(&ListParams::default()))?.items.len();
    let begin = format!("0/{all} nodes are available");
    wait_for("kube-scheduler to know every node", START, || {
        create(env, nowhere())?;
        let message = unschedulable(env, NOWHERE, START);
        // A pod without a node is gone at once.
        delete_all(env, [NOWHERE])?;
        let message = message?;
        ensure!(message.starts_with(&begin), "{message}, and not {begin}");
        Ok(Some(()))
    })
}

fn nowhere() -> Value {
    let mut pod = pod(NOWHERE, &[idle_container("main")]);
    pod["spec"]["nodeSelector"] = json!({"plimsoll-e2e/no-such-node": "true"});
    pod
}

/// Waits until each replica of the extender has these readings of a metric of the policy in force: kube-scheduler may
/// ask any.
pub(super) fn by_extender(env: &TestEnv, metric: &str, loads: &[(&Node, f64)]) -> Result<()> {
    wait_for(&format!("each extender to know {metric}"), START, || {
        let replicas = replicas(env)?;
        ensure!(replicas.len() == REPLICAS, "{} replicas", replicas.len());
        for (mut address, _) in replicas {
            address.set_port(INSPECT_PORT);
            let known = known(address, metric)?;
            ensure!(
                loads.iter().all(|(node, load): &(&Node, f64)| {
                    known.get(node.name()).is_some_and(|it| is_near(*it, *load))
                }),
                "{address} knows {known:?}"
            );
        }
        Ok(Some(()))
    })
}

/// The reading of each node by which a replica decides.
fn known(address: SocketAddr, metric: &str) -> Result<BTreeMap<String, f64>> {
    let response = http::send(address, &format!("/api/v1/query?query={metric}"), None)?;
    ensure!(response.is_ok(), "{}: {}", response.status, response.body);
    let answer: Value = serde_json::from_str(&response.body)?;
    let samples = answer["data"]["result"].as_array().with_context(|| answer.to_string())?;
    samples
        .iter()
        .map(|sample| {
            let node = sample["metric"]["instance"].as_str().context("no node")?;
            let value = sample["value"][1].as_str().context("no value")?;
            Ok((node.to_owned(), value.parse()?))
        })
        .collect()
}
