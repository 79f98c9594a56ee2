//! `plimsoll cordon` and `uncordon`: a GPU takes no new pods, or takes them again.
//!
//! The Node's annotation `plimsoll.dev/cordoned-gpus` lists UUIDs, and the device plugin of the node closes their
//! GPUs. Not indexes: those of the other GPUs move when one is gone at a boot. Where the device plugin also keeps
//! Aliyun's ConfigMap `unhealthy-gpu-NODE`, it lists the GPUs' indexes of the moment there itself.
//!
//! Invariant: other UUIDs stay; the API server refuses a write where the Node has changed since it was read.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Result, bail};
use api::cordoned;
use api::gpus::{Gpu, Gpus};
use placement::names::Names;
use placement::units::GpuId;
use serde_json::json;

use crate::args::gpus::Cordon;
use crate::cluster_access::objects::Node;
use crate::cluster_access::{Failure, Kubectl};
use crate::format::printable;

/// How often the write is tried: the kubelet and Plimsoll's programs write Nodes, too.
const TRIES: usize = 5;

/// What is to be done with a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It takes no new pods.
    Cordoned,
    /// It takes pods.
    Open,
}

/// Takes a GPU out of use, or back into use.
///
/// # Errors
///
/// If the node has no such GPU, or the annotation cannot be written.
pub(crate) fn cordon(flags: &Cordon, wanted: Wanted, output: &mut dyn Write) -> Result<()> {
    let kubectl = Kubectl::new(&flags.connection);
    let key = Names::default().cordoned_gpus();
    for tried in 1.. {
        let node: Node = kubectl.get(&["node", &flags.node])?;
        let before = cordoned::parse(node.metadata.annotations.get(&key).map_or("", |it| it));
        let uuid = uuid_of(&node, &flags.gpu, &before, wanted)?;
        let gpu = format!("GPU {} of {}", flags.gpu, flags.node);
        let Some(after) = changed(&before, &uuid, wanted) else {
            let state = match wanted {
                Wanted::Cordoned => "takes no new pods",
                Wanted::Open => "is not cordoned",
            };
            writeln!(output, "{gpu} {state} already")?;
            return Ok(());
        };
        let verb = if wanted == Wanted::Cordoned { "cordoned" } else { "uncordoned" };
        let text = cordoned::text(&after);
        if flags.dry_run {
            let list = printable(text.as_deref().unwrap_or("none"));
            writeln!(output, "{gpu} would be {verb}: Node {}, {key}: {list}", flags.node)?;
            return Ok(());
        }
        match write(&kubectl, &node, &key, text.as_deref()) {
            Err(Failure::Conflict(_)) if tried < TRIES => continue,
            written => written?,
        }
        writeln!(output, "{gpu} {verb}")?;
        if wanted == Wanted::Cordoned {
            let node = &flags.node;
            writeln!(
                output,
                "Pods that are on it go on. `kubectl plimsoll gpus {node}` shows them."
            )?;
        }
        break;
    }
    Ok(())
}

/// The UUID of a GPU that is named by its index or its UUID. One that is gone can be uncordoned by its UUID.
fn uuid_of(node: &Node, gpu: &str, before: &BTreeSet<GpuId>, wanted: Wanted) -> Result<GpuId> {
    if let Some(listed) = before.iter().find(|uuid| uuid.as_str() == gpu)
        && wanted == Wanted::Open
    {
        return Ok(listed.clone());
    }
    let name = &node.metadata.name;
    let Some(text) = node.metadata.annotations.get(&Names::default().gpus()) else {
        bail!(
            "node {name} reports no GPUs: `kubectl plimsoll doctor` says what its device plugin lacks"
        );
    };
    let Ok(gpus) = Gpus::from_json(text) else {
        bail!("node {name}: its annotation {} is not read", Names::default().gpus());
    };
    let wanted: Option<u32> = gpu.parse().ok();
    let mut known: Vec<String> = Vec::new();
    for Gpu { index, uuid, .. } in gpus.0 {
        if Some(index) == wanted || uuid.as_str() == gpu {
            return Ok(uuid);
        }
        known.push(format!("{index} ({})", printable(uuid.as_str())));
    }
    bail!("node {name} has no GPU {gpu}; it has {}", known.join(", "))
}

/// The new list; `None` if nothing is to be changed.
fn changed(before: &BTreeSet<GpuId>, uuid: &GpuId, wanted: Wanted) -> Option<BTreeSet<GpuId>> {
    let mut after = before.clone();
    let changes = match wanted {
        Wanted::Cordoned => after.insert(uuid.clone()),
        Wanted::Open => after.remove(uuid),
    };
    changes.then_some(after)
}

fn write(kubectl: &Kubectl, node: &Node, key: &str, text: Option<&str>) -> Result<(), Failure> {
    let metadata = json!({
        "resourceVersion": node.metadata.resource_version, "annotations": { key: text },
    });
    let patch = format!("--patch={}", json!({"metadata": metadata}));
    kubectl.run(&["patch", "node", &node.metadata.name, "--type=merge", &patch]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> BTreeSet<GpuId> {
        cordoned::parse(text)
    }

    #[test]
    fn other_gpus_stay_and_nothing_is_written_that_is_so_already() {
        let (none, two) = (list(""), list("GPU-a, GPU-b"));
        let change =
            |before: &BTreeSet<GpuId>, uuid: &str, wanted| changed(before, &uuid.into(), wanted);
        assert_eq!(change(&none, "GPU-c", Wanted::Cordoned), Some(list("GPU-c")));
        assert_eq!(change(&two, "GPU-c", Wanted::Cordoned), Some(list("GPU-a,GPU-b,GPU-c")));
        assert_eq!(change(&two, "GPU-b", Wanted::Cordoned), None);
        assert_eq!(change(&two, "GPU-b", Wanted::Open), Some(list("GPU-a")));
        assert_eq!(change(&none, "GPU-b", Wanted::Open), None);
    }
}
