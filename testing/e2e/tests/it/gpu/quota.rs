//! Tests of ResourceQuota: a namespace gets no more of GPUs than it counts.

use anyhow::{Context, Result, bail, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::used_units;
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    BINDING, START, bound, create, delete_all, gpu_container, list, on_node, pod, running,
    unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_quota_of_units_holds_for_exclusive_gpus_compute_and_memory_limits", of_units)
        .takes(3)
        .smoke(),
    on_our_nodes("a_pod_whose_spec_names_its_node_keeps_no_other_from_its_gpus", own_node)
        .takes(1)
        .smoke(),
];

/// A GPU of the test cluster's nodes, in units.
const GPU: u64 = 16;
const QUOTA: &str = "gpu-memory";

/// A pod of one container with this annotation.
fn wishing(name: &str, units: u64, key: &str, value: &str) -> Value {
    let mut pod = pod(name, &[gpu_container("main", units)]);
    pod["metadata"]["annotations"] = json!({format!("plimsoll.dev/{key}"): value});
    pod
}

fn of_units(env: &TestEnv) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(env.client(), NAMESPACE);
    let quota = parse(json!({
        "metadata": {"name": QUOTA},
        "spec": {"hard": {"requests.aliyun.com/gpu-mem": GPU.to_string()}},
    }))?;
    env.block_on(quotas.create(&PostParams::default(), &quota))?;
    let tried = wait_for("the quota to be counted", BINDING, || {
        let quota = env.block_on(quotas.get(QUOTA))?;
        Ok(quota.status.and_then(|status| status.hard).map(|_| ()))
    })
    .and_then(|()| beyond(env))
    .and_then(|()| {
        wait_for("the quota to count no pod", BINDING, || {
            let used = env.block_on(quotas.get(QUOTA))?.status.and_then(|status| status.used);
            let units = used.and_then(|used| used.get("requests.aliyun.com/gpu-mem").cloned());
            Ok(units.is_some_and(|units| units.0 == "0").then_some(()))
        })
    })
    .and_then(|()| whole_gpu(env));
    let gone = env.delete_all_pods();
    let removed = env.block_on(quotas.delete(QUOTA, &DeleteParams::default()));
    tried.and(gone)?;
    removed.map(drop)
}

/// Each asks for one unit, and for more than one unit's part of a GPU.
fn beyond(env: &TestEnv) -> Result<()> {
    let wishes = [
        (wishing("whole", 1, "gpu-card-count", "exclusive"), "exclusive GPUs cost"),
        (wishing("compute", 1, "gpu-cores", "100"), "gpu-cores exceed"),
        (wishing("grows", 1, "gpu-mem-limit", "16"), "gpu-mem-limit exceeds"),
    ];
    for (wanted, reason) in wishes {
        let name = wanted["metadata"]["name"].as_str().context("no name")?.to_owned();
        create(env, wanted)?;
        let message = unschedulable(env, &name, BINDING)?;
        ensure!(message.contains(reason), "{name}: {message}");
        delete_all(env, [name.as_str()])?;
        wait_for("the pod to be gone", BINDING, || Ok(list(env)?.is_empty().then_some(())))?;
    }
    Ok(())
}

/// An exclusive GPU for all its units uses the quota up.
fn whole_gpu(env: &TestEnv) -> Result<()> {
    create(env, wishing("whole", GPU, "gpu-card-count", "exclusive"))?;
    running(env, "whole", START)?;
    audit_exactly(env, 1)?;
    match create(env, pod("one-more", &[gpu_container("main", 1)])) {
        Err(error) if format!("{error:#}").contains("exceeded quota") => Ok(()),
        Err(error) => Err(error.context("not for the quota")),
        Ok(()) => bail!("a pod beyond the quota was created"),
    }
}

/// As many such pods as a controller makes are refused by the device plugin, one after the other.
fn own_node(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let free = used_units(env, host.name())?;
    // As where the admission policies are absent, which refuse such pods.
    let unhindered = Caller::unhindered(env)?;
    for number in 0..5 {
        let mut own = wishing(&format!("own-{number}"), GPU, "gpu-card-count", "exclusive");
        own["spec"]["nodeName"] = json!(host.name());
        (own["apiVersion"], own["kind"]) = (json!("v1"), json!("Pod"));
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        unhindered.done(env, Verb::Create, &pods, &own)?;
        let used = used_units(env, host.name())?;
        ensure!(used == free, "pod {number} is charged: {used:?}");
    }
    create(env, on_node(host, pod("other", &[gpu_container("main", GPU)])))?;
    bound(env, "other", BINDING)?;
    running(env, "other", START).map(drop)
}
