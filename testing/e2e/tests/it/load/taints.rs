//! Tests of the taint of hot nodes, and of the replica that takes over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::command::{run, wait_for};
use e2e::kernel::processes::{self, Pid, Signal};
use e2e::{Load, Node};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node as NodeObject, Taint};
use kube::api::{Api, PostParams};

use super::limits::{daemon_set_reaches, everywhere, set, with_short_periods};
use crate::env::{NAMESPACE, TestEnv};
use crate::support::pods::{START, node, processes_of};
use crate::support::policy;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "a_hot_node_carries_a_taint_that_autoscalers_ignore_daemon_sets_tolerate_by_the_sample_and_plimsoll_clears",
        hot_node,
    ).takes(145),
    on_our_nodes("the_taint_of_a_node_whose_exporter_falls_silent_is_cleared", silent_exporter).takes(235),
    on_our_nodes("a_killed_leaders_taint_is_cleared_by_the_replica_that_takes_over", failover).takes(150),
    on_our_nodes("a_leader_that_is_stopped_leads_no_more_when_it_wakes", stopped_leader).takes(14),
];

/// Cluster Autoscaler's prefix of taints that say nothing of new nodes.
const PREFIX: &str = "status-taint.cluster-autoscaler.kubernetes.io/";
const VALUE: &str = "plimsoll-hot";
const DEPLOYMENT: &str = "deployment/annotator";
const LEADS: &str = "plimsoll_annotator_leader 1";
const ADMIN_PORT: u16 = 19103;
/// As shipped.
const REPLICAS: usize = 2;
/// The Lease lasts 15 s, and is looked at every 3.
const TAKEOVER: Duration = Duration::from_secs(120);
/// A node is hot for a minute before it carries the taint.
const TAINTED: Duration = Duration::from_secs(240);
const COOL: Load = Load { cpu: 0.3, memory: 0.2 };

/// Readings count for 10 s.
const SHORT_LIVED: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_active, period: 2s, maxAge: 10s, limit: 0.65, weight: 1}
";

/// The last: where no annotator runs.
fn hot_node(env: &TestEnv) -> Result<()> {
    with_taints(env, |first, second| {
        heat(env, first, second)?;
        let taint = ours(env, second)?.pop().context("no taint")?;
        ensure!(taint.key.starts_with(PREFIX) && taint.effect == "NoSchedule", "{taint:?}");
        ensure!(ours(env, first)?.is_empty(), "the cool node carries a taint");
        with_sample(env, || daemon_set_reaches(env, second))?;
        env.scale("annotator", 0)?;
        second.set_load(COOL)?;
        let cleared = clear(env);
        let left = ours(env, second);
        env.scale("annotator", REPLICAS)?;
        let printed = cleared?;
        ensure!(printed.contains(&format!("{} cleared", second.name())), "{printed}");
        ensure!(left?.is_empty(), "the taint is still there");
        Ok(())
    })
}

/// Runs `work` with the sample in force, by which DaemonSets tolerate the taint.
fn with_sample(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = env.cluster()?;
    let sample = cluster.settings().sources.join("deploy/samples/tolerate-hot-nodes.yaml");
    let sample = sample.to_string_lossy();
    cluster.kubectl_run(&["apply", "-f", &sample])?;
    let done = in_force(env).and_then(|()| work());
    let removed = cluster.kubectl_run(&["delete", "-f", &sample]);
    done?;
    removed.map(drop)
}

/// Waits until the API server gives a DaemonSet its toleration.
fn in_force(env: &TestEnv) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(env.client(), NAMESPACE);
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    wait_for("the sample to be in force", START, || {
        let set = env.block_on(sets.create(&only_tried, &everywhere()?))?;
        let spec = set.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
        let mut tolerations = spec.tolerations.into_iter().flatten();
        let ours =
            tolerations.find(|it| it.key.as_deref().is_some_and(|key| key.starts_with(PREFIX)));
        Ok(ours.map(drop))
    })
}

/// Clears all taints with the operators' command, as after Plimsoll was removed.
fn clear(env: &TestEnv) -> Result<String> {
    run(&mut env.operators_command(&["taints", "--clear"])?)
}

/// A killed exporter is back at once, so that it is stopped first.
fn silent_exporter(env: &TestEnv) -> Result<()> {
    with_taints(env, |first, second| {
        policy::with(env, SHORT_LIVED, || {
            heat(env, first, second)?;
            let exporter = exporter_of(env, second)?;
            processes::signal_all(&exporter, Signal::STOP)?;
            let cleared = becomes(env, second, 0);
            processes::kill_all(&exporter)?;
            cleared?;
            becomes(env, second, 1)?;
            second.set_load(COOL)?;
            becomes(env, second, 0)
        })
    })
}

fn failover(env: &TestEnv) -> Result<()> {
    with_taints(env, |first, second| {
        heat(env, first, second)?;
        let (before, _, processes) = leader(env)?;
        let killed = Instant::now();
        processes::kill_all(&processes)?;
        second.set_load(COOL)?;
        other_leads(env, &before)?;
        figure(env, "seconds until another annotator leads, the first killed", killed);
        becomes(env, second, 0)?;
        figure(env, "seconds until its taint is cleared", killed);
        Ok(())
    })
}

fn stopped_leader(env: &TestEnv) -> Result<()> {
    let (holder, before, processes) = leader(env)?;
    processes::signal_all(&processes, Signal::STOP)?;
    let taken = other_leads(env, &holder);
    // Where the takeover takes three times as long as it should, the liveness probe has ended the process.
    let left: Vec<Pid> = processes.into_iter().filter(|it| processes::alive(*it)).collect();
    processes::signal_all(&left, Signal::CONT)?;
    let after = taken?;
    let after = pod_of(&after);
    ensure!(after != before, "{after} leads again");
    // Each replica has to answer. The one that wakes may do so a moment before it looks at the time.
    wait_for(&format!("{after} alone to lead"), TAKEOVER, || {
        let leaders = leaders(env)?;
        ensure!(leaders == [after], "{leaders:?} lead");
        Ok(Some(()))
    })
}

/// Makes the second node hot, and waits for its taint.
fn heat(env: &TestEnv, first: &Node, second: &Node) -> Result<()> {
    set(env, &[(second, 0.9), (first, 0.3)])?;
    becomes(env, second, 1)
}

/// The pods that lead.
fn leaders(env: &TestEnv) -> Result<Vec<String>> {
    let pages = env.metrics_of_each("annotator", ADMIN_PORT)?;
    let leading = pages.into_iter().filter(|(_, page)| page.lines().any(|line| line == LEADS));
    Ok(leading.map(|(name, _)| name).collect())
}

/// Who leads, by the Lease and by the replicas themselves: as [`holder`] names it, its pod, and its processes.
fn leader(env: &TestEnv) -> Result<(String, String, Vec<Pid>)> {
    wait_for("one replica to lead", TAKEOVER, || {
        let holder = holder(env)?;
        let leaders = leaders(env)?;
        ensure!(leaders == [pod_of(&holder)], "{holder} has the Lease, {leaders:?} lead");
        let name = pod_of(&holder).to_owned();
        let pods = env.program_pods("annotator")?;
        let pod = pods
            .iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(name.as_str()))
            .context("the leader has no pod")?;
        let processes = processes_of(pod, "annotator")?;
        ensure!(!processes.is_empty(), "{name} has no process");
        Ok(Some((holder, name, processes)))
    })
}

/// The pod of a holder.
fn pod_of(holder: &str) -> &str {
    holder.split('_').next().unwrap_or_default()
}

/// Who leads by the API, which also tells it where nothing answers: a process, since one that is killed starts again in
/// the same pod.
fn holder(env: &TestEnv) -> Result<String> {
    let lease = ["-n", "plimsoll", "get", "lease", "plimsoll-annotator", "-o"];
    let path = ["jsonpath={.spec.holderIdentity}"];
    Ok(env.cluster()?.kubectl_run(&[&lease[..], &path].concat())?.trim().to_owned())
}

/// Waits until another process leads.
fn other_leads(env: &TestEnv, before: &str) -> Result<String> {
    wait_for("another annotator to lead", TAKEOVER, || {
        let holder = holder(env)?;
        Ok((!holder.is_empty() && holder != before).then_some(holder))
    })
}

fn exporter_of(env: &TestEnv, on: &Node) -> Result<Vec<Pid>> {
    let pods = env.program_pods("node-exporter-plus")?;
    let pod = pods.iter().find(|pod| node(pod) == Some(on.name())).context("no exporter")?;
    processes_of(pod, "node-exporter-plus")
}

fn figure(env: &TestEnv, what: &str, since: Instant) {
    env.figure(what, format!("{:.1}", since.elapsed().as_secs_f64()));
}

/// Waits until the node carries so many taints of ours.
fn becomes(env: &TestEnv, node: &Node, count: usize) -> Result<()> {
    wait_for(&format!("{count} taints on {}", node.name()), TAINTED, || {
        Ok((ours(env, node)?.len() == count).then_some(()))
    })
}

pub(crate) fn ours(env: &TestEnv, node: &Node) -> Result<Vec<Taint>> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    let spec = env.block_on(nodes.get(node.name()))?.spec.unwrap_or_default();
    let taints = spec.taints.unwrap_or_default().into_iter();
    Ok(taints.filter(|taint| taint.value.as_deref() == Some(VALUE)).collect())
}

/// Runs `work` with taints switched on, and checks that switching them off leaves none.
fn with_taints(env: &TestEnv, work: impl FnOnce(&Node, &Node) -> Result<()>) -> Result<()> {
    with_short_periods(env, |first, second| {
        switch(env, &["PLIMSOLL_TAINT_HOT_NODES=NoSchedule"])?;
        let done = work(first, second);
        switch(env, &["PLIMSOLL_TAINT_HOT_NODES-"])?;
        done?;
        becomes(env, first, 0)?;
        becomes(env, second, 0)
    })
}

fn switch(env: &TestEnv, variables: &[&str]) -> Result<()> {
    let set = ["-n", "plimsoll", "set", "env", DEPLOYMENT];
    env.cluster()?.kubectl_run(&[&set[..], variables].concat())?;
    env.rolled_out("annotator")
}
