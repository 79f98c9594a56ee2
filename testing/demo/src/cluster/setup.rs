//! What every node has before anything runs: its object, its scripted GPUs, and the CDI specification that NVIDIA's
//! toolkit would write.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use sim::Sim;
use sim::kubelet::KubeletSettings;

use super::ports::{Ports, loopback};
use crate::model::nodes::{FLEET, GPU_MIB, GPU_RESOURCE, NodePlan, POOL, device_path, gpu_uuid};

/// Creates the Node objects. Returns the port of each node's exporter.
///
/// # Errors
/// When no port is free.
pub(super) fn create_nodes(
    sim: &Sim,
    ports: &mut Ports,
) -> anyhow::Result<BTreeMap<&'static str, u16>> {
    let mut exporter_ports = BTreeMap::new();
    for plan in &FLEET {
        let port = ports.take()?;
        let node = sim::node(plan.name)
            .address("127.0.0.1")
            .label("kubernetes.io/hostname", plan.name)
            .annotation("plimsoll.dev/exporter", loopback(port))
            .with("cpu", plan.cpus)
            .with("pods", 110);
        let node = if plan.in_pool { node.label("pool", POOL) } else { node };
        let mut node: Value = node.into();
        for part in ["capacity", "allocatable"] {
            node["status"][part]["memory"] = format!("{}Gi", plan.cpus * 2).into();
        }
        if plan.gpus > 0 {
            node["spec"]["taints"] = json!([{"key": GPU_RESOURCE, "effect": "NoSchedule"}]);
        }
        sim.put(node);
        exporter_ports.insert(plan.name, port);
    }
    Ok(exporter_ports)
}

/// Makes a node's directory `root/NODE` with the script of its GPUs, NVIDIA's CDI specification and this machine's
/// `/sys`. `index` is the node's in [`FLEET`].
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write_node_files(
    root: &Path,
    index: usize,
    plan: &NodePlan,
) -> anyhow::Result<KubeletSettings> {
    let root = root.join(plan.name);
    let cdi_dir = root.join("var/run/cdi");
    fs::create_dir_all(&cdi_dir)?;
    symlink("/sys", root.join("sys"))?;
    if plan.gpus > 0 {
        let gpus: Vec<Value> = (0..plan.gpus)
            .map(|gpu| {
                json!({
                    "uuid": gpu_uuid(index, gpu), "model": "NVIDIA A10 (scripted)",
                    "memoryMiB": GPU_MIB, "minor": gpu, "utilisation": 0, "temperature": 40,
                })
            })
            .collect();
        let script = json!({"driver": "580.1", "cards": gpus});
        fs::write(root.join("nvml-script.json"), script.to_string())?;
        fs::write(cdi_dir.join("nvidia.com-gpu.json"), nvidia_cdi(index, plan).to_string())?;
    }
    let node = plan.name.to_owned();
    let root = root.join("var/lib/kubelet");
    Ok(KubeletSettings { node, root, cdi_dir, resource: GPU_RESOURCE.to_owned() })
}

fn nvidia_cdi(index: usize, plan: &NodePlan) -> Value {
    let devices: Vec<Value> = (0..plan.gpus)
        .map(|gpu| {
            json!({
                "name": gpu_uuid(index, gpu),
                "containerEdits": {"deviceNodes": [{"path": device_path(gpu)}]},
            })
        })
        .collect();
    let of_all = json!([{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]);
    json!({
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
        "containerEdits": {"deviceNodes": of_all},
    })
}
