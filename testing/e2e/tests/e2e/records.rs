//! Owns what the kubelet itself wrote down about devices: its checkpoint file, which it reads back after a restart.

use std::fs;

use anyhow::{Context, Result};
use e2e::Node;
use serde_json::Value;

/// The kubelet's file.
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

/// The devices of one container.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) pod_uid: String,
    pub(crate) container: String,
    pub(crate) ids: Vec<String>,
}

/// Everything that this node's kubelet says is held.
pub(crate) fn of(node: &Node) -> Result<Vec<Held>> {
    let path = node.path(CHECKPOINT);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let checkpoint: Value = serde_json::from_str(&text)?;
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array();
    Ok(entries.into_iter().flatten().map(held).collect())
}

fn held(entry: &Value) -> Held {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let by_numa = entry["DeviceIDs"].as_object();
    let ids = by_numa.into_iter().flat_map(|numa| numa.values()).filter_map(Value::as_array);
    Held {
        pod_uid: text("PodUID"),
        container: text("ContainerName"),
        ids: ids.flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
    }
}

impl Held {
    /// Whether every id is one of this card's: an id begins with the card's first eight digits.
    pub(crate) fn all_on(&self, uuid: &str) -> bool {
        let digits = uuid.get(4..12).unwrap_or(uuid);
        !self.ids.is_empty() && self.ids.iter().all(|id| id.starts_with(digits))
    }
}
