//! Memory of devices that counts as the node's: that of a GPU beside the CPU (GH200, GB200, V100 on POWER9), which its
//! driver brings online as a NUMA node. The kernel puts pods there, but who uses the GPU needs it.
//!
//! Such a NUMA node has no CPUs, and only movable memory, of which the kernel takes none for itself. Other NUMA nodes
//! without CPUs are the node's own: those that are there since the boot, and memory expanders (CXL, persistent memory),
//! which are dax devices too.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::path::Path;

use super::field;
use crate::collectors::file::text;
use crate::list::parse_list;

/// In KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub(super) total: u64,
    /// What of it MemAvailable has.
    pub(super) available: u64,
}

/// The memory of all such NUMA nodes below `/sys`.
pub(super) fn device_memory(sysfs: &Path) -> DeviceMemory {
    let mut sum = DeviceMemory::default();
    let folder = sysfs.join("devices/system/node");
    let Ok(nodes) = fs::read_dir(&folder) else { return sum };
    let mut own = text(&folder.join("has_normal_memory"))
        .and_then(|list| parse_list(&list))
        .unwrap_or_default();
    own.extend(expanders(&sysfs.join("bus/dax/devices")));
    for node in nodes.flatten() {
        let number =
            node.file_name().to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let Some(number) = number.filter(|number: &u32| !own.contains(number)) else { continue };
        let has_no_cpus =
            text(&node.path().join("cpulist")).is_some_and(|list| list.trim().is_empty());
        let memory = text(&node.path().join("meminfo")).filter(|_| has_no_cpus);
        if let Some(DeviceMemory { total, available }) =
            memory.and_then(|text| parse_node(number, &text))
        {
            sum.total = sum.total.saturating_add(total);
            sum.available = sum.available.saturating_add(available);
        }
    }
    sum
}

/// The NUMA nodes of memory expanders.
fn expanders(dax: &Path) -> BTreeSet<u32> {
    let node = |device: DirEntry| text(&device.path().join("target_node"))?.trim().parse().ok();
    fs::read_dir(dax).into_iter().flatten().flatten().filter_map(node).collect()
}

/// Reads lines like `Node 1 MemTotal: 100 kB`. `None` where one is missing.
#[must_use]
pub fn parse_node(number: u32, meminfo: &str) -> Option<DeviceMemory> {
    let kib = |key: &str| field(meminfo.as_bytes(), &format!("Node {number} {key}:"))?.kib().ok();
    let total = kib("MemTotal")?;
    let pages = kib("Active(file)")?.saturating_add(kib("Inactive(file)")?);
    Some(DeviceMemory { total, available: kib("MemFree")?.saturating_add(pages).min(total) })
}
