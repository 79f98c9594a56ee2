//! Tests of what is told about the processes on GPUs: the driver's list joined with pods and containers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::kernel::processes::{Pid, number_in};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::pods::{
    START, all_running, create, gpu_container, idle_container, name, on_node, pod, processes_of,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "the_driver_s_processes_are_shown_under_the_pods_and_containers_that_they_run_in",
    processes_by_container,
)
.takes(5)];

const PROGRAM: &str = "gpushare-device-plugin";
const ADMIN_PORT: u16 = 19104;
const MEMORY: &str = "plimsoll_gpu_memory_used_bytes";
const SM: &str = "plimsoll_gpu_sm_used_ratio";
const MIB: u64 = 1 << 20;
/// Three looks of the device plugin, and time for a busy host.
const SHOWN: Duration = Duration::from_secs(180);

/// A process on the first GPU, as the driver tells of it, and the labels under which it is to be shown.
struct Wanted {
    pid: i32,
    mib: u64,
    sm: u64,
    labels: Vec<String>,
}

/// Two containers of a pod that asks for GPU memory, one of a pod that does not, and a process of the node itself.
fn processes_by_container(env: &TestEnv) -> Result<()> {
    let node = &env.cluster()?.nodes()[0];
    create(
        env,
        on_node(node, pod("shares", &[gpu_container("train", 2), gpu_container("side", 1)])),
    )?;
    create(env, on_node(node, pod("bare", &[idle_container("main")])))?;
    let pods = all_running(env, START)?;
    let kubelet = node.service("kubelet")?.context("the kubelet does not run")?;
    let unmanaged = vec![r#"owner="unmanaged""#.to_owned(), r#"pod="""#.to_owned()];
    let wanted = [
        in_container(node, find_pod(&pods, "shares")?, "train", 1900, 61)?,
        in_container(node, find_pod(&pods, "shares")?, "side", 700, 5)?,
        in_container(node, find_pod(&pods, "bare")?, "main", 5000, 33)?,
        Wanted { pid: number_in(node.init()?, kubelet)?, mib: 300, sm: 1, labels: unmanaged },
    ];
    set_processes(node, &wanted.iter().map(told).collect())?;
    let shown = wait_for("each process to be shown", SHOWN, || {
        let page = page_of(env, node)?;
        Ok(wanted.iter().all(|wanted| is_shown(&page, wanted)).then_some(page))
    });
    set_processes(node, &Value::Null)?;
    let page = match shown {
        Ok(page) => page,
        Err(error) => return Err(error.context(rows(&page_of(env, node)?).join("\n"))),
    };
    let of_gpu = rows(&page).into_iter().filter(|row| row.starts_with(MEMORY));
    ensure!(of_gpu.count() == wanted.len(), "other rows: {:?}", rows(&page));
    Ok(())
}

fn find_pod<'pod>(pods: &'pod [Pod], wanted: &str) -> Result<&'pod Pod> {
    pods.iter().find(|pod| name(pod) == wanted).context("no such pod")
}

fn in_container(node: &Node, pod: &Pod, container: &str, mib: u64, sm: u64) -> Result<Wanted> {
    let processes = processes_of(pod, container)?;
    let pid: Pid = *processes.first().context("no process")?;
    let gpu = &node.gpus()[0];
    let labels = [
        format!(r#"UUID="{}",device="nvidia{}",modelName="NVIDIA A10""#, gpu.uuid, gpu.minor),
        format!(r#"Hostname="{}""#, node.name()),
        format!(
            r#"container="{container}",namespace="{NAMESPACE}",pod="{}",owner="pod""#,
            name(pod)
        ),
    ];
    Ok(Wanted { pid: number_in(node.init()?, pid)?, mib, sm, labels: labels.into() })
}

fn told(wanted: &Wanted) -> Value {
    json!({"pid": wanted.pid, "usedBytes": wanted.mib * MIB, "sm": wanted.sm})
}

/// Sets what the driver tells of the processes on the node's first GPU.
fn set_processes(node: &Node, processes: &Value) -> Result<()> {
    node.edit_driver(|script| script["cards"][0]["processes"] = processes.clone())
}

fn page_of(env: &TestEnv, node: &Node) -> Result<String> {
    let pages = env.metrics_of_each(PROGRAM, ADMIN_PORT)?;
    let of_node = format!(r#"Hostname="{}""#, node.name());
    Ok(pages.into_values().find(|page| page.contains(&of_node)).unwrap_or_default())
}

fn rows(page: &str) -> Vec<String> {
    page.lines()
        .filter(|line| {
            [MEMORY, SM, "plimsoll_gpu_processes_unknown"]
                .iter()
                .any(|metric| line.starts_with(metric))
        })
        .map(str::to_owned)
        .collect()
}

/// Whether memory and SM use are within 2% of what the driver tells.
fn is_shown(page: &str, wanted: &Wanted) -> bool {
    is_near(page, MEMORY, &wanted.labels, (wanted.mib * MIB) as f64)
        && is_near(page, SM, &wanted.labels, wanted.sm as f64 / 100.0)
}

fn is_near(page: &str, metric: &str, labels: &[String], told: f64) -> bool {
    let mut lines = page.lines().filter(|line| line.starts_with(metric));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label.as_str())));
    let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    value.is_some_and(|value| (value - told).abs() <= told * 0.02)
}
