//! What every node is given before anything runs: its object, its script of cards, and the CDI
//! specification that NVIDIA's toolkit would make.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sim::Sim;
use sim::kubelet::KubeletSettings;

use crate::fleet::{self, CARD_MIB, FLEET, GPU_MEM, NodePlan, POOL};
use crate::ports::Ports;
use crate::world::local;

/// Creates the Node objects; tells where each one's exporter is to answer.
pub(crate) fn place_nodes(
    sim: &Sim,
    ports: &mut Ports,
) -> anyhow::Result<BTreeMap<&'static str, u16>> {
    let mut exporters = BTreeMap::new();
    for plan in &FLEET {
        let port = ports.take()?;
        let node = sim::node(plan.name)
            .address("127.0.0.1")
            .label("kubernetes.io/hostname", plan.name)
            .annotation("plimsoll.dev/exporter", local(port))
            .with("cpu", plan.cpus)
            .with("pods", 110);
        let node = if plan.in_pool { node.label("pool", POOL) } else { node };
        let mut node: Value = node.into();
        for part in ["capacity", "allocatable"] {
            node["status"][part]["memory"] = format!("{}Gi", plan.cpus * 2).into();
        }
        if plan.cards > 0 {
            node["spec"]["taints"] = json!([{"key": GPU_MEM, "effect": "NoSchedule"}]);
        }
        sim.put(node);
        exporters.insert(plan.name, port);
    }
    Ok(exporters)
}

/// Makes a node's directory.
pub(crate) fn furnish(
    root: &Path,
    place: usize,
    plan: &NodePlan,
) -> anyhow::Result<KubeletSettings> {
    let home = root.join(plan.name);
    let cdi_dir = home.join("cdi");
    fs::create_dir_all(&cdi_dir)?;
    if plan.cards > 0 {
        let card = |card: usize| {
            json!({
                "uuid": fleet::uuid(place, card), "model": "NVIDIA A10 (scripted)",
                "memoryMiB": CARD_MIB, "minor": card, "utilisation": 0, "temperature": 40,
            })
        };
        let cards: Vec<Value> = (0..plan.cards).map(card).collect();
        let script = json!({"driver": "580.1", "cards": cards});
        fs::write(home.join("nvml-script.json"), script.to_string())?;
        fs::write(cdi_dir.join("nvidia.com-gpu.json"), nvidia_spec(place, plan).to_string())?;
    }
    let node = plan.name.to_owned();
    Ok(KubeletSettings { node, root: home, cdi_dir, resource: GPU_MEM.to_owned() })
}

fn nvidia_spec(place: usize, plan: &NodePlan) -> Value {
    let device = |card: usize| {
        json!({
            "name": fleet::uuid(place, card),
            "containerEdits": {"deviceNodes": [{"path": fleet::device(card)}]},
        })
    };
    let devices: Vec<Value> = (0..plan.cards).map(device).collect();
    json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
}
