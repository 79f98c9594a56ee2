//! Tests of the nodes themselves, which every other test relies on.

use anyhow::{Result, ensure};
use e2e::Load;
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use e2e::kernel::processes;
use serde_json::json;

use crate::env::TestEnv;
use crate::support::pods::{START, all_running, create, idle_container, pod, processes_of};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_containers_process_is_found_and_shows_its_environment", process_is_found)
        .takes(16),
    on_our_nodes("a_held_kubelet_stays_down_and_returns_when_released", kubelet_is_held).takes(1),
    on_our_nodes("two_nodes_show_two_different_loads_at_the_same_path", loads_differ).takes(3),
];

fn process_is_found(env: &TestEnv) -> Result<()> {
    let mut container = idle_container("main");
    container["env"] = json!([{"name": "MARK", "value": "seen"}]);
    create(env, pod("found", &[container]))?;
    let pods = all_running(env, START)?;
    let processes = processes_of(&pods[0], "main")?;
    ensure!(processes.len() == 1, "one process is expected: {processes:?}");
    let environment = processes::environ(processes[0])?;
    ensure!(environment.get("MARK").is_some_and(|value| value == "seen"), "{environment:?}");
    let ignored = processes::ignored_signals(processes[0]);
    ensure!(ignored == Some(0), "it ignores signals, as under nohup: {ignored:?}");
    let devices = processes::device_nodes(processes[0])?;
    ensure!(devices.iter().any(|name| name == "null"), "{devices:?}");
    ensure!(
        !devices.iter().any(|name| name.starts_with("nvidia")),
        "the pod requests no card: {devices:?}"
    );
    Ok(())
}

fn kubelet_is_held(env: &TestEnv) -> Result<()> {
    let node = &env.cluster()?.nodes()[1];
    let before = node.service("kubelet")?;
    node.hold("kubelet")?;
    ensure!(node.service("kubelet")?.is_none(), "the kubelet still runs");
    node.release("kubelet")?;
    let after = wait_for("the kubelet to return", START, || node.service("kubelet"))?;
    ensure!(before != Some(after), "the kubelet was never restarted");
    Ok(())
}

/// Each node's memory is read by a pod that mounts the host's /proc, as the exporter does.
fn loads_differ(env: &TestEnv) -> Result<()> {
    let [first, second] = env.cluster()?.nodes() else { anyhow::bail!("two nodes are expected") };
    first.set_load(Load { cpu: 0.1, memory: 0.25 })?;
    second.set_load(Load { cpu: 0.1, memory: 0.75 })?;
    for node in env.cluster()?.nodes() {
        let mut watcher = pod(&format!("proc-on-{}", node.name()), &[reader()]);
        watcher["spec"]["nodeName"] = json!(node.name());
        watcher["spec"]["volumes"] = json!([{"name": "proc", "hostPath": {"path": "/proc"}}]);
        create(env, watcher)?;
    }
    all_running(env, START)?;
    let wanted = [("proc-on-node-a", "25165824 kB"), ("proc-on-node-b", "8388608 kB")];
    wait_for("the pods to read the loads", START, || {
        for (name, value) in wanted {
            let logs = ["-n", crate::env::NAMESPACE, "logs", "--tail=1", name];
            if !env.cluster()?.kubectl_run(&logs)?.contains(value) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

fn reader() -> serde_json::Value {
    json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "while sleep 0.2; do grep MemAvailable /host/proc/meminfo; done"],
        "volumeMounts": [{"name": "proc", "mountPath": "/host/proc", "readOnly": true}],
    })
}
