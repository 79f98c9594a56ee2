//! Tests with what belongs to Aliyun's gpushare: its pods' specs, what its tool `kubectl inspect gpushare` makes of
//! Nodes and Pods, and the ConfigMap of unhealthy GPUs.
//!
//! The tool's Go module cannot be fetched, so [`Inspected`] stands in: it reads what `cmd/inspect` of
//! gpushare-device-plugin reads, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::build::images::PAUSE;
use e2e::command::wait_for;
use e2e::kernel::processes::numbered_devices;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::{inspected_by_each, used_units};
use crate::support::fake_nodes::{self, FakeNode, bound_to, on_fake_nodes};
use crate::support::gpu_audit::audit_exactly;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, all_running, annotation, bound, create, delete_all, evictable,
    gpu_container, gpu_containers, list, node, on_node, phase, pod, process_of, units,
    unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "aliyuns_sample_runs_unchanged_and_its_inspect_tool_shows_the_truth_of_every_pod",
        sample,
    )
    .takes(9),
    on_our_nodes("pods_that_aliyuns_extender_bound_count_on_every_gpu_until_they_end", mixed)
        .takes(1),
    on_our_nodes("unhealthy_gpus_go_to_aliyuns_configmap_and_come_from_it", unhealthy_map)
        .takes(17),
];

const COUNT: &str = "aliyun.com/gpu-count";
const IDX: &str = "ALIYUN_COM_GPU_MEM_IDX";
const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";

/// Units in use on each GPU, by node and index; -1 for units that the tool shows as pending.
type Inspected = BTreeMap<String, BTreeMap<i64, u64>>;

/// `binpack-1` is the first sample of gpushare-scheduler-extender, but for the image. Beside it are pods that Aliyun's
/// programs cannot place.
fn sample(env: &TestEnv) -> Result<()> {
    let labels = json!({"app": "binpack-1"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "binpack-1", "labels": labels},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "binpack-1", "image": PAUSE, "resources": {"limits": {GPU: 3}},
                    }],
                },
            },
        },
    });
    let caller = Caller::administrator(env)?;
    let deployments = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments");
    caller.done(env, Verb::Create, &deployments, &deployment)?;
    let tried = create(env, of_several_gpus("two-cards", "2", 6))
        .and_then(|()| create(env, of_several_gpus("whole-card", "exclusive", 16)))
        .and_then(|()| create(env, pod("two", &[gpu_container("a", 2), gpu_container("b", 5)])))
        .and_then(|()| {
            wait_for("the pods of the Deployment", START, || {
                Ok((list(env)?.len() == 6).then_some(()))
            })
        })
        .and_then(|()| all_running(env, START))
        .and_then(|pods| {
            audit_exactly(env, 6)?;
            let shown = inspect(env)?;
            let truth = seen(env, &pods)?;
            ensure!(shown == truth, "the tool shows {shown:?}, the processes see {truth:?}");
            Ok(())
        });
    // With its pods, which would be made again otherwise while the next test begins.
    let removed = env
        .remove(&format!("{deployments}/binpack-1?propagationPolicy=Foreground"))
        .and_then(|()| {
            wait_for("the Deployment to be gone", START, || {
                let request = http::Request::get(&deployments).body(Vec::new())?;
                let left: Value = env.block_on(env.client().request(request))?;
                Ok(left["items"].as_array().is_some_and(Vec::is_empty).then_some(()))
            })
        });
    tried.and(removed)
}

fn of_several_gpus(name: &str, count: &str, units: u64) -> Value {
    let mut pod = pod(name, &[gpu_container("main", units)]);
    pod["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-card-count": count});
    pod
}

/// What the tool adds up: Nodes with units, and their pods that have not ended, by the annotations of these.
fn inspect(env: &TestEnv) -> Result<Inspected> {
    let gpus = offered(env, COUNT)?;
    let pods: Api<Pod> = Api::all(env.client());
    let pods = env.block_on(pods.list(&ListParams::default()))?.items;
    let mut inspected = Inspected::new();
    for (name, _) in offered(env, GPU)?.into_iter().filter(|(_, units)| *units > 0) {
        let gpus = i64::try_from(*gpus.get(&name).context("no count of GPUs")?)?;
        let used: &mut BTreeMap<i64, u64> = inspected.entry(name.clone()).or_default();
        used.extend((0..gpus).map(|gpu| (gpu, 0)));
        for pod in pods.iter().filter(|pod| node(pod) == Some(&name) && !has_ended(pod)) {
            for (gpu, units) in shown_of(pod)? {
                *used.entry(gpu).or_default() += units;
            }
        }
    }
    Ok(inspected)
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The units of a pod by GPU, as the tool shows them: by the allocation where the pod has one, else all on the GPU of
/// the index.
fn shown_of(pod: &Pod) -> Result<BTreeMap<i64, u64>> {
    let limits = pod.spec.iter().flat_map(|spec| &spec.containers).map(units).sum::<u64>();
    if limits == 0 {
        return Ok(BTreeMap::new());
    }
    if let Some(text) = annotation(pod, ALLOCATION) {
        let parsed: BTreeMap<u32, BTreeMap<i64, u64>> = serde_json::from_str(text)?;
        let mut shown = BTreeMap::new();
        for (gpu, units) in parsed.into_values().flatten() {
            *shown.entry(gpu).or_default() += units;
        }
        return Ok(shown);
    }
    let index = annotation(pod, IDX).and_then(|text| text.parse().ok());
    Ok(BTreeMap::from([(index.unwrap_or(-1), limits)]))
}

/// What the pods' processes hold: equal parts of their containers' units on the GPUs whose device nodes they have, and
/// all of a GPU that is theirs alone.
fn seen(env: &TestEnv, pods: &[Pod]) -> Result<Inspected> {
    let mut seen = Inspected::new();
    for host in env.cluster()?.nodes() {
        let gpus = host.gpus().into_iter().map(|gpu| (i64::from(gpu.minor), 0));
        seen.insert(host.name().to_owned(), gpus.collect());
    }
    for pod in pods {
        let used = node(pod).and_then(|node| seen.get_mut(node)).context("no such node")?;
        for (container, units) in gpu_containers(pod) {
            let process = process_of(pod, container)?;
            let minors = numbered_devices(process, "nvidia")?;
            let alone = annotation(pod, "plimsoll.dev/gpu-card-count") == Some("exclusive");
            let each =
                if alone { e2e::node::gpus::GPU_MIB / 1024 } else { units / minors.len() as u64 };
            for (minor, _) in minors {
                *used.entry(i64::from(minor)).or_default() += each;
            }
        }
    }
    Ok(seen)
}

/// `old` is as Aliyun's extender and device plugin leave a pod that runs. Which GPU it is on, nothing proves.
fn mixed(env: &TestEnv) -> Result<()> {
    const NODE: &str = "fake-001";
    fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[8, 8])], || {
        let mut old = bound_to(NODE, evictable(pod("old", &[gpu_container("main", 5)])));
        old["apiVersion"] = json!("v1");
        old["kind"] = json!("Pod");
        old["metadata"]["annotations"] = aliyuns_annotations(8, 5, true);
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        Caller::unhindered(env)?.done(env, Verb::Create, &pods, &old)?;
        fake_nodes::report_admitted(env, "old")?;
        wait_for("the extender to count the old pod", BINDING, || {
            Ok((used_units(env, NODE)? == [5, 5]).then_some(()))
        })?;
        create(env, new_pod("beside", 3))?;
        bound(env, "beside", BINDING)?;
        create(env, new_pod("after", 5))?;
        unschedulable(env, "after", BINDING)?;
        fake_nodes::report_ended(env, "old")?;
        delete_all(env, ["old"])?;
        bound(env, "after", BINDING).map(drop)
    })
}

/// What Aliyun's extender writes on a pod of the second GPU when it binds; `assigned` is written by its device plugin.
pub(crate) fn aliyuns_annotations(gpu_units: u64, units: u64, assigned: bool) -> Value {
    json!({
        IDX: "1", "ALIYUN_COM_GPU_MEM_DEV": gpu_units.to_string(),
        "ALIYUN_COM_GPU_MEM_POD": units.to_string(),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": assigned.to_string(),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": Timestamp::now().as_nanosecond().to_string(),
    })
}

fn new_pod(name: &str, units: u64) -> Value {
    on_fake_nodes(pod(name, &[gpu_container("main", units)]))
}

/// `devicePlugin.unhealthyConfigMaps`: what the driver reports is listed there, and what others list takes no pods.
fn unhealthy_map(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let gpu = host.gpus().remove(2);
    let name = format!("unhealthy-gpu-{}", host.name());
    let tried = host
        .set_gpu_health(&gpu.uuid, false)
        .and_then(|()| {
            wait_for("the plugin to list the GPU", FOLLOWED, || {
                let path = "jsonpath={.data.gpus}";
                let get = ["get", "configmap", &name, "--ignore-not-found", "-o", path];
                Ok((in_kube_system(env, &get)? == "2").then_some(()))
            })
        })
        .and_then(|()| {
            let data = r#"{"data":{"gpus":"0,2"}}"#;
            in_kube_system(env, &["patch", "configmap", &name, "--type=merge", "-p", data])?;
            wait_for("the plugin to honour the list", FOLLOWED, || {
                Ok((healthy_gpus(env, host)? == [1, 3]).then_some(()))
            })?;
            wait_for("each extender to know it", FOLLOWED, || {
                let replicas = inspected_by_each(env, host.name())?;
                Ok(replicas
                    .iter()
                    .all(|gpus| {
                        let healthy = gpus.iter().filter(|gpu| gpu["unhealthy"] != true);
                        healthy.filter_map(|gpu| gpu["id"].as_u64()).eq([1, 3])
                    })
                    .then_some(()))
            })
        })
        .and_then(|()| {
            create(env, on_node(host, pod("on-a-healthy-card", &[gpu_container("main", 1)])))?;
            let pods = all_running(env, START)?;
            let process = process_of(&pods[0], "main")?;
            let seen = numbered_devices(process, "nvidia")?;
            ensure!(seen.iter().all(|(minor, _)| [1, 3].contains(minor)), "it has {seen:?}");
            Ok(())
        });
    let restored = host.set_gpu_health(&gpu.uuid, true).and_then(|()| {
        in_kube_system(env, &["delete", "configmap", &name, "--ignore-not-found"])?;
        wait_for("every GPU to be healthy again", RECOVERED, || {
            Ok((healthy_gpus(env, host)?.len() == 4).then_some(()))
        })
    });
    tried.and(restored)
}

fn in_kube_system(env: &TestEnv, words: &[&str]) -> Result<String> {
    env.cluster()?.kubectl_run(&[&["-n", "kube-system"], words].concat())
}

/// The plugin follows ConfigMap and driver by events, and looks again every few seconds.
pub(crate) const FOLLOWED: Duration = Duration::from_secs(180);
/// A GPU that has failed recovers after three good readings.
pub(crate) const RECOVERED: Duration = Duration::from_secs(300);

/// The GPUs that the node reports.
pub(crate) fn reported_gpus(env: &TestEnv, host: &Node) -> Result<Vec<Value>> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    let annotations = env.block_on(nodes.get(host.name()))?.metadata.annotations;
    let text =
        annotations.unwrap_or_default().remove("plimsoll.dev/gpu-cards").context("no GPUs")?;
    serde_json::from_str(&text).context("the node's GPUs are not JSON")
}

/// The indexes of the GPUs that the node reports as healthy.
pub(crate) fn healthy_gpus(env: &TestEnv, host: &Node) -> Result<Vec<u64>> {
    let gpus = reported_gpus(env, host)?;
    let healthy = gpus.iter().filter(|gpu| gpu["healthy"] == true);
    Ok(healthy.filter_map(|gpu| gpu["index"].as_u64()).collect())
}
