//! Tests of gangs, with kube-scheduler's feature gate on: the pods of a PodGroup are bound together or not at all, and
//! no process has another GPU than its pod.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::kernel::processes;
use serde_json::{Value, json};

use crate::cluster::chart::API_SERVER;
use crate::cluster::kubeadm_upgrade::{MANIFEST as SCHEDULER, scheduler_where};
use crate::env::{NAMESPACE, TestEnv};
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::{EXTENDER, REPLICAS};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    START, all_running, create_all, delete_all, get, gpu_container, gpu_pods, list, name, node,
    on_node, pod, typed, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "gangs_are_bound_together_or_not_at_all_also_while_extenders_are_killed",
    gangs,
)
.takes(180)];

/// It lets deleted PodGroups go.
const CONTROLLERS: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
const GATE: &str = "--feature-gates=GenericWorkload=true";
const API: &str = "/apis/scheduling.k8s.io/v1beta1";
const SERVED: &str = "--runtime-config=scheduling.k8s.io/v1beta1=true";
/// Gangs of three pods that fill both nodes, by units of which three fit on a GPU and a fourth does not.
const FILLING: usize = 8;
const THIRD: u64 = 5;

fn gangs(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    if env.lacks("PodGroups", "v1.37.0")? {
        return Ok(());
    }
    let control_plane = cluster.nodes().first().context("no node")?;
    let host = cluster.nodes().get(1).context("not two nodes")?;
    let manifests =
        [(API_SERVER, &[GATE, SERVED][..]), (CONTROLLERS, &[GATE]), (SCHEDULER, &[GATE])];
    let mut texts = Vec::new();
    for (manifest, flags) in manifests {
        let path = control_plane.path(manifest);
        let text = fs::read_to_string(&path)?;
        texts.push((path, with_flags(&text, flags)?, text));
    }
    let tried = texts
        .iter()
        .try_for_each(|(path, with_gate, _)| Ok(fs::write(path, with_gate)?))
        .and_then(|()| gate_is(env, true))
        .and_then(|()| too_large_for_gpus(env, host).context("a gang that GPUs have no room for"))
        .and_then(|()| while_killed(env).context("while extenders are killed"));
    let emptied = env.delete_all_pods().and_then(|()| {
        let words = ["-n", NAMESPACE, "delete", "podgroups.scheduling.k8s.io", "--all"];
        cluster.kubectl_run(&words).map(drop)
    });
    let restored: Vec<_> = texts.iter().map(|(path, _, before)| fs::write(path, before)).collect();
    let without = restored.into_iter().collect::<Result<(), _>>().map_err(Into::into);
    let without = without.and_then(|()| gate_is(env, false));
    tried.and(emptied).and(without)
}

/// The manifest of a static pod with more flags of its program.
fn with_flags(manifest: &str, flags: &[&str]) -> Result<String> {
    let mut written = String::new();
    for text in manifest.split_inclusive('\n') {
        written += text;
        if text.starts_with("    - kube-") {
            flags.iter().for_each(|flag| written += &format!("    - {flag}\n"));
        }
    }
    ensure!(written != manifest, "the manifest is of another form:\n{manifest}");
    Ok(written)
}

/// Waits until API server and kube-scheduler run with the gate, or without.
fn gate_is(env: &TestEnv, on: bool) -> Result<()> {
    wait_for(&format!("PodGroups to be served: {on}"), START, || {
        let served = env.cluster()?.kubectl_run(&["api-versions"])?;
        Ok((served.contains("scheduling.k8s.io/v1beta1") == on).then_some(()))
    })?;
    let has_gate = |words: &str| words.split(' ').any(|word| word == GATE) == on;
    scheduler_where(env, &format!("kube-scheduler with the gate: {on}"), has_gate).map(drop)
}

/// Three pods of half a GPU each, while the node has units for them, and one GPU that is free.
fn too_large_for_gpus(env: &TestEnv, host: &Node) -> Result<()> {
    let others = gpu_pods("other", 4, 9).into_iter().map(|it| on_node(host, it));
    create_all(env, others.collect())?;
    all_running(env, START)?;
    delete_all(env, ["other-0"])?;
    wait_for("other-0 to be gone", START, || Ok((list(env)?.len() == 3).then_some(())))?;
    create_gang(env, "halves", 3, |member| {
        on_node(host, pod(&member, &[gpu_container("main", 8)]))
    })?;
    let mut told = Vec::new();
    for member in 0..3 {
        told.push(unschedulable(env, &format!("halves-{member}"), START)?);
    }
    ensure!(told.iter().any(|it| it.contains("GPU")), "no pod is told why: {told:?}");
    for member in 0..3 {
        let member = get(env, &format!("halves-{member}"))?;
        ensure!(node(&member).is_none(), "{} is bound", name(&member));
    }
    delete_all(env, ["other-1"])?;
    wait_for("other-1 to be gone", START, || Ok((list(env)?.len() == 5).then_some(())))?;
    all_running(env, START)?;
    audit_exactly(env, 5)?;
    env.delete_all_pods()
}

/// Both nodes are filled by gangs to the last place, and both extenders are killed twice meanwhile.
fn while_killed(env: &TestEnv) -> Result<()> {
    let mut killed = Vec::new();
    for gang in 0..FILLING {
        let share = |member: String| pod(&member, &[gpu_container("main", THIRD)]);
        create_gang(env, &format!("gang-{gang}"), 3, share)?;
        if gang % 4 == 1 {
            killed = wait_for("extenders to kill", START, || {
                let now = env.programs(EXTENDER)?;
                let are_new = now.len() == REPLICAS && !now.iter().any(|it| killed.contains(it));
                Ok(are_new.then_some(now))
            })?;
            processes::kill_all(&killed)?;
        }
    }
    let pods = all_running(env, START)?.len();
    ensure!(pods == 3 * FILLING, "{pods} pods run");
    audit_exactly(env, 3 * FILLING)
}

/// Creates a PodGroup and its pods, `NAME-0` and so on, which start together.
fn create_gang(
    env: &TestEnv,
    gang: &str,
    pods: usize,
    member: impl Fn(String) -> Value,
) -> Result<()> {
    let administrator = Caller::administrator(env)?;
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": gang},
        "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
    });
    let groups = format!("{API}/namespaces/{NAMESPACE}/podgroups");
    administrator.done(env, Verb::Create, &groups, &group)?;
    for number in 0..pods {
        // The typed Pod has no such field yet.
        let mut member = typed(member(format!("{gang}-{number}")));
        member["spec"]["schedulingGroup"] = json!({"podGroupName": gang});
        let created = administrator.done(
            env,
            Verb::Create,
            &format!("/api/v1/namespaces/{NAMESPACE}/pods"),
            &member,
        )?;
        ensure!(created["spec"]["schedulingGroup"].is_object(), "the API server knows no groups");
    }
    Ok(())
}
