//! Owns requests to the extender: calls of its verbs with kube-scheduler's certificate, what it tells of its decisions,
//! the operators' command on it, and its counters.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::build::programs;
use e2e::command::{command, run, wait_for};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::certificates;
use crate::support::http::{self, Response};

/// The program.
pub(crate) const EXTENDER: &str = "scheduler-extender";
/// Its replicas in the shipped manifests.
pub(crate) const REPLICAS: usize = 2;
/// The port of kube-scheduler's calls in the shipped manifests.
const PORT: u16 = 19100;
/// The port of what only tells.
const INSPECT_PORT: u16 = 19107;
/// The counter of bindings, by their outcome.
const EXTENDER_BINDS: &str = "plimsoll_extender_binds_total";
/// The admin port.
const ADMIN_PORT: u16 = 19102;

/// Calls a verb with kube-scheduler's certificate, such as `gpushare-scheduler/bind`.
pub(crate) fn call(env: &TestEnv, verb: &str, body: &Value) -> Result<Response> {
    let tls = certificates::of_kube_scheduler(env)?;
    let address = address(env, PORT)?;
    http::send_over(&tls, address, &format!("/{verb}"), Some(&body.to_string()))
}

/// Where each replica answers kube-scheduler, and whether it leads.
pub(crate) fn replicas(env: &TestEnv) -> Result<Vec<(SocketAddr, bool)>> {
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    env.program_pods(EXTENDER)?
        .into_iter()
        .map(|pod| {
            let name = pod.metadata.name.unwrap_or_default();
            let ip = pod.status.and_then(|status| status.pod_ip);
            let ip = ip.with_context(|| format!("{name} has no address"))?;
            let leads = pages.get(&name).and_then(|page| value(page, "plimsoll_extender_leader "));
            Ok((SocketAddr::new(ip.parse()?, PORT), leads == Some(1)))
        })
        .collect()
}

/// Within this the replicas know the same of a node. What one keeps for pods that are gone ends after 10 seconds.
const AGREEMENT: Duration = Duration::from_secs(120);

/// The units in use on each GPU of a node, by the inspect API of all replicas: each tells what it has seen itself, so
/// this waits until they agree.
pub(crate) fn used_units(env: &TestEnv, node: &str) -> Result<Vec<u64>> {
    of_each_gpu(env, node, "usedGPU")
}

/// The units of each GPU of a node, by the inspect API of all replicas, as [`used_units`].
pub(crate) fn gpu_units(env: &TestEnv, node: &str) -> Result<Vec<u64>> {
    of_each_gpu(env, node, "totalGPU")
}

fn of_each_gpu(env: &TestEnv, node: &str, field: &str) -> Result<Vec<u64>> {
    wait_for(&format!("the extenders to know the same of {node}"), AGREEMENT, || {
        let replicas = inspected_by_each(env, node)?.into_iter();
        let told: Vec<Vec<u64>> = replicas
            .map(|gpus| -> Vec<u64> { gpus.iter().filter_map(|gpu| gpu[field].as_u64()).collect() })
            .collect();
        let first = told.first().cloned().context("no extender runs")?;
        ensure!(told.iter().all(|other| *other == first), "the replicas differ: {told:?}");
        Ok(Some(first))
    })
}

/// What each replica tells of each GPU of a node by the inspect API.
pub(crate) fn inspected_by_each(env: &TestEnv, node: &str) -> Result<Vec<Vec<Value>>> {
    let path = format!("/gpushare-scheduler/inspect/{node}");
    addresses(env, INSPECT_PORT)?
        .into_iter()
        .map(|at| {
            let response = http::send(at, &path, None)?;
            ensure!(response.is_ok(), "inspect answers {}", response.status);
            let inspected: Value = serde_json::from_str(&response.body)?;
            let gpus = inspected["nodes"][0]["devs"].as_array().cloned();
            gpus.with_context(|| format!("{node} has no GPUs: {inspected}"))
        })
        .collect()
}

/// What `POST /explain` answers of a pod of the tests: by what it was decided, or, if `fresh`, what would be decided
/// now.
pub(crate) fn explain(env: &TestEnv, pod: &str, fresh: bool) -> Result<Value> {
    explain_in(env, NAMESPACE, pod, fresh)
}

/// As [`explain`], of a pod of any namespace.
pub(crate) fn explain_in(env: &TestEnv, namespace: &str, pod: &str, fresh: bool) -> Result<Value> {
    let question = json!({"namespace": namespace, "name": pod, "fresh": fresh}).to_string();
    json_of(&http::send(address(env, INSPECT_PORT)?, "/explain", Some(&question))?)
}

/// What each replica answers of a pod of the tests that was decided about.
pub(crate) fn explained_by_each(env: &TestEnv, pod: &str) -> Result<Vec<Value>> {
    explained_by_each_in(env, NAMESPACE, pod, false)
}

/// As [`explain_in`], of each replica.
pub(crate) fn explained_by_each_in(
    env: &TestEnv,
    namespace: &str,
    pod: &str,
    fresh: bool,
) -> Result<Vec<Value>> {
    let question = json!({"namespace": namespace, "name": pod, "fresh": fresh}).to_string();
    let replicas = addresses(env, INSPECT_PORT)?.into_iter();
    replicas.map(|at| json_of(&http::send(at, "/explain", Some(&question))?)).collect()
}

fn json_of(response: &Response) -> Result<Value> {
    ensure!(response.is_ok(), "{}: {}", response.status, response.body);
    serde_json::from_str(&response.body).with_context(|| response.body.clone())
}

/// What `plimsoll`, the operators' command, prints with these arguments and the extender's address.
pub(crate) fn plimsoll(env: &TestEnv, words: &[&str]) -> Result<String> {
    let program = programs::operators_command(env.cluster()?.settings())?;
    let url = format!("http://{}", address(env, INSPECT_PORT)?);
    run(command(program).args(words).args(["--extender", &url]))
}

/// The sum of all replicas' counters whose line begins so, such as `NAME_total{verb="a"`.
pub(crate) fn counted(env: &TestEnv, prefix: &str) -> Result<u64> {
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    Ok(pages.values().filter_map(|page| value(page, prefix)).sum())
}

/// The bindings that did not succeed at once, by all replicas' counters. All outcomes are read at one time.
pub(crate) fn failed_binds(env: &TestEnv) -> Result<u64> {
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    let prefix = format!("{EXTENDER_BINDS}{{");
    let lines = pages.values().flat_map(|page| page.lines());
    let failed =
        lines.filter(|line| line.starts_with(&prefix) && !line.contains("outcome=\"bound\""));
    Ok(failed.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// How often kube-scheduler has called a verb, such as `load-aware/filter`: the replica that passes a call on counts
/// none.
pub(crate) fn calls(env: &TestEnv, verb: &str) -> Result<u64> {
    counted(env, &format!("plimsoll_extender_requests_total{{verb=\"{verb}\""))
}

/// The number of nodes that all replicas of the extender know; `None` while they differ.
pub(crate) fn known_nodes(env: &TestEnv) -> Result<Option<usize>> {
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    let nodes = pages.values().map(|page| value(page, "plimsoll_extender_nodes "));
    let nodes: BTreeSet<_> = nodes.collect();
    let [Some(all)] = nodes.into_iter().collect::<Vec<_>>()[..] else { return Ok(None) };
    Ok(usize::try_from(all).ok())
}

/// The sum of the values of the lines that begin so; `None` where there is none.
fn value(page: &str, prefix: &str) -> Option<u64> {
    let lines = page.lines().filter(|line| line.starts_with(prefix));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).reduce(|a, b| a + b)
}

/// Where the replica answers kube-scheduler that gives out GPUs.
pub(crate) fn leaders_address(env: &TestEnv) -> Result<SocketAddr> {
    let leader = replicas(env)?.into_iter().find(|(_, leads)| *leads);
    leader.map(|(address, _)| address).context("no extender leads")
}

/// Where a replica answers at this port.
fn address(env: &TestEnv, port: u16) -> Result<SocketAddr> {
    addresses(env, port)?.into_iter().next().context("no extender runs")
}

/// Where each replica answers at this port.
fn addresses(env: &TestEnv, port: u16) -> Result<Vec<SocketAddr>> {
    let pods = env.program_pods(EXTENDER)?;
    let ips = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.as_deref());
    ips.map(|ip| Ok(SocketAddr::new(ip.parse()?, port))).collect()
}
