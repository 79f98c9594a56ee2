//! Owns requests to the extender: calls that kube-scheduler did not make, what it tells of its decisions, the operators'
//! command on it, and its counters.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use e2e::build::programs;
use e2e::command::{command, run};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::http::{self, Response};

/// The program.
pub(crate) const EXTENDER: &str = "scheduler-extender";
/// Its replicas in the shipped manifests.
pub(crate) const REPLICAS: usize = 2;
/// The port of kube-scheduler's calls in the shipped manifests.
const PORT: u16 = 19100;
/// The admin port.
const ADMIN_PORT: u16 = 19102;

/// Calls a verb, such as `gpushare-scheduler/bind`.
pub(crate) fn call(env: &TestEnv, verb: &str, body: &Value) -> Result<Response> {
    http::send(address(env)?, &format!("/{verb}"), Some(&body.to_string()))
}

/// The units in use on each card of a node, by the inspect API.
pub(crate) fn used_units(env: &TestEnv, node: &str) -> Result<Vec<u64>> {
    let response = http::send(address(env)?, &format!("/gpushare-scheduler/inspect/{node}"), None)?;
    ensure!(response.is_ok(), "inspect answers {}", response.status);
    let inspected: Value = serde_json::from_str(&response.body)?;
    let cards = inspected["nodes"][0]["devs"].as_array();
    let cards = cards.with_context(|| format!("{node} has no cards: {inspected}"))?;
    Ok(cards.iter().filter_map(|card| card["usedGPU"].as_u64()).collect())
}

/// What `POST /explain` answers of a pod of the tests: by what it was decided, or, if `fresh`, what would be decided now.
pub(crate) fn explain(env: &TestEnv, pod: &str, fresh: bool) -> Result<Value> {
    explain_in(env, NAMESPACE, pod, fresh)
}

/// As [`explain`], of a pod of any namespace.
pub(crate) fn explain_in(env: &TestEnv, namespace: &str, pod: &str, fresh: bool) -> Result<Value> {
    let question = json!({"namespace": namespace, "name": pod, "fresh": fresh});
    json_of(&call(env, "explain", &question)?)
}

/// What `GET /shadow` answers: the pods of the last hour, with what the shadow policy would have decided.
pub(crate) fn shadow(env: &TestEnv) -> Result<Value> {
    json_of(&http::send(address(env)?, "/shadow", None)?)
}

fn json_of(response: &Response) -> Result<Value> {
    ensure!(response.is_ok(), "{}: {}", response.status, response.body);
    serde_json::from_str(&response.body).with_context(|| response.body.clone())
}

/// What `plimsoll`, the operators' command, prints with these arguments and the extender's address.
pub(crate) fn plimsoll(env: &TestEnv, words: &[&str]) -> Result<String> {
    let program = programs::operators_command(env.cluster()?.settings())?;
    let url = format!("http://{}", address(env)?);
    run(command(program).args(words).args(["--extender", &url]))
}

/// The sum of all replicas' counters whose line begins so, such as `NAME_total{verb="a"`.
pub(crate) fn counted(env: &TestEnv, prefix: &str) -> Result<u64> {
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    Ok(pages.values().filter_map(|page| value(page, prefix)).sum())
}

/// How often kube-scheduler has called a verb, such as `load-aware/filter`: the replica that passes a call on counts none.
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

/// Where the replica answers that kube-scheduler asks most, since that one knows what was decided.
fn address(env: &TestEnv) -> Result<SocketAddr> {
    let mut pods = env.program_pods(EXTENDER)?;
    let pages = env.metrics_of_each(EXTENDER, ADMIN_PORT)?;
    pods.sort_by_key(|pod| {
        let page = pod.metadata.name.as_ref().and_then(|name| pages.get(name));
        let verb = "plimsoll_extender_requests_total{verb=\"load-aware/prioritize\"";
        std::cmp::Reverse(page.and_then(|page| value(page, verb)))
    });
    let status = pods.first().and_then(|pod| pod.status.as_ref());
    let address = status.and_then(|status| status.pod_ip.as_deref()).context("no extender runs")?;
    Ok(SocketAddr::new(address.parse()?, PORT))
}
