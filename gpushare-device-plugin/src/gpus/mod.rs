//! The GPUs of this node: their units, device ids and health.
//!
//! [`ids`] names units, [`sizing`] counts the units of a GPU, [`inventory`] turns NVML's answers into GPUs, [`watch`]
//! polls NVML, [`node_settings`] follows what operators set on the Node, [`search`] looks for a first GPU,
//! [`mod@file`] keeps the GPUs for a later process, [`closed`] are the GPUs that take no new pods, [`offered`] those
//! that a DRA driver offers as well, [`compute_mode`] those whose mode keeps processes from them, and [`context`] those
//! on which CUDA opens no context.

pub mod closed;
pub(crate) mod compute_mode;
pub(crate) mod context;
mod errors;
pub(crate) mod file;
pub mod ids;
pub mod inventory;
pub(crate) mod node_settings;
pub mod offered;
pub(crate) mod search;
pub mod sizing;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvml::{ComputeMode, Probe, Recovery, Xid};
use placement::units::{GpuId, MiB, Units};

use ids::{DeviceId, Ids};

/// Opens NVML. May block.
pub(crate) type Open = Arc<dyn Fn() -> Result<Arc<dyn Probe>, nvml::Error> + Send + Sync>;

/// Why a GPU takes no pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unhealthy {
    /// It does not answer, or has not yet answered three times in a row since.
    #[error("it does not answer")]
    Lost,
    /// The driver requires a recovery action before the GPU is used again.
    #[error("it needs {0}")]
    Recovery(Recovery),
    /// It raised a critical error that no application causes.
    #[error("it raised {0}")]
    Failed(Xid),
    /// Its memory belongs to MIG instances, which cannot be divided into units.
    #[error("MIG mode is on")]
    Mig,
    /// The Node's annotation `cordoned-gpus` lists its UUID.
    #[error("it is cordoned")]
    Cordoned,
    /// The ConfigMap `unhealthy-gpu-<node>` lists its index.
    #[error("the ConfigMap unhealthy-gpu-<node> lists its index")]
    Listed,
}

impl Unhealthy {
    /// Whether operators have taken the GPU out of use, which may work.
    pub fn is_set_by_operators(self) -> bool {
        matches!(self, Self::Cordoned | Self::Listed)
    }
}

/// One GPU, as reported to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's UUID, `GPU-…`.
    pub uuid: GpuId,
    /// NVML's index since the last boot.
    pub index: u32,
    /// N of its device node `/dev/nvidiaN`; `None` if unknown.
    pub minor: Option<u32>,
    /// Product name, empty where NVML has none.
    pub model: String,
    /// Memory that programs can have: the total less what the driver keeps for itself.
    pub memory: MiB,
    /// What is offered of `memory`: all but the reserve.
    pub offered: MiB,
    /// Units that pods can request: whole units of `offered`.
    pub units: Units,
    /// The NUMA node that the GPU is attached to; `None` if unknown.
    pub numa_node: Option<u32>,
    /// Indexes of the GPUs that it reaches over NVLink.
    pub linked: Vec<u32>,
    /// Its place on the PCI bus, as `0000:07:00.0`; `None` if unknown.
    pub pci_bus: Option<String>,
    /// Major number of its CUDA compute capability; `None` if unknown.
    pub cuda_major: Option<u32>,
    /// How many processes may use it for computing; `None` if unknown.
    pub compute_mode: Option<ComputeMode>,
    /// Why it takes no pods now; `None` for a healthy GPU.
    pub unhealthy: Option<Unhealthy>,
    /// The part of its device ids before the slot.
    pub prefix: String,
}

impl Gpu {
    /// Whether it takes pods now.
    pub fn is_healthy(&self) -> bool {
        self.unhealthy.is_none()
    }

    /// The device ids of its units, slot 0 first.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.units.0).map(|slot| DeviceId::new(&self.prefix, slot))
    }
}

/// All GPUs of the node at one moment, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    gpus: Vec<Gpu>,
    driver: Option<String>,
}

impl Gpus {
    /// These GPUs, sorted by index. The driver numbers its GPUs anew when it is loaded, so a lost GPU may have the
    /// index of a present one. The lost GPU then gets the lowest free index, so that an index names one GPU.
    pub fn new(mut gpus: Vec<Gpu>) -> Self {
        gpus.sort_by_key(|gpu| {
            let is_lost = gpu.unhealthy == Some(Unhealthy::Lost);
            (is_lost, !gpu.is_healthy(), gpu.index)
        });
        let all: BTreeSet<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let mut free = (0..).filter(|index| !all.contains(index));
        let mut taken = BTreeSet::new();
        for gpu in &mut gpus {
            if !taken.insert(gpu.index) {
                gpu.index = free.next().unwrap_or(u32::MAX);
            }
        }
        gpus.sort_by_key(|gpu| gpu.index);
        Self { gpus, driver: None }
    }

    /// The same GPUs under this version of the driver.
    pub fn with_driver(self, driver: Option<String>) -> Self {
        Self { driver, ..self }
    }

    /// The driver's version, such as `580.95.05`; `None` if NVML does not report it.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The GPUs, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter()
    }

    /// The healthy GPUs, by index.
    pub fn healthy(&self) -> impl Iterator<Item = &Gpu> {
        self.iter().filter(|gpu| gpu.is_healthy())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The GPU of that UUID.
    pub fn get(&self, uuid: &GpuId) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// The GPU that currently offers a device id; `None` if no GPU does, or the prefix is ambiguous.
    pub fn offering(&self, id: &DeviceId) -> Option<&Gpu> {
        self.named_by(id).filter(|gpu| gpu.units.0 > id.slot())
    }

    /// The GPU that a device id names, whatever its slot. For ids that containers hold: the GPU may have had more
    /// units when the id was granted.
    pub fn named_by(&self, id: &DeviceId) -> Option<&Gpu> {
        let exact = self.gpus.iter().find(|gpu| gpu.prefix == id.prefix());
        exact.or_else(|| self.by_digits(id.prefix()))
    }

    /// The kubelet may hold ids that were granted when other GPUs were present, and that have a prefix of
    /// another length.
    fn by_digits(&self, prefix: &str) -> Option<&Gpu> {
        let mut named = self.gpus.iter().filter(|gpu| ids::digits(&gpu.uuid).starts_with(prefix));
        let gpu = named.next()?;
        if named.next().is_none() { Some(gpu) } else { None }
    }
}

/// The UUIDs with commas between them.
pub fn joined<'c>(gpus: impl IntoIterator<Item = &'c GpuId>) -> String {
    gpus.into_iter().map(GpuId::as_str).collect::<Vec<_>>().join(",")
}

/// The number of ids on each GPU. Ids that the GPU no longer offers count as well.
pub fn units_of(ids: &Ids, gpus: &Gpus) -> BTreeMap<GpuId, Units> {
    let mut units: BTreeMap<GpuId, Units> = BTreeMap::new();
    for gpu in ids.iter().filter_map(|id| gpus.named_by(id)) {
        let held = units.entry(gpu.uuid.clone()).or_default();
        *held = held.saturating_add(Units(1));
    }
    units
}

#[cfg(test)]
mod tests {
    use placement::units::Units;

    use super::{Gpu, Gpus, Unhealthy, units_of};
    use crate::fixtures::{A, B, gpus, ids, with_unhealthy};

    #[test]
    fn an_id_is_on_one_gpu_or_on_none() {
        let gpus = gpus(&[("GPU-a1b2c3d4-01", 2), ("GPU-a1b2c3d4-02", 2)]);
        for (id, uuid, why) in [
            ("a1b2c3d401-1", Some("GPU-a1b2c3d4-01"), "its GPU"),
            ("a1b2c3d401-2", None, "past the GPU's last unit"),
            ("a1b2c3d4-0", None, "could be either"),
            ("ffffffff-0", None, "no card"),
        ] {
            let gpu = gpus.offering(&id.parse().unwrap());
            assert_eq!(gpu.map(|gpu| gpu.uuid.as_str()), uuid, "{why}");
        }
    }

    #[test]
    fn no_two_gpus_share_an_index_after_the_driver_counted_without_a_lost_one() {
        let three = gpus(&[(A, 4), (B, 4), ("GPU-cccccccc-1111", 4)]);
        let lost = with_unhealthy(&three, A, Unhealthy::Lost);
        let counted = lost.iter().map(|gpu| {
            let index = gpu.index.saturating_sub(1);
            Gpu { index, ..gpu.clone() }
        });
        let gpus = Gpus::new(counted.collect());
        let indexes: Vec<(&str, u32)> =
            gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.index)).collect();
        assert_eq!(indexes, [(B, 0), ("GPU-cccccccc-1111", 1), (A, 2)]);
    }

    #[test]
    fn an_id_past_the_last_unit_still_names_its_gpu_and_counts_there() {
        let gpus = gpus(&[(A, 2)]);
        let past = "aaaaaaaa-3".parse().unwrap();
        assert_eq!((gpus.offering(&past), gpus.named_by(&past)), (None, gpus.get(&A.into())));
        let held = ids(["aaaaaaaa-1", "aaaaaaaa-3", "ffffffff-0"]);
        assert_eq!(units_of(&held, &gpus), [(A.into(), Units(2))].into());
    }
}
