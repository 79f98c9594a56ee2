//! Tests of the exporter's signals beside CPU and memory, and of its memory limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
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
    on_our_nodes("the_exporter_reports_the_usage_of_the_hosts_file_systems", file_systems).takes(1),
    on_our_nodes("the_exporter_reports_the_use_of_each_card", cards).takes(17),
    on_our_nodes("the_api_server_accepts_every_component_for_real_gpu_nodes", components).takes(6),
    on_our_nodes("a_hanging_file_system_delays_no_sample", hanging_file_system).takes(14),
    on_our_nodes(
        "a_day_of_samples_and_a_thousand_scrapes_fit_the_shipped_memory_limit",
        day_of_samples,
    )
    .takes(142),
];

const PROGRAM: &str = "node-exporter-plus";
/// The limit for two samples, at the shipped interval of 10 s, on a busy host.
const SAMPLES: Duration = Duration::from_secs(120);
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

/// Nodes have the root file system of this host, so the usage is the one that the kernel reports here. Where it
/// changes, a sample shows it some seconds later.
fn file_systems(env: &TestEnv) -> Result<()> {
    for node in env.cluster()?.nodes() {
        wait_for(&format!("the usage of {}'s file systems", node.name()), SAMPLES, || {
            let statistics = statistics(node)?;
            let usage = value(&statistics, "fs_root_usage_active").context("no fs_root_usage")?;
            let expected = used_percent()?;
            ensure!((usage - expected).abs() < 2.0, "{}: {usage}, not {expected}", node.name());
            ensure!(statistics.contains_key("fs_usage_active"), "the node has no fs_usage");
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// The usage of this host's root file system, as `df` shows it.
fn used_percent() -> Result<f64> {
    let space = rustix::fs::statvfs("/")?;
    let used = (space.f_blocks - space.f_bfree) as f64;
    Ok(100.0 * used / (used + space.f_bavail as f64))
}

fn cards(env: &TestEnv) -> Result<()> {
    let node = &env.cluster()?.nodes()[1];
    set_card_use(node, 60, 4096)?;
    // The driver's script may change in the middle of a sample.
    let reported = wait_for("the exporter to report the busy card", SAMPLES, || {
        reports_the_busy_card(node, &statistics(node)?).map(Some)
    });
    set_card_use(node, 0, 0)?;
    reported
}

fn reports_the_busy_card(node: &Node, statistics: &BTreeMap<String, Value>) -> Result<()> {
    let expected = [
        ("gpu_2_usage_active", 60.0),
        ("gpu_2_mem_usage_active", 25.0),
        ("gpu_2_healthy_active", 1.0),
        ("gpu_0_usage_active", 0.0),
        ("gpu_usage_active", 15.0),
        ("gpu_mem_usage_active", 6.25),
    ];
    for (name, wanted) in expected {
        ensure!(value(statistics, name) == Some(wanted), "{name} is not {wanted}: {statistics:?}");
    }
    let card = &statistics["gpu_2_usage_active"]["instance"];
    ensure!(*card == node.cards()[2].uuid, "{card}");
    Ok(())
}

/// Sets what the driver reports of the node's third card: the utilisation in percent and the used memory in MiB.
pub(crate) fn set_card_use(node: &Node, utilisation: u64, used_mib: u64) -> Result<()> {
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

/// Mounts a FUSE file system whose server answers no request, so that a call of `statfs` never returns.
fn hanging_file_system(env: &TestEnv) -> Result<()> {
    const MOUNT_POINT: &str = "/var/lib/plimsoll-node/hangs";
    let node = &env.cluster()?.nodes()[1];
    let exporter = process(&pod_on(env, node)?)?;
    fs::create_dir_all(node.path(MOUNT_POINT))?;
    let script = format!(
        "exec 3<>/dev/fuse; busybox mount -i -t fuse \
         -o fd=3,rootmode=40755,user_id=0,group_id=0,allow_other /dev/fuse {MOUNT_POINT} && exec cat"
    );
    let server = node.command("sh")?.args(["-c", &script]).stdin(Stdio::piped()).spawn()?;
    let outcome = mount_is_visible_and_samples_go_on(node, exporter, MOUNT_POINT);
    end(server)?;
    node.run(&["umount", "--lazy", MOUNT_POINT])?;
    outcome
}

/// Ends the file system's server, which reads its standard input. The kernel then fails the waiting calls.
fn end(mut server: Child) -> Result<()> {
    drop(server.stdin.take());
    server.wait().map(drop).context("the server of the file system does not end")
}

fn mount_is_visible_and_samples_go_on(node: &Node, exporter: Pid, place: &str) -> Result<()> {
    wait_for("the mount to reach the exporter", SAMPLES, || {
        Ok(processes::mounts(exporter)?.contains(&format!("/host{place}")).then_some(()))
    })?;
    let asked = node.run(&["timeout", "1", "stat", "--file-system", place]);
    ensure!(asked.is_err(), "the file system answers: {asked:?}");
    for _ in 0..2 {
        let known = newest_sample(node)?;
        wait_for("a new sample", SAMPLES, || Ok((newest_sample(node)? != known).then_some(())))?;
    }
    Ok(())
}

/// The time of the newest sample.
fn newest_sample(node: &Node) -> Result<String> {
    let statistics = statistics(node)?;
    let time = statistics.get("mem_usage_active").and_then(|value| value["timestamp"].as_str());
    time.map(str::to_owned).context("no sample")
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

fn value(statistics: &BTreeMap<String, Value>, name: &str) -> Option<f64> {
    statistics.get(name)?["value"].as_f64()
}
