//! Tests of Kueue by its own chart with the shipped sample: Jobs and groups of pods that share GPUs start by quota and
//! are evicted, and no process has another GPU than its pod, nor a GPU more than its memory.

use std::fs;

use anyhow::{Context, Result, anyhow, ensure};
use e2e::Node;
use e2e::build::kueue::{self, Kueue};
use e2e::cluster::chart::ChartRelease;
use e2e::command::{run, wait_for};
use e2e::kernel::processes::{self, Signal};
use e2e::node::gpus::GPU_MIB;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

use super::forced_deletion::{end_before, is_there, started_of, stubborn};
use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::callers::{Caller, Verb};
use crate::support::diagnostics;
use crate::support::gpu_audit::{audit_exactly, audit_pods};
use crate::support::pods::{
    START, create, create_all, gpu_container, gpu_pods, list, name, on_node, phase, pod,
    processes_of, runs,
};
use crate::support::resource_claims::{self, CLASS, Share};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("kueue_starts_evicts_and_restarts_jobs_that_share_gpus_by_their_units", by_units)
        .takes(300),
    on_our_nodes("kueue_counts_the_memory_or_the_number_of_shares_in_claims", by_claims).takes(240),
];

const SAMPLE: &str = "deploy/samples/kueue";
/// The namespace in the sample, and the name of its ClusterQueue.
const TEAM: &str = "team-a";
/// The LocalQueue of the sample.
const QUEUE: &str = "gpus";
/// A mapping for the end of the sample's values, its DeviceClass, and the queue that has a quota of it.
const COUNTED: &str =
    "      - name: gpu-shares\n        deviceClassNames: [counted.plimsoll-e2e.example]\n";
const COUNTED_CLASS: &str = "counted.plimsoll-e2e.example";
const COUNTED_QUEUE: &str = "counted";
const RELEASE: &str = "kueue";
const SYSTEM: &str = "kueue-system";
const API: &str = "/apis/kueue.x-k8s.io/v1beta2";
const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";
const GIB: u64 = 1024;
/// A GPU of the test cluster's nodes, in units.
const GPU: u64 = GPU_MIB / GIB;

/// One node, so that pods have to share its four GPUs.
fn host(env: &TestEnv) -> Result<&Node> {
    env.cluster()?.nodes().get(1).context("not two nodes")
}

fn by_units(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with_kueue(env, || {
        quota_of_units(env, host).context("a quota of units")?;
        groups(env, host).context("groups of pods")?;
        eviction(env, host).context("an eviction")
    })
}

fn by_claims(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    resource_claims::with(env, host, || {
        with_kueue(env, || {
            quota_of_memory(env, host).context("a quota of memory")?;
            quota_of_shares(env, host).context("a quota of shares")?;
            refused_claims(env, host).context("claims that Kueue does not count")
        })
    })
}

/// Of six Jobs with two pods of 4 units each, the 32 units of the queue admit four.
fn quota_of_units(env: &TestEnv, host: &Node) -> Result<()> {
    for n in 0..6 {
        let share = on_node(host, pod("", &[gpu_container("main", 4)]));
        create_job(env, job(&format!("train-{n}"), QUEUE, 2, share))?;
    }
    for waiting in [2, 1, 0] {
        let running = settled(env, NAMESPACE, 4, waiting, 8)?;
        let by_gpu = audit_pods(env, &running)?;
        ensure!(by_gpu.values().sum::<u64>() == 32, "{by_gpu:?}");
        end(env, &job_of(&running[0])?)?;
    }
    remove_all(env)
}

/// Of two groups with 24 and 16 units, the first one that is complete starts.
fn groups(env: &TestEnv, host: &Node) -> Result<()> {
    let in_group = |group: &str, of: usize, n: usize| {
        let mut pod = on_node(host, pod(&format!("{group}-{n}"), &[gpu_container("main", 8)]));
        pod["metadata"]["labels"] = json!({
            "kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/pod-group-name": group,
        });
        pod["metadata"]["annotations"] = json!({
            "kueue.x-k8s.io/pod-group-total-count": of.to_string(), "plimsoll.dev/gpu-placement": "pack",
        });
        pod["spec"]["restartPolicy"] = json!("Never");
        pod
    };
    create_all(env, vec![in_group("three", 3, 0), in_group("three", 3, 1)])?;
    create_all(env, vec![in_group("two", 2, 0), in_group("two", 2, 1)])?;
    let two = settled(env, NAMESPACE, 1, 0, 2)?;
    ensure!(two.iter().all(|pod| name(pod).starts_with("two")), "an incomplete group runs");
    create(env, in_group("three", 3, 2))?;
    settled(env, NAMESPACE, 1, 1, 2)?;
    audit_exactly(env, 2)?;
    let told = run(&mut env.operators_command(&["pending", "--namespace", NAMESPACE])?)?;
    ensure!(told.contains("SchedulingGated (kueue.x-k8s.io/admission"), "{told}");
    end_pods(&two)?;
    let three = settled(env, NAMESPACE, 1, 0, 3)?;
    let by_gpu = audit_pods(env, &three)?;
    ensure!(by_gpu.values().sum::<u64>() == 24 && by_gpu.len() < 3, "{by_gpu:?}");
    remove_all(env)
}

/// All GPUs of the node are full: two with pods that are in no queue, two with Jobs. Kueue gives the quota of the less
/// important Job on at once, while its process goes on until it is killed.
fn eviction(env: &TestEnv, host: &Node) -> Result<()> {
    let whole = || on_node(host, pod("", &[gpu_container("main", GPU)]));
    create_all(env, gpu_pods("other", 2, GPU).into_iter().map(|it| on_node(host, it)).collect())?;
    create_job(env, urgent(job("kept", QUEUE, 1, whole())))?;
    create_job(env, job("evicted", QUEUE, 1, on_node(host, stubborn(""))))?;
    settled(env, NAMESPACE, 2, 0, 4)?;
    let old = started_of(&pod_of(env, "evicted")?)?;
    ensure!(!old.is_empty(), "the pod has no process");
    create_job(env, urgent(job("urgent", QUEUE, 1, whole())))?;
    wait_for("the important Job's pod to be made", START, || pod_of(env, "urgent").map(Some))?;
    ensure!(old.iter().all(is_there), "the evicted Job has ended before the quota was given on");
    end_before(&old, || pod_of(env, "urgent"))?;
    settled(env, NAMESPACE, 2, 1, 4)?;
    audit_exactly(env, 4)?;
    let evicted = env.block_on(jobs(env).get("evicted"))?;
    ensure!(evicted.spec.and_then(|spec| spec.suspend) == Some(true), "it is not suspended");
    end(env, "urgent")?;
    settled(env, NAMESPACE, 2, 0, 4)?;
    pod_of(env, "evicted")?;
    audit_exactly(env, 4)?;
    remove_all(env)
}

/// Of five Jobs with two pods of 3 GiB each, the 24 GiB of the queue admit four.
fn quota_of_memory(env: &TestEnv, host: &Node) -> Result<()> {
    let share = Share::of(3 * GIB);
    share.create(env)?;
    for n in 0..5 {
        create_job(env, job(&format!("claims-{n}"), QUEUE, 2, on_node(host, share.pod(""))))?;
    }
    for waiting in [1, 0] {
        let running = settled(env, NAMESPACE, 4, waiting, 8)?;
        let by_gpu = resource_claims::audit_exactly(env, 8)?;
        ensure!(by_gpu.values().sum::<u64>() == 24 * GIB, "{by_gpu:?}");
        end(env, &job_of(&running[0])?)?;
    }
    remove_all(env)
}

/// Of three Jobs, a queue of two shares admits two, whatever their memory.
fn quota_of_shares(env: &TestEnv, host: &Node) -> Result<()> {
    let share = Share::of(8 * GIB).by_class(COUNTED_CLASS);
    share.create(env)?;
    for n in 0..3 {
        let pod = on_node(host, share.pod(""));
        create_job(env, job(&format!("counted-{n}"), COUNTED_QUEUE, 1, pod))?;
    }
    let running = settled(env, COUNTED_QUEUE, 2, 1, 2)?;
    resource_claims::audit_exactly(env, 2)?;
    end(env, &job_of(&running[0])?)?;
    settled(env, COUNTED_QUEUE, 2, 0, 2)?;
    resource_claims::audit_exactly(env, 2)?;
    remove_all(env)
}

/// A ResourceClaim that the pod names, and alternatives.
fn refused_claims(env: &TestEnv, host: &Node) -> Result<()> {
    let either =
        json!([{"name": "gpu", "firstAvailable": [{"name": "one", "deviceClassName": CLASS}]}]);
    let template = json!({
        "metadata": {"name": "either"}, "spec": {"spec": {"devices": {"requests": either}}},
    });
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(env.client(), NAMESPACE);
    env.block_on(templates.create(&PostParams::default(), &parse(template)?))?;
    for (by, from, reason) in [
        ("resourceClaimName", "named", "does not support use of resource claims"),
        ("resourceClaimTemplateName", "either", "FirstAvailable device selection is not supported"),
    ] {
        let mut pod = on_node(host, Share::of(GIB).pod(""));
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", by: from}]);
        create_job(env, job(from, QUEUE, 1, pod))?;
        wait_for(&format!("Kueue to refuse {from}"), START, || {
            let workloads = get_path(env, &format!("{API}/namespaces/{NAMESPACE}/workloads"))?;
            let mut items = workloads["items"].as_array().into_iter().flatten();
            let of_job = items.find(|it| it["metadata"]["ownerReferences"][0]["name"] == from);
            let told = of_job.context("no workload")?["status"]["conditions"].to_string();
            ensure!(told.contains(reason), "{told}");
            Ok(Some(()))
        })?;
    }
    ensure!(list(env)?.is_empty(), "a refused Job has a pod");
    remove_all(env)
}

/// Runs the work while Kueue and the sample's queue are installed.
fn with_kueue(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = env.cluster()?;
    let kueue = kueue::kueue(cluster.settings())?;
    cluster.import(std::slice::from_ref(&kueue.image))?;
    let release = ChartRelease::new(cluster, SYSTEM, "helm4")?;
    let queue = tempfile::NamedTempFile::new()?;
    fs::write(&queue, sample(env, "queue.yaml")?.replace(TEAM, NAMESPACE))?;
    let queue = queue.path().to_string_lossy();
    let tried = install(env, &release, &kueue, &queue).and_then(|()| work());
    // Those of the run come after the removal.
    let tried = tried.map_err(|error| match diagnostics::write(cluster, "kueue") {
        Ok(folder) => error.context(format!("see {}", folder.display())),
        Err(second) => error.context(format!("diagnostics failed: {second:#}")),
    });
    let emptied = remove_all(env);
    let removed = uninstall(env, &release, &queue);
    tried.and(emptied).and(removed)
}

fn sample(env: &TestEnv, file: &str) -> Result<String> {
    let path = env.cluster()?.settings().sources.join(SAMPLE).join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn install(env: &TestEnv, release: &ChartRelease, kueue: &Kueue, queue: &str) -> Result<()> {
    let values = tempfile::NamedTempFile::new()?;
    fs::write(&values, sample(env, "values.yaml")? + COUNTED)?;
    let (chart, values) = (kueue.chart.to_string_lossy(), values.path().to_string_lossy());
    let words = ["install", RELEASE, &*chart, "--create-namespace", "--values", &*values];
    let flags: Vec<&str> = kueue.flags.iter().map(String::as_str).collect();
    release.helm(&[&words[..], &flags, &["--wait", "--timeout=400s"]].concat())?;
    let cluster = env.cluster()?;
    cluster.kubectl_run(&["label", "--overwrite", "namespace", NAMESPACE, "kueue-managed=true"])?;
    // Until the API server reaches the webhooks.
    wait_for("the queue to be made", START, || {
        cluster.kubectl_run(&["apply", "-f", queue]).map(Some)
    })?;
    counted_queue(env)
}

/// A DeviceClass whose shares are counted, and a queue of two of them.
fn counted_queue(env: &TestEnv) -> Result<()> {
    let administrator = Caller::administrator(env)?;
    let ours = json!([{"cel": {"expression": "device.driver == 'gpu.plimsoll.dev'"}}]);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": COUNTED_CLASS}, "spec": {"selectors": ours},
    });
    let resources = json!([{"name": "gpu-shares", "nominalQuota": 2}]);
    let whole = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": COUNTED_QUEUE},
        "spec": {"namespaceSelector": {}, "resourceGroups": [{
            "coveredResources": ["gpu-shares"], "flavors": [{"name": "gpus", "resources": resources}],
        }]},
    });
    let local = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": COUNTED_QUEUE},
        "spec": {"clusterQueue": COUNTED_QUEUE},
    });
    let locals = format!("{API}/namespaces/{NAMESPACE}/localqueues");
    administrator.done(env, Verb::Create, CLASSES, &class)?;
    administrator.done(env, Verb::Create, &format!("{API}/clusterqueues"), &whole)?;
    administrator.done(env, Verb::Create, &locals, &local).map(drop)
}

fn uninstall(env: &TestEnv, release: &ChartRelease, queue: &str) -> Result<()> {
    let delete = |words: &[&str]| {
        let always = ["delete", "--ignore-not-found", "--timeout=300s"];
        env.cluster()?.kubectl_run(&[&always[..], words].concat()).map(drop)
    };
    let queues = delete(&["deviceclass", COUNTED_CLASS])
        .and_then(|()| delete(&["-n", NAMESPACE, "localqueues.kueue.x-k8s.io", COUNTED_QUEUE]))
        .and_then(|()| delete(&["clusterqueues.kueue.x-k8s.io", COUNTED_QUEUE]))
        .and_then(|()| delete(&["-f", queue]));
    let flags = ["--ignore-not-found", "--wait", "--timeout=300s"];
    let released = release.helm(&[&["uninstall", RELEASE], &flags[..]].concat());
    let system = delete(&["namespace", SYSTEM]);
    let label = ["label", "namespace", NAMESPACE, "kueue-managed-"];
    queues.and(released).and(system).and(env.cluster()?.kubectl_run(&label)).map(drop)
}

/// Removes all Jobs and groups, and waits until their pods are gone. Kueue lets a group's pods go with its workload.
fn remove_all(env: &TestEnv) -> Result<()> {
    let kinds = "jobs.batch,workloads.kueue.x-k8s.io";
    let words = ["-n", NAMESPACE, "delete", kinds, "--all", "--wait", "--timeout=300s"];
    env.cluster()?.kubectl_run(&words)?;
    env.delete_all_pods()
}

/// A Job of so many such pods in this LocalQueue.
fn job(name: &str, queue: &str, pods: usize, mut pod: Value) -> Value {
    pod["spec"]["restartPolicy"] = json!("Never");
    // What the sample leaves out of quotas.
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1m"});
    json!({
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"parallelism": pods, "completions": pods, "template": pod},
    })
}

/// The same Job with the sample's WorkloadPriorityClass.
fn urgent(mut job: Value) -> Value {
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("urgent");
    job
}

fn jobs(env: &TestEnv) -> Api<Job> {
    Api::namespaced(env.client(), NAMESPACE)
}

fn create_job(env: &TestEnv, wanted: Value) -> Result<()> {
    env.block_on(jobs(env).create(&PostParams::default(), &parse(wanted)?)).map(drop)
}

/// Waits until so many workloads of a ClusterQueue are admitted, so many wait and so many pods of the tests run, and
/// returns these. An error as soon as more run.
fn settled(
    env: &TestEnv,
    queue: &str,
    admitted: u64,
    waiting: u64,
    running: usize,
) -> Result<Vec<Pod>> {
    let path = format!("{API}/clusterqueues/{queue}");
    wait_for(&format!("{running} pods of {queue} to run"), START, || {
        let status = get_path(env, &path)?["status"].take();
        let mut pods = list(env)?;
        pods.retain(runs);
        if pods.len() > running {
            return Ok(Some(Err(anyhow!("{} pods run, not {running}: {status}", pods.len()))));
        }
        ensure!(pods.len() == running, "{} pods run: {status}", pods.len());
        let counted =
            status["admittedWorkloads"] == admitted && status["pendingWorkloads"] == waiting;
        ensure!(counted, "{status}");
        Ok(Some(Ok(pods)))
    })?
}

fn get_path(env: &TestEnv, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(Vec::new())?;
    env.block_on(env.client().request::<Value>(request))
}

const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// The Job of a pod.
fn job_of(pod: &Pod) -> Result<String> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(JOB_NAME));
    label.cloned().with_context(|| format!("{} is of no Job", name(pod)))
}

/// The pods of a Job that have not ended.
fn pods_of(env: &TestEnv, job: &str) -> Result<Vec<Pod>> {
    let of_job = ListParams::default().labels(&format!("{JOB_NAME}={job}"));
    let mut pods = env.block_on(env.pods().list(&of_job))?.items;
    pods.retain(|pod| phase(pod) != "Succeeded" && pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}

/// The only pod of a Job.
fn pod_of(env: &TestEnv, job: &str) -> Result<Pod> {
    pods_of(env, job)?.into_iter().next().with_context(|| format!("{job} has no pod"))
}

/// Has a Job end by itself.
fn end(env: &TestEnv, job: &str) -> Result<()> {
    end_pods(&pods_of(env, job)?)
}

/// Has pods end by themselves: the pause program ends at SIGTERM without an error.
fn end_pods(pods: &[Pod]) -> Result<()> {
    for pod in pods {
        processes::signal_all(&processes_of(pod, "main")?, Signal::TERM)?;
    }
    Ok(())
}
