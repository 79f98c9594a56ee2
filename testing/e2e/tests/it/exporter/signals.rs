//! Tests of the exporter's components for real GPU nodes, and of its memory limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::build::programs;
use e2e::command::{run, wait_for};
use e2e::kernel::memory::Memory;
use e2e::kernel::processes::{self, Pid, Signal};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::env::TestEnv;
use crate::support::exporter_client::{self, statistics};
use crate::support::pods::{processes_of, restarts, statuses};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("the_api_server_accepts_every_component_for_real_gpu_nodes", components).takes(6),
    on_our_nodes(
        "a_day_of_samples_and_a_thousand_scrapes_fit_the_shipped_memory_limit",
        day_of_samples,
    )
    .takes(142),
];

const PROGRAM: &str = "node-exporter-plus";
/// The limit for the start of an exporter. The kubelet waits before it starts a killed one again.
const STARTED: Duration = Duration::from_secs(300);
/// The largest memory limit that the shipped manifest may have, in bytes.
const LARGEST_LIMIT: u64 = 24 << 20;
/// What the exporter plans with, in bytes. The rest of the limit is for the runtime, and for larger pages.
const PLANNED: u64 = 12 << 20;
/// The number of signals that are kept for a day.
const SIGNALS: usize = 16;
/// The exporter's sample file by the shipped manifest, inside a node.
const FILE: &str = "/run/plimsoll/node-exporter-plus.samples";
/// The exporter's user and group.
const USER: &str = "64953:64953";
/// The ConfigMap with the exporter's configuration, which `testing/e2e/deploy/day-of-signals` mounts.
const CONFIG: &str = "day-of-signals";

/// Sets what the driver reports of the node's third GPU: the utilisation in percent and the used memory in MiB.
pub(crate) fn set_gpu_use(node: &Node, utilisation: u64, used_mib: u64) -> Result<()> {
    node.edit_driver(|script| {
        script["cards"][2]["utilisation"] = utilisation.into();
        script["cards"][2]["usedMiB"] = used_mib.into();
    })
}

/// Only a server-side dry run: no node here has NVIDIA's runtime.
fn components(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let manifests = cluster.rendered("real-gpu-nodes")?;
    let words = ["apply", "--dry-run=server", "-o", "json", "-f", &manifests];
    let accepted: Value = serde_json::from_str(&cluster.kubectl_run(&words)?)?;
    let all = accepted["items"].as_array().context("no list")?;
    let classes: BTreeMap<&str, &Value> = all
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
        .filter_map(|set| {
            Some((set["metadata"]["name"].as_str()?, &set["spec"]["template"]["spec"]))
        })
        .collect();
    for (name, class) in [(PROGRAM, None), ("node-exporter-plus-gpu", Some("nvidia"))] {
        let pod = classes.get(name).with_context(|| format!("no DaemonSet {name}"))?;
        ensure!(pod["runtimeClassName"].as_str() == class, "{name}: {}", pod["runtimeClassName"]);
        let volumes = pod["volumes"].as_array().context("no volumes")?;
        ensure!(volumes.iter().any(|volume| volume["hostPath"]["path"] == "/"), "{name}: no root");
        ensure!(volumes.iter().any(|volume| volume["name"] == "exporter"), "{name}: no secrets");
    }
    Ok(())
}

fn day_of_samples(env: &TestEnv) -> Result<()> {
    let node = &env.cluster()?.nodes()[1];
    let writer = programs::sample_file_writer(env.cluster()?.settings())?;
    let outcome = configure_a_day(env, node, &writer)
        .and_then(|()| stays_within_the_limit(env, node, &writer));
    let restored = restore(env, node);
    outcome.and(restored)
}

/// Configures the exporters to keep the signals that [`write_day`] writes for a day.
fn configure_a_day(env: &TestEnv, node: &Node, writer: &Path) -> Result<()> {
    let config = write_day(node, writer, "/run/plimsoll/scratch")?;
    node.run(&["rm", "/run/plimsoll/scratch"])?;
    let literal = format!("--from-literal=signals.yaml={config}");
    let cluster = env.cluster()?;
    cluster.kubectl_run(&["-n", "plimsoll", "create", "configmap", CONFIG, &literal])?;
    apply(env, "day-of-signals")
}

/// Writes a sample file with a day that ends now, and returns the configuration that keeps it.
fn write_day(node: &Node, writer: &Path, file: &str) -> Result<String> {
    run(node.command(writer)?.args([file, &SIGNALS.to_string()]))
}

fn stays_within_the_limit(env: &TestEnv, node: &Node, writer: &Path) -> Result<()> {
    let pod = restarted(env, node, || {
        write_day(node, writer, FILE)?;
        node.run(&["chown", USER, FILE]).map(drop)
    })?;
    let exporter = process(&pod)?;
    has_whole_days(node)?;
    for scrape in 0..1_000 {
        exporter_client::get(node, ["/metrics", "/statistics", "/v1/statistics"][scrape % 3])?;
    }
    has_whole_days(node)?;
    let memory = Memory::of(exporter)?;
    env.figure("exporter_with_a_day_peak_bytes", memory.peak.to_string());
    ensure!(memory.limit <= LARGEST_LIMIT, "the limit is {}", memory.limit);
    ensure!(memory.peak < PLANNED, "{memory:?}");
    ensure!((memory.limit_hits, memory.oom_kills) == (0, 0), "{memory:?}");
    let now = pod_on(env, node)?;
    ensure!(restarts(&now) == restarts(&pod), "the container was restarted meanwhile");
    ensure!(process(&now)? == exporter, "the process was replaced");
    Ok(())
}

/// Fails unless every signal of the file has a day with a coverage above 0.99.
fn has_whole_days(node: &Node) -> Result<()> {
    let statistics = statistics(node)?;
    let days = statistics.iter().filter(|(name, _)| name.ends_with("_max_avg_1d"));
    let whole = days.filter(|(_, day)| day["coverage"].as_f64().is_some_and(|share| share > 0.99));
    let names: Vec<&String> = whole.map(|(name, _)| name).collect();
    ensure!(names.len() == SIGNALS, "{} days are whole: {names:?}", names.len());
    Ok(())
}

/// Removes the configuration and the artificial samples.
fn restore(env: &TestEnv, node: &Node) -> Result<()> {
    apply(env, "tested")?;
    let words = ["-n", "plimsoll", "delete", "configmap", CONFIG, "--ignore-not-found"];
    env.cluster()?.kubectl_run(&words)?;
    restarted(env, node, || node.run(&["rm", "-f", FILE]).map(drop)).map(drop)
}

/// Applies values of the tests, and waits for the rollout of exporters and annotator.
pub(crate) fn apply(env: &TestEnv, values: &str) -> Result<()> {
    let cluster = env.cluster()?;
    cluster.apply(values)?;
    let exporters = "daemonset/node-exporter-plus";
    cluster.kubectl_run(&["-n", "plimsoll", "rollout", "status", exporters, "--timeout=300s"])?;
    env.rolled_out("annotator")
}

/// Stops the exporter and then kills it, so that it does not write its sample file while `work` changes that or after
/// it, and waits until the next one is ready.
fn restarted(env: &TestEnv, node: &Node, work: impl FnOnce() -> Result<()>) -> Result<Pod> {
    let before = pod_on(env, node)?;
    let exporter = process(&before)?;
    processes::signal(exporter, Signal::STOP)?;
    let done = work();
    processes::signal(exporter, Signal::KILL)?;
    done?;
    wait_for("the exporter to return", STARTED, || {
        let pod = pod_on(env, node)?;
        let anew = restarts(&pod) > restarts(&before) && statuses(&pod).iter().all(|s| s.ready);
        Ok(anew.then_some(pod))
    })
}

/// Deletes the exporter's pod on a node, and waits until the next one is ready.
pub(crate) fn replaced(env: &TestEnv, node: &Node) -> Result<()> {
    let before = pod_on(env, node)?;
    let name = before.metadata.name.as_deref().context("a pod has a name")?;
    env.cluster()?.kubectl_run(&["-n", "plimsoll", "delete", "pod", name])?;
    wait_for("the next exporter", STARTED, || {
        let pod = pod_on(env, node)?;
        let ready = !statuses(&pod).is_empty() && statuses(&pod).iter().all(|s| s.ready);
        Ok((pod.metadata.uid != before.metadata.uid && ready).then_some(()))
    })
}

/// The exporter's pod on a node.
fn pod_on(env: &TestEnv, node: &Node) -> Result<Pod> {
    let pods = env.program_pods(PROGRAM)?;
    let mut found = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    found
        .find(|pod| crate::support::pods::node(pod) == Some(node.name()))
        .with_context(|| format!("no exporter runs on {}", node.name()))
}

/// The exporter's main process.
fn process(pod: &Pod) -> Result<Pid> {
    let all = processes_of(pod, PROGRAM)?;
    let mut named = all
        .into_iter()
        .filter(|pid| processes::arguments(*pid).first().is_some_and(|p| p.ends_with(PROGRAM)));
    named.next().context("the exporter does not run")
}
