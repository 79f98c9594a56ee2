//! Facts about node-exporter-plus as it is shipped: what it costs, and what it tells of a node beside CPU and memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::{run, wait_for};
use e2e::memory::Memory;
use e2e::processes::{self, Pid, Signal};
use e2e::{Node, programs};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::pods::{processes_of, statuses};
use crate::scrape::{self, statistics};
use crate::world::World;
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[
    local("the_exporter_tells_how_full_the_hosts_file_systems_are", file_systems),
    local("the_exporter_tells_what_each_card_does", cards),
    local("the_api_server_takes_every_component_for_real_gpu_nodes", components),
    local("a_file_system_that_hangs_holds_up_no_sample", hanging_file_system),
    local("a_day_of_samples_and_a_thousand_scrapes_fit_the_shipped_memory_limit", day_of_samples),
];

const PROGRAM: &str = "node-exporter-plus";
/// Two samples at the shipped interval of 10 s, and time to spare.
const SAMPLES: Duration = Duration::from_secs(60);
/// What the shipped manifest may ask for at most.
const LIMIT: u64 = 12 << 20;
/// Signals of which a day is kept.
const SIGNALS: usize = 16;
/// Where the shipped manifest has the exporter keep its samples, inside a machine.
const FILE: &str = "/run/plimsoll/node-exporter-plus.samples";
/// The user that the exporter runs as.
const USER: &str = "65532:65532";
/// What says of which signals a day is kept; `testing/e2e/deploy/day-of-signals` mounts it.
const CONFIG: &str = "day-of-signals";

/// Machines have the root of this host, and so it must be as full as the kernel says here.
fn file_systems(world: &World) -> Result<()> {
    for node in world.cluster()?.nodes() {
        let told = number_when_told(node, "fs_root_usage_active")?;
        let space = rustix::fs::statvfs("/")?;
        let used = (space.f_blocks - space.f_bfree) as f64;
        let wanted = 100.0 * used / (used + space.f_bavail as f64);
        ensure!((told - wanted).abs() < 2.0, "{}: {told} is told of {wanted}", node.name());
        ensure!(statistics(node)?.contains_key("fs_usage_active"), "nothing is told of the node");
    }
    Ok(())
}

fn cards(world: &World) -> Result<()> {
    let node = &world.cluster()?.nodes()[1];
    occupy(node, 60, 4096)?;
    let told = wait_for("the exporter to tell the busy card", SAMPLES, || {
        let told = statistics(node)?;
        Ok((value(&told, "gpu_2_usage_active") == Some(60.0)).then_some(told))
    });
    occupy(node, 0, 0)?;
    let told = told?;
    let expected = [
        ("gpu_2_mem_usage_active", 25.0),
        ("gpu_2_healthy_active", 1.0),
        ("gpu_0_usage_active", 0.0),
        ("gpu_usage_active", 15.0),
        ("gpu_mem_usage_active", 6.25),
    ];
    for (name, wanted) in expected {
        ensure!(value(&told, name) == Some(wanted), "{name} is not {wanted}: {told:?}");
    }
    let card = &told["gpu_2_usage_active"]["instance"];
    ensure!(*card == node.cards()[2].uuid, "{card}");
    Ok(())
}

/// Has the driver tell this of the node's third card.
pub(crate) fn occupy(node: &Node, utilisation: u64, used_mib: u64) -> Result<()> {
    node.edit_driver(|script| {
        script["cards"][2]["utilisation"] = utilisation.into();
        script["cards"][2]["usedMiB"] = used_mib.into();
    })
}

/// No machine here has NVIDIA's runtime, so nothing of it runs.
fn components(world: &World) -> Result<()> {
    let cluster = world.cluster()?;
    let folder = cluster.settings().sources.join("testing/e2e/deploy/real-gpu-nodes");
    let words = ["apply", "--dry-run=server", "-o", "json", "-k", &folder.to_string_lossy()];
    let taken: Value = serde_json::from_str(&cluster.kubectl_run(&words)?)?;
    let all = taken["items"].as_array().context("no list")?;
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

/// A process that serves a file system and does not answer: whoever asks for its space waits for ever.
fn hanging_file_system(world: &World) -> Result<()> {
    const PLACE: &str = "/var/lib/plimsoll-node/hangs";
    let node = &world.cluster()?.nodes()[1];
    let exporter = process(&pod_on(world, node)?)?;
    fs::create_dir_all(node.path(PLACE))?;
    let script = format!(
        "exec 3<>/dev/fuse; busybox mount -i -t fuse \
         -o fd=3,rootmode=40755,user_id=0,group_id=0,allow_other /dev/fuse {PLACE} && exec cat"
    );
    let server = node.command("sh")?.args(["-c", &script]).stdin(Stdio::piped()).spawn()?;
    let outcome = seen_and_sampled(node, exporter, PLACE);
    end(server)?;
    node.run(&["umount", "--lazy", PLACE])?;
    outcome
}

/// It lives until its standard input ends. Without it the kernel answers in its place: nobody waits any more.
fn end(mut server: Child) -> Result<()> {
    drop(server.stdin.take());
    server.wait().map(drop).context("the server of the file system does not end")
}

fn seen_and_sampled(node: &Node, exporter: Pid, place: &str) -> Result<()> {
    wait_for("the mount to reach the exporter", SAMPLES, || {
        Ok(processes::mounts(exporter)?.contains(&format!("/host/root{place}")).then_some(()))
    })?;
    let asked = node.run(&["timeout", "1", "stat", "--file-system", place]);
    ensure!(asked.is_err(), "the file system answers: {asked:?}");
    for _ in 0..2 {
        let known = sampled(node)?;
        wait_for("a new sample", SAMPLES, || Ok((sampled(node)? != known).then_some(())))?;
    }
    Ok(())
}

/// When the newest sample was taken.
fn sampled(node: &Node) -> Result<String> {
    let told = statistics(node)?;
    let time = told.get("mem_usage_active").and_then(|value| value["timestamp"].as_str());
    time.map(str::to_owned).context("no sample")
}

fn day_of_samples(world: &World) -> Result<()> {
    let node = &world.cluster()?.nodes()[1];
    let day = programs::day(world.cluster()?.settings())?;
    let outcome = keep_a_day(world, node, &day).and_then(|()| within_the_limit(world, node, &day));
    let restored = forget(world, node);
    outcome.and(restored)
}

/// Has the exporters keep a day of as many signals as [`write_day`] writes.
fn keep_a_day(world: &World, node: &Node, day: &Path) -> Result<()> {
    let config = write_day(node, day, "/run/plimsoll/scratch")?;
    node.run(&["rm", "/run/plimsoll/scratch"])?;
    let literal = format!("--from-literal=signals.yaml={config}");
    let cluster = world.cluster()?;
    cluster.kubectl_run(&["-n", "plimsoll", "create", "configmap", CONFIG, &literal])?;
    apply(world, "testing/e2e/deploy/day-of-signals")
}

/// Writes a day of samples that ends now, and returns the configuration by which they are kept.
fn write_day(node: &Node, day: &Path, file: &str) -> Result<String> {
    run(node.command(day)?.args([file, &SIGNALS.to_string()]))
}

fn within_the_limit(world: &World, node: &Node, day: &Path) -> Result<()> {
    write_day(node, day, FILE)?;
    node.run(&["chown", USER, FILE])?;
    let pod = restarted(world, node)?;
    let exporter = process(&pod)?;
    whole_days(node)?;
    for scrape in 0..1_000 {
        scrape::get(node, ["/metrics", "/statistics", "/v1/statistics"][scrape % 3])?;
    }
    whole_days(node)?;
    let memory = Memory::of(exporter)?;
    world.figure("exporter_with_a_day_most_bytes", memory.most.to_string());
    ensure!(memory.limit <= LIMIT, "the limit is {}", memory.limit);
    ensure!(memory.most < memory.limit, "{memory:?}");
    ensure!((memory.refused, memory.killed) == (0, 0), "{memory:?}");
    let now = pod_on(world, node)?;
    ensure!(restarts(&now) == restarts(&pod), "the container was restarted meanwhile");
    ensure!(process(&now)? == exporter, "the process is another");
    Ok(())
}

/// Every signal of the file has a day that is known almost whole.
fn whole_days(node: &Node) -> Result<()> {
    let told = statistics(node)?;
    let days = told.iter().filter(|(name, _)| name.ends_with("_max_avg_1d"));
    let whole = days.filter(|(_, day)| day["coverage"].as_f64().is_some_and(|share| share > 0.99));
    let names: Vec<&String> = whole.map(|(name, _)| name).collect();
    ensure!(names.len() == SIGNALS, "{} days are whole: {names:?}", names.len());
    Ok(())
}

/// Takes the configuration away again, and the samples that never were.
fn forget(world: &World, node: &Node) -> Result<()> {
    apply(world, "testing/e2e/deploy/shipped")?;
    let words = ["-n", "plimsoll", "delete", "configmap", CONFIG, "--ignore-not-found"];
    world.cluster()?.kubectl_run(&words)?;
    node.run(&["rm", "-f", FILE])?;
    restarted(world, node).map(drop)
}

/// Applies a folder and waits for exporters and annotator to be as it says.
pub(crate) fn apply(world: &World, folder: &str) -> Result<()> {
    let cluster = world.cluster()?;
    let folder = cluster.settings().sources.join(folder);
    cluster.kubectl_run(&["apply", "-k", &folder.to_string_lossy()])?;
    for workload in ["daemonset/node-exporter-plus", "deployment/annotator"] {
        let wanted = ["-n", "plimsoll", "rollout", "status", workload, "--timeout=90s"];
        cluster.kubectl_run(&wanted)?;
    }
    Ok(())
}

/// Kills the exporter, which has no time to save what it knows, and waits for the next one to be ready.
fn restarted(world: &World, node: &Node) -> Result<Pod> {
    let before = pod_on(world, node)?;
    processes::signal(process(&before)?, Signal::KILL)?;
    wait_for("the exporter to return", Duration::from_secs(120), || {
        let pod = pod_on(world, node)?;
        let anew = restarts(&pod) > restarts(&before) && statuses(&pod).iter().all(|s| s.ready);
        Ok(anew.then_some(pod))
    })
}

fn restarts(pod: &Pod) -> i32 {
    statuses(pod).iter().map(|status| status.restart_count).sum()
}

/// The exporter's pod on a node.
fn pod_on(world: &World, node: &Node) -> Result<Pod> {
    let pods = world.program_pods(PROGRAM)?;
    let here = |pod: &Pod| crate::pods::node(pod) == Some(node.name());
    let mut found = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    found.find(here).with_context(|| format!("no exporter runs on {}", node.name()))
}

/// The exporter itself, among the processes of its container.
fn process(pod: &Pod) -> Result<Pid> {
    let all = processes_of(pod, PROGRAM)?;
    let named =
        |pid: &Pid| processes::arguments(*pid).first().is_some_and(|p| p.ends_with(PROGRAM));
    all.into_iter().find(named).context("the exporter does not run")
}

fn number_when_told(node: &Node, name: &str) -> Result<f64> {
    wait_for(&format!("{name} of {}", node.name()), SAMPLES, || Ok(value(&statistics(node)?, name)))
}

fn value(told: &BTreeMap<String, Value>, name: &str) -> Option<f64> {
    told.get(name)?["value"].as_f64()
}
