//! The real NVML, loaded at run time from a path or soname of the caller's choice.
//!
//! Invariant: a value that NVML refuses does not affect the other values; only a lost GPU is an error.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    ComputeMode as NvmlComputeMode, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use crate::memory_limit::{self, MemoryLimit};
use crate::process::{Sample, joined};
use crate::{ComputeMode, Error, Gpu, Observer, Probe, Process, Recovery, Status, Xid};

const MIB: u64 = 1024 * 1024;
/// The scope of a NUMA mask: nodes, not sockets (`NVML_AFFINITY_SCOPE_NODE`).
const SCOPE_NODE: u32 = 0;
/// 64-bit words of a NUMA mask: Linux has at most 1,024 nodes (`CONFIG_NODES_SHIFT` 10).
const NUMA_WORDS: usize = 16;
/// The value of a MIG mode that is on (`NVML_DEVICE_MIG_ENABLE`).
const MIG_ENABLED: u32 = 1;
/// The field of the recovery action (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
const RECOVERY_ACTION: FieldId = FieldId(230);

/// A loaded and initialised NVML.
#[derive(Debug)]
pub struct Library {
    nvml: Nvml,
    /// Whether two GPUs are linked, by their UUIDs: asked once of each two, since links last as long as the driver.
    links: Mutex<HashMap<(String, String), bool>>,
}

impl Library {
    /// Loads the library at `path` (or by soname) and initialises it.
    ///
    /// # Errors
    /// [`Error::LibraryAbsent`] if there is none, [`Error::Unusable`] if it does not load or has no
    /// driver.
    pub fn open(path: &Path) -> Result<Self, Error> {
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => Ok(Self { nvml, links: Mutex::default() }),
            Err(reason) => Err(opening(path.to_owned(), reason)),
        }
    }

    fn gpu(&self, index: u32) -> Option<Gpu> {
        let device = self.nvml.device_by_index(index).ok()?;
        let memory = device.memory_info();
        Some(Gpu {
            uuid: device.uuid().ok()?,
            index,
            model: device.name().ok(),
            minor: device.minor_number().ok(),
            has_no_own_memory: matches!(memory, Err(NvmlError::NotSupported)),
            memory_mib: memory.as_ref().ok().map(|memory| memory.total / MIB),
            reserved_mib: memory.ok().map(|memory| memory.reserved.div_ceil(MIB)),
            numa_node: numa_node(&device),
            pci_bus: pci_bus(&device),
            cuda_major: cuda_major(&device),
            linked: Vec::new(),
        })
    }

    /// Whether the driver lets both GPUs reach each other's memory over NVLink; not, where it does not tell.
    fn are_linked(&self, one: &Gpu, other: &Gpu) -> bool {
        let pair = (one.uuid.clone(), other.uuid.clone());
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(linked) = links.get(&pair) {
            return *linked;
        }
        let Ok(linked) = self.ask_link(one.index, other.index) else { return false };
        links.insert(pair, linked);
        linked
    }

    fn ask_link(&self, one: u32, other: u32) -> Result<bool, NvmlError> {
        let (one, other) = (self.nvml.device_by_index(one)?, self.nvml.device_by_index(other)?);
        Ok(one.p2p_status(&other, P2pCapabilitiesIndex::NvLink)? == P2pStatus::Ok)
    }
}

impl Probe for Library {
    fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        let count = self.nvml.device_count()?;
        let mut gpus: Vec<Gpu> = (0..count).filter_map(|index| self.gpu(index)).collect();
        for other in 1..gpus.len() {
            for one in 0..other {
                if self.are_linked(&gpus[one], &gpus[other]) {
                    let (first, second) = (gpus[one].index, gpus[other].index);
                    gpus[one].linked.push(second);
                    gpus[other].linked.push(first);
                }
            }
        }
        Ok(gpus)
    }

    fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    fn status(&self, uuid: &str) -> Result<Status, Error> {
        let device = self.nvml.device_by_uuid(uuid).map_err(|reason| lost(uuid, reason))?;
        status(&device).map_err(|reason| lost(uuid, reason))
    }

    fn processes(&self, uuid: &str, since: SystemTime) -> Result<Option<Vec<Process>>, Error> {
        let device = self.nvml.device_by_uuid(uuid).map_err(|reason| lost(uuid, reason))?;
        processes(&device, since).map_err(|reason| lost(uuid, reason))
    }

    fn memory_limit(&self, uuid: &str, group: &Path) -> Result<MemoryLimit, Error> {
        let device = self.nvml.device_by_uuid(uuid).map_err(|reason| lost(uuid, reason))?;
        memory_limit::memory_limit(&device, group).map_err(|reason| lost(uuid, reason))
    }

    /// Each GPU has its own event set, which identifies the GPU of an error even if the GPU's UUID can no
    /// longer be read.
    fn watch(&self, uuid: &str, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error> {
        let device = self.nvml.device_by_uuid(uuid).map_err(|reason| unwatched(uuid, reason))?;
        let set = self.nvml.create_event_set().map_err(|reason| unwatched(uuid, reason))?;
        let set = device
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|refused| unwatched(uuid, refused.error))?;
        let tick = u32::try_from(tick.as_millis()).unwrap_or(u32::MAX);
        loop {
            let xid = match set.wait(tick) {
                Ok(data) => Some(Xid { number: xid_number(data.event_data) }),
                Err(NvmlError::Timeout) => None,
                Err(other) => return Err(unwatched(uuid, other)),
            };
            if let ControlFlow::Break(()) = observe(xid) {
                return Ok(());
            }
        }
    }
}

fn status(device: &Device<'_>) -> Result<Status, NvmlError> {
    Ok(Status {
        used_mib: supported(device.memory_info())?.map(|memory| memory.used / MIB),
        utilisation: supported(device.utilization_rates())?.map(|rates| rates.gpu),
        temperature: supported(device.temperature(TemperatureSensor::Gpu))?,
        power_milliwatt: supported(device.power_usage())?,
        mig: supported(device.mig_mode())?.map(|mode| mode.current == MIG_ENABLED),
        recovery: supported(recovery(device))?,
        compute_mode: supported(device.compute_mode())?.map(compute_mode),
    })
}

fn compute_mode(mode: NvmlComputeMode) -> ComputeMode {
    match mode {
        NvmlComputeMode::Default => ComputeMode::Default,
        NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
        NvmlComputeMode::ExclusiveThread | NvmlComputeMode::ExclusiveProcess => {
            ComputeMode::ExclusiveProcess
        }
    }
}

/// Why a GPU is not watched.
fn unwatched(uuid: &str, reason: NvmlError) -> Error {
    match reason {
        NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::NotFound => lost(uuid, reason),
        other => other.into(),
    }
}

fn opening(library: PathBuf, reason: NvmlError) -> Error {
    match &reason {
        NvmlError::LibloadingError(error) if is_absent(&library, &error.to_string()) => {
            Error::LibraryAbsent { library }
        }
        _ => Error::Unusable { library, reason },
    }
}

/// Whether the loader says that the library itself is missing, not one that it needs in turn. glibc
/// begins with the file at fault; its text is the only way to tell the two apart.
fn is_absent(library: &Path, message: &str) -> bool {
    message
        .contains(&format!("{}: cannot open shared object file: No such file", library.display()))
}

/// A value that the GPU does not have is `None`, and a lost GPU is an error. Any other refusal concerns
/// only this value.
fn supported<T>(reading: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match reading {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::NotFound)) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an adapter for map_err")]
fn lost(uuid: &str, reason: NvmlError) -> Error {
    Error::Lost { uuid: uuid.to_owned(), reason: reason.to_string() }
}

fn recovery(device: &Device<'_>) -> Result<Recovery, NvmlError> {
    let value = device.field_values_for(&[RECOVERY_ACTION])?.into_iter().next();
    match value.ok_or(NvmlError::NotSupported)??.value? {
        SampleValue::U32(action) => Ok(Recovery::from_nvml(action)),
        _ => Err(NvmlError::NotSupported),
    }
}

fn processes(device: &Device<'_>, since: SystemTime) -> Result<Option<Vec<Process>>, NvmlError> {
    let mig = supported(device.mig_mode())?.is_some_and(|mode| mode.current == MIG_ENABLED);
    let Some(compute) = supported(device.running_compute_processes())? else {
        return Ok(None);
    };
    if mig {
        return Ok(None);
    }
    // A GPU without graphics, or a driver without MPS, refuses these lists.
    let graphics = supported(device.running_graphics_processes())?.unwrap_or_default();
    let mps = supported(device.mps_running_compute_processes())?;
    let clients = mps.as_ref().map(|mps| mps.iter().map(|process| process.pid).collect());
    let lists = [compute, graphics, mps.unwrap_or_default()];
    let samples = samples(device, since)?;
    Ok(joined(lists.iter().flatten().map(memory), samples.as_deref(), clients.as_ref()))
}

fn memory(process: &ProcessInfo) -> (u32, Option<u64>) {
    let used = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    (process.pid, used)
}

/// The samples since then; `None` where the driver does not sample.
fn samples(device: &Device<'_>, since: SystemTime) -> Result<Option<Vec<Sample>>, NvmlError> {
    let micros = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    match device.process_utilization_stats(u64::try_from(micros).unwrap_or(u64::MAX)) {
        // Here it means that no process was busy, not that the GPU is lost.
        Err(NvmlError::NotFound) => Ok(Some(Vec::new())),
        answer => Ok(supported(answer)?.map(|samples| samples.iter().map(sample).collect())),
    }
}

fn sample(of: &ProcessUtilizationSample) -> Sample {
    Sample { pid: of.pid, at: of.timestamp, sm_percent: of.sm_util }
}

fn pci_bus(device: &Device<'_>) -> Option<String> {
    let pci = device.pci_info().ok()?;
    Some(format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
}

fn numa_node(device: &Device<'_>) -> Option<u32> {
    first_bit(&device.memory_affinity(NUMA_WORDS, SCOPE_NODE).ok()?)
}

fn cuda_major(device: &Device<'_>) -> Option<u32> {
    u32::try_from(device.cuda_compute_capability().ok()?.major).ok()
}

fn first_bit(mask: &[std::ffi::c_ulong]) -> Option<u32> {
    let (at, word) = (0..).zip(mask).find(|(_, word)| **word != 0)?;
    Some(at * std::ffi::c_ulong::BITS + word.trailing_zeros())
}

fn xid_number(data: Option<XidError>) -> Option<u64> {
    match data? {
        XidError::Value(number) => Some(number),
        XidError::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numa_mask_names_its_first_node() {
        assert_eq!(first_bit(&[0, 0]), None);
        assert_eq!(first_bit(&[0b100, 1]), Some(2));
        assert_eq!(first_bit(&[0, 1]), Some(64));
    }

    #[test]
    fn a_missing_dependency_is_not_an_absent_library() {
        let library = Path::new("libnvidia-ml.so.1");
        let message =
            |file| format!("{file}: cannot open shared object file: No such file or directory");
        assert!(is_absent(library, &message("libnvidia-ml.so.1")));
        assert!(!is_absent(library, &message("libdependency.so.3")));
    }

    #[test]
    fn an_unsupported_reading_is_none_and_a_lost_gpu_an_error() {
        assert_eq!(supported::<u32>(Err(NvmlError::NotSupported)).unwrap(), None);
        assert!(supported::<u32>(Err(NvmlError::GpuLost)).is_err());
    }
}
