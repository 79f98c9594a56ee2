//! Tests of what is learned of a workload: control groups, exporter, annotator, extender.
//!
//! The annotator answers nothing about a workload before it has observed it for five minutes. A run of all tests
//! therefore creates the workload at its beginning, in a namespace of its own, and checks it after the tests of GPUs.
//! No test before the check restarts the annotator, since a restart loses what was observed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::{REPLICAS, explain_in, explained_by_each_in};
use crate::support::figures::cores;
use crate::support::pods::{START, name, node, phase, pod};
use crate::support::policy::{self, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] =
    &[on_our_nodes("what_a_workloads_pods_use_is_the_estimate_of_its_next_pod", next_pod)
        .takes(11)];

const NAMESPACE: &str = "plimsoll-e2e-learned";
const DEPLOYMENT: &str = "burner";
/// What each of its pods requests, in cores; without anything learned, 85% of it is the estimate.
const REQUEST: f64 = 0.6;
/// A sixth of a processor, by the shell's own CPU time (fields 14 and 15 of its `stat`, in hundredths of a second): it
/// works while it is behind, and sleeps otherwise. So what it uses does not depend on what else the processors do. It
/// makes up for a second at most.
const SCRIPT: &str = r#"
    start=
    while :; do
        read -r up _ < /proc/uptime
        now=${up%.*}${up#*.}
        read -r stat < /proc/self/stat
        set -- $stat
        used=$((${14} + ${15}))
        : "${start:=$((now - used * 6))}"
        behind=$((now - start - used * 6))
        [ $behind -le 100 ] || start=$((start + behind - 100))
        if [ $behind -gt 0 ]; then i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done; else sleep 0.1; fi
    done
"#;
/// Five minutes of observations, one a minute, and the ways to annotator and extender.
const LEARNING: Duration = Duration::from_secs(720);

/// Starts the workload unless it runs already. The namespace of an earlier run may still be on its way out.
pub(crate) fn start(env: &TestEnv) -> Result<()> {
    wait_for("the workload to be accepted", START, || create(env).map(Some))
}

fn create(env: &TestEnv) -> Result<()> {
    let forced = PatchParams::apply("plimsoll-e2e").force();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let namespaces: Api<Namespace> = Api::all(env.client());
    env.block_on(namespaces.patch(NAMESPACE, &forced, &Patch::Apply(&namespace)))?;
    set_replicas(env, 1)
}

fn set_replicas(env: &TestEnv, replicas: usize) -> Result<()> {
    let labels = json!({"app": DEPLOYMENT});
    let container = json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SCRIPT], "resources": {"requests": {"cpu": REQUEST.to_string()}},
    });
    let mut template = pod("", &[container]);
    template["metadata"] = json!({"labels": labels});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    });
    let forced = PatchParams::apply("plimsoll-e2e").force();
    let deployments: Api<Deployment> = Api::namespaced(env.client(), NAMESPACE);
    env.block_on(deployments.patch(DEPLOYMENT, &forced, &Patch::Apply(&deployment))).map(drop)
}

fn next_pod(env: &TestEnv) -> Result<()> {
    start(env)?;
    let done = policy::with(env, OURS, || {
        let first = running(env, 1)?.pop().context("no pod")?;
        // kube-scheduler may ask any replica, and each reads what is learned by itself.
        wait_for("each replica to know the use of the workload", LEARNING, || {
            let each = explained_by_each_in(env, NAMESPACE, name(&first), true)?;
            Ok((each.len() == REPLICAS
                && each.iter().all(|now| now["estimate"]["cpu"]["source"] == "learned"))
            .then_some(()))
        })?;
        let used = cores(&first, "main")?;
        set_replicas(env, 2)?;
        let pods = running(env, 2)?;
        let next = pods.iter().find(|pod| name(pod) != name(&first)).context("no new pod")?;
        let told = explain_in(env, NAMESPACE, name(next), false)?;
        let decided = told["basis"] == "decision" && told["node"] == node(next).unwrap_or_default();
        ensure!(decided, "{told}");
        is_near(env, &told["estimate"]["cpu"], used)
    });
    let namespaces: Api<Namespace> = Api::all(env.client());
    let removed = env.block_on(namespaces.delete(NAMESPACE, &DeleteParams::default()));
    done?;
    removed.map(drop)
}

fn is_near(env: &TestEnv, estimate: &Value, used: f64) -> Result<()> {
    let amount = estimate["amount"].as_f64().context("no amount")?;
    env.figure("cores_learned_and_used", format!("{amount:.3} and {used:.3} of {REQUEST}"));
    ensure!(estimate["source"] == "learned", "{estimate}");
    ensure!(amount < REQUEST * 0.6, "{amount} cores are what its request says");
    ensure!(amount > used / 1.5 && amount < used * 1.5, "{amount} cores learned, {used} used");
    Ok(())
}

/// Waits until so many pods of the workload run, and returns them.
fn running(env: &TestEnv, count: usize) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(env.client(), NAMESPACE);
    wait_for(&format!("{count} pods of {DEPLOYMENT} to run"), START, || {
        let all = env.block_on(pods.list(&ListParams::default()))?.items;
        let run = all.iter().all(|pod| phase(pod) == "Running");
        Ok((all.len() == count && run).then_some(all))
    })
}
