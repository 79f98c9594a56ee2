//! Owns the kubelet's checkpoint of devices: the file that it reads after a restart.

use std::fs;

use anyhow::{Context, Result};
use e2e::Node;
use serde_json::Value;

/// The file, inside a node.
pub(crate) const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

/// The device ids of one container.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) pod_uid: String,
    pub(crate) container: String,
    pub(crate) ids: Vec<String>,
}

/// The device ids of all containers in this node's checkpoint.
pub(crate) fn read(node: &Node) -> Result<Vec<Held>> {
    let path = node.path(CHECKPOINT);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let checkpoint: Value = serde_json::from_str(&text)?;
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array();
    Ok(entries.into_iter().flatten().map(held).collect())
}

fn held(entry: &Value) -> Held {
    let by_numa = entry["DeviceIDs"].as_object();
    let ids = by_numa.into_iter().flat_map(|numa| numa.values()).filter_map(Value::as_array);
    Held {
        pod_uid: field(entry, "PodUID"),
        container: field(entry, "ContainerName"),
        ids: ids.flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
    }
}

fn field(entry: &Value, name: &str) -> String {
    entry[name].as_str().unwrap_or_default().to_owned()
}

impl Held {
    /// How many of the ids are of this GPU: an id begins with the first eight digits of its GPU's UUID.
    pub(crate) fn on(&self, uuid: &str) -> u64 {
        let digits = uuid.get(4..12).unwrap_or(uuid);
        self.ids.iter().filter(|id| id.starts_with(digits)).count() as u64
    }
}
