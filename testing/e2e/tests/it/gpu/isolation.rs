//! Tests of how a container is held to its share of a GPU, as far as that shows without a GPU: what runc gets, what
//! NVIDIA's hook is called with, and what of MPS the container sees.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use e2e::kernel::processes;
use e2e::node::gpus::DRIVER;
use e2e::progress::line;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::Api;
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::counted;
use crate::support::gpu_audit::{audit_exactly, visible_gpu};
use crate::support::pods::{
    START, create, delete_all, gpu_container, on_node, pod, process_of, running, statuses,
    unschedulable,
};
use crate::support::policy::{self, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("nvidias_hook_gets_the_containers_share_from_what_runc_gets", driver).takes(21),
    on_our_nodes("a_pod_that_asks_for_mps_gets_its_pipes_and_its_limits", mps).takes(1),
    on_our_nodes(
        "a_client_of_mps_can_make_and_remove_nothing_where_its_pipes_are",
        pipes_are_the_daemons,
    )
    .takes(1),
    on_our_nodes(
        "a_pod_with_shared_memory_of_its_own_keeps_it_or_is_refused_where_it_asks_for_mps",
        own_shared_memory,
    )
    .takes(14),
    on_our_nodes("a_limit_leaves_the_cdi_specification_with_its_last_pod", limits_are_dropped)
        .takes(10),
    on_our_nodes("a_pod_whose_hook_is_gone_from_its_node_counts_against_the_node", hook_is_gone)
        .takes(30),
    on_our_nodes("the_mps_client_of_a_deleted_pod_is_terminated", clients_are_terminated).takes(10),
];

/// The size of the memory that MPS's servers and clients share, in bytes.
const SHARED_MEMORY: u64 = 1 << 30;

/// The size of the file system of the daemon's pipes, in bytes.
const PIPES: u64 = 1 << 20;

/// The device plugin's own CDI specification, on a node.
const OWN_SPEC: &str = "/var/run/cdi/plimsoll.dev-gpu-mem.json";

/// Where the stand-in of MPS's control daemon has its clients, and notes what it is told.
const DAEMON: &str = "/run/plimsoll-mps/pipes/daemon";

/// The device plugin looks at driver, toolkit and control groups every 10 seconds.
const FOUND_OUT: Duration = Duration::from_secs(180);

/// On a node whose driver and container toolkit seem to limit memory. `nvidia-ctk` is a stand-in that notes its calls.
fn driver(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let _version_2 = Version2::of_control_groups()?;
    host.set_memory_limits(true)?;
    let may_grow =
        format!("{OURS}  gpu: {{beyondUnits: [{{namespaces: [\"*\"], allow: [memoryLimit]}}]}}\n");
    let tried = enforceable(env, host, "driver").and_then(|()| {
        policy::with(env, &may_grow, || {
            let mut limited = pod("limited", &[gpu_container("main", 3)]);
            limited["metadata"]["annotations"] =
                json!({"plimsoll.dev/gpu-isolation": "driver", "plimsoll.dev/gpu-mem-limit": "5"});
            create(env, on_node(host, limited))?;
            let pod = running(env, "limited", START)?;
            audit_exactly(env, 1)?;
            held_by_the_driver(host, &pod)
        })
    });
    let restored = host.set_memory_limits(false).and_then(|()| enforceable(env, host, "mps"));
    tried.and(restored)
}

/// NVIDIA's program of a hook is gone, as after an upgrade of its toolkit: containers with a GPU do not start, and
/// what runc, containerd and the kubelet say of that counts.
fn hook_is_gone(env: &TestEnv) -> Result<()> {
    const REFUSED: &str = "plimsoll_extender_refused_gpu_pods_total";
    let host = &env.cluster()?.nodes()[1];
    host.set_memory_limits(true)?;
    let tried = fs::remove_file(host.path(DRIVER).join("nvidia-ctk"))
        .context("cannot remove the hook's program")
        .and_then(|()| {
            let before = counted(env, REFUSED)?;
            create(env, on_node(host, pod("hookless", &[gpu_container("main", 1)])))?;
            wait_for("the pod to count against its node", START, || {
                Ok((counted(env, REFUSED)? > before).then_some(()))
            })
        });
    let restored = host.set_memory_limits(false).and_then(|()| enforceable(env, host, "mps"));
    tried.and(restored)
}

/// Control groups of version 2, which the driver limits alone. On a host with version 1, a folder has the name of the
/// file by which the device plugin tells them; what else reads control groups looks for a file.
struct Version2 {
    pretended: bool,
}

const OF_VERSION_2: &str = "/sys/fs/cgroup/cgroup.controllers";

impl Version2 {
    fn of_control_groups() -> Result<Self> {
        let pretended = !Path::new(OF_VERSION_2).exists();
        if pretended {
            line("this host's control groups are of version 1: version 2 is pretended");
            fs::create_dir(OF_VERSION_2)?;
        }
        Ok(Self { pretended })
    }
}

impl Drop for Version2 {
    fn drop(&mut self) {
        if self.pretended {
            let _ = fs::remove_dir(OF_VERSION_2);
        }
    }
}

fn held_by_the_driver(host: &Node, pod: &Pod) -> Result<()> {
    let wanted = ["NVIDIA_GPU_MEMORY_LIMIT=5120", "NVIDIA_GPU_MEMORY_REQUEST=0"];
    let container = container_id(pod)?;
    let spec = host.oci_spec(container)?;
    ensure!(limits(&spec) == wanted, "runc got {:?}", limits(&spec));
    let process = process_of(pod, "main")?;
    let gpu = visible_gpu(process)?;
    let called = format!("hook apply-cuda-memory-limits --gpu-id {gpu}");
    let hooks = spec["hooks"]["createRuntime"].as_array().context("runc got no hooks")?;
    ensure!(
        hooks.len() == 1 && words(&hooks[0]["args"]) == format!("nvidia-ctk {called}"),
        "{hooks:?}"
    );
    let noted = host.hook_calls(container)?;
    let arguments = noted.first();
    let mut variables = noted[1..].to_vec();
    variables.sort();
    let quoted = wanted.map(|variable| format!("\"{variable}\""));
    ensure!(
        arguments == Some(&called) && variables == quoted,
        "the hook was called with {noted:?}"
    );
    Ok(())
}

/// The variables of the driver's limit in an OCI specification, sorted.
fn limits(spec: &Value) -> Vec<&str> {
    let env = spec["process"]["env"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut limits: Vec<_> = env.filter(|name| name.starts_with("NVIDIA_GPU_MEMORY")).collect();
    limits.sort_unstable();
    limits
}

fn words(arguments: &Value) -> String {
    let words = arguments.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join(" ")
}

/// The daemon of `mps.enabled` is a stand-in, which makes its pipes and holds one open.
fn mps(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut shared = pod("shared", &[gpu_container("main", 4)]);
    shared["metadata"]["annotations"] =
        json!({"plimsoll.dev/gpu-isolation": "mps", "plimsoll.dev/gpu-cores": "25"});
    create(env, on_node(host, shared))?;
    let pod = running(env, "shared", START)?;
    audit_exactly(env, 1)?;
    let process = process_of(&pod, "main")?;
    let environment = processes::environ(process)?;
    let of_mps: BTreeMap<&str, &str> = environment
        .iter()
        .filter(|(name, _)| name.starts_with("CUDA_MPS"))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let wanted = BTreeMap::from([
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/run/nvidia-mps"),
    ]);
    ensure!(of_mps == wanted, "its process has {of_mps:?}");
    let mounts = processes::mounts(process)?;
    for mounted in ["/run/nvidia-mps", "/dev/shm"] {
        ensure!(mounts.iter().any(|mount| mount == mounted), "no {mounted} in {mounts:?}");
    }
    let root = processes::root(process);
    let pipe = root.join("run/nvidia-mps/control");
    ensure!(pipe.exists(), "the container does not see the daemon's pipe");
    let shared = root.join("dev/shm");
    let mode = fs::metadata(&shared)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o1777, "not every user may write to /dev/shm: {mode:o}");
    let system = rustix::fs::statvfs(&shared)?;
    let size = system.f_blocks * system.f_frsize;
    ensure!(size == SHARED_MEMORY, "/dev/shm is none of its own: it has {size} bytes");
    Ok(())
}

/// A client that is root in its container tries to replace the daemon's pipe. It does not see the daemon's other
/// entries, of which `control_privileged` would let it end the daemon and limit the others.
fn pipes_are_the_daemons(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut container = gpu_container("main", 4);
    container["image"] = json!(BUSYBOX);
    let tries = "cd /run/nvidia-mps; touch file; mkdir folder; mkfifo pipe; ln -s /tmp/mine link; mv control moved; rm -f control; \
                 touch /dev/shm/tried; exec sleep 1000000";
    container["command"] = json!(["sh", "-c", tries]);
    let mut client = pod("client", &[container]);
    client["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-isolation": "mps"});
    create(env, on_node(host, client))?;
    let pod = running(env, "client", START)?;
    let process = process_of(&pod, "main")?;
    let root = processes::root(process);
    let tried = root.join("dev/shm/tried");
    wait_for("the client's tries", START, || Ok(tried.exists().then_some(())))?;
    fs::remove_file(tried)?;
    let found = fs::read_dir(root.join("run/nvidia-mps"))?;
    let found: Vec<_> = found.flatten().map(|entry| entry.file_name()).collect();
    ensure!(found == ["control"], "the client has left {found:?}");
    let pipes = rustix::fs::statvfs(root.join("run/nvidia-mps"))?;
    let size = pipes.f_blocks * pipes.f_frsize;
    ensure!(size == PIPES, "the pipes are in no file system of their own: it has {size} bytes");
    Ok(())
}

fn own_shared_memory(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut asks = with_memory(host, "asks");
    asks["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-isolation": "mps"});
    create(env, asks)?;
    let told = unschedulable(env, "asks", START)?;
    ensure!(told.contains("or the pod mounts a /dev/shm"), "{told}");
    create(env, with_memory(host, "keeps"))?;
    let pod = running(env, "keeps", START)?;
    let process = process_of(&pod, "main")?;
    let system = rustix::fs::statvfs(processes::root(process).join("dev/shm"))?;
    let size = system.f_blocks * system.f_frsize;
    ensure!(size == 64 << 20, "its own /dev/shm has {size} bytes");
    Ok(())
}

fn with_memory(host: &Node, name: &str) -> Value {
    let mut container = gpu_container("main", 4);
    container["volumeMounts"] = json!([{"name": "memory", "mountPath": "/dev/shm"}]);
    let mut pod = on_node(host, pod(name, &[container]));
    pod["spec"]["volumes"] =
        json!([{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}]);
    pod
}

fn limits_are_dropped(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut limited = pod("limited", &[gpu_container("main", 3)]);
    limited["metadata"]["annotations"] =
        json!({"plimsoll.dev/gpu-isolation": "mps", "plimsoll.dev/gpu-cores": "17"});
    create(env, on_node(host, limited))?;
    running(env, "limited", START)?;
    ensure!(has_limit(host)?, "a running container's limit is not in {OWN_SPEC}");
    delete_all(env, ["limited"])?;
    wait_for(
        "the limit to leave the specification",
        START,
        || Ok((!has_limit(host)?).then_some(())),
    )
}

/// A client that ignores SIGTERM. The stand-in terminates nothing; what it is told is looked at.
fn clients_are_terminated(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut container = gpu_container("main", 4);
    container["image"] = json!(BUSYBOX);
    container["command"] = json!(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    let mut client = on_node(host, pod("client", &[container]));
    client["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-isolation": "mps"});
    client["spec"]["terminationGracePeriodSeconds"] = json!(4);
    create(env, client)?;
    let pod = running(env, "client", START)?;
    let number = processes::number_in(host.init()?, process_of(&pod, "main")?)?;
    // Process 1 is of no pod.
    let clients = format!("printf '1\\n{number}\\n' > {DAEMON}/clients; : > {DAEMON}/told");
    host.run(&["sh", "-c", &clients])?;
    delete_all(env, ["client"])?;
    let terminated = wait_for("the client and no other to be terminated", START, || {
        let told = host.run(&["cat", &format!("{DAEMON}/told")])?;
        let terminated: BTreeSet<&str> =
            told.lines().filter_map(|line| line.strip_prefix("terminate_client 42 ")).collect();
        Ok((terminated == BTreeSet::from([number.to_string().as_str()])).then_some(()))
    });
    let emptied = host.run(&["sh", "-c", &format!(": > {DAEMON}/clients")]).map(drop);
    terminated.and(emptied)
}

fn has_limit(host: &Node) -> Result<bool> {
    Ok(host.run(&["cat", OWN_SPEC])?.contains("\"mps-1-3072-17\""))
}

/// Waits until the Node says that this mode is the strongest that can be enforced on its GPUs.
fn enforceable(env: &TestEnv, host: &Node, mode: &str) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    wait_for(&format!("{} to be able to limit memory by {mode}", host.name()), FOUND_OUT, || {
        let node = env.block_on(nodes.get(host.name()))?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        let gpus = annotations.get("plimsoll.dev/gpu-cards").context("no GPUs")?;
        let gpus: Value = serde_json::from_str(gpus)?;
        Ok((gpus[0]["isolation"] == mode).then_some(()))
    })
}

/// The id of the pod's container `main`.
fn container_id(pod: &Pod) -> Result<&str> {
    let status = statuses(pod).iter().find(|status| status.name == "main");
    let id = status.and_then(|status| status.container_id.as_deref()).context("no container")?;
    id.strip_prefix("containerd://").context("not a container of containerd")
}
