//! The real NVML, loaded at run time from a path or soname of the caller's choice.
//!
//! Invariant: one refused reading never hides the others; only a card that is gone is an error.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, Nvml};

use crate::{Card, Error, Observer, Probe, Status, XidEvent};

const MIB: u64 = 1024 * 1024;
/// NVML's `NVML_AFFINITY_SCOPE_NODE`.
const SCOPE_NODE: u32 = 0;
/// 64-bit words asked for in a NUMA mask: 1,024 nodes are Linux's most (`CONFIG_NODES_SHIFT` 10).
const NUMA_WORDS: usize = 16;

/// A loaded and initialised NVML.
#[derive(Debug)]
pub struct Library {
    nvml: Nvml,
}

impl Library {
    /// Loads the library at `path` (or by soname) and initialises it.
    ///
    /// # Errors
    /// [`Error::LibraryAbsent`] if there is none, [`Error::Unusable`] if it does not load or has no
    /// driver.
    pub fn open(path: &Path) -> Result<Self, Error> {
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => Ok(Self { nvml }),
            Err(source) => Err(opening(path.to_owned(), source)),
        }
    }

    fn card(&self, index: u32) -> Option<Card> {
        let device = self.nvml.device_by_index(index).ok()?;
        Some(Card {
            uuid: device.uuid().ok()?,
            index,
            model: device.name().ok(),
            minor: device.minor_number().ok(),
            memory_mib: device.memory_info().ok().map(|memory| memory.total / MIB),
            numa_node: numa_node(&device),
        })
    }

    /// An event set over every card that supports one; `None` when no card does.
    fn event_set(&self) -> Result<Option<EventSet<'_>>, Error> {
        let mut set = self.nvml.create_event_set()?;
        let mut watched = 0;
        for index in 0..self.nvml.device_count()? {
            let Ok(device) = self.nvml.device_by_index(index) else { continue };
            if supports_xids(&device) {
                set = device
                    .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                    .map_err(|refused| refused.error)?;
                watched += 1;
            }
        }
        Ok((watched > 0).then_some(set))
    }
}

impl Probe for Library {
    fn cards(&self) -> Result<Vec<Card>, Error> {
        let count = self.nvml.device_count()?;
        Ok((0..count).filter_map(|index| self.card(index)).collect())
    }

    fn status(&self, uuid: &str) -> Result<Status, Error> {
        let lost = |source| lost(uuid, source);
        let device = self.nvml.device_by_uuid(uuid).map_err(lost)?;
        Ok(Status {
            used_mib: supported(device.memory_info())
                .map_err(lost)?
                .map(|memory| memory.used / MIB),
            utilisation: supported(device.utilization_rates())
                .map_err(lost)?
                .map(|rates| rates.gpu),
            temperature: supported(device.temperature(TemperatureSensor::Gpu)).map_err(lost)?,
            power_milliwatt: supported(device.power_usage()).map_err(lost)?,
        })
    }

    fn watch(&self, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error> {
        let Some(set) = self.event_set()? else { return Err(NvmlError::NotSupported.into()) };
        let tick = u32::try_from(tick.as_millis()).unwrap_or(u32::MAX);
        loop {
            let event = match set.wait(tick) {
                Ok(data) => Some(event(&data)),
                Err(NvmlError::Timeout) => None,
                Err(NvmlError::GpuLost) => Some(XidEvent { uuid: None, xid: None }),
                Err(other) => return Err(other.into()),
            };
            if let ControlFlow::Break(()) = observe(event) {
                return Ok(());
            }
        }
    }
}

fn opening(library: PathBuf, source: NvmlError) -> Error {
    match &source {
        NvmlError::LibloadingError(error) if is_absent(&library, &error.to_string()) => {
            Error::LibraryAbsent { library }
        }
        _ => Error::Unusable { library, source },
    }
}

/// Whether the loader's words mean that the library itself is missing, not one that it needs in
/// turn. glibc begins with the file at fault; its wording is the only way to tell the two apart.
fn is_absent(library: &Path, message: &str) -> bool {
    message
        .contains(&format!("{}: cannot open shared object file: No such file", library.display()))
}

/// A reading that the card does not have is no reading; a card that is gone is an error; any other
/// refusal concerns that one reading only.
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

fn supports_xids(device: &Device<'_>) -> bool {
    device.supported_event_types().is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
}

fn numa_node(device: &Device<'_>) -> Option<u32> {
    first_bit(&device.memory_affinity(NUMA_WORDS, SCOPE_NODE).ok()?)
}

fn first_bit(mask: &[std::ffi::c_ulong]) -> Option<u32> {
    let (at, word) = (0..).zip(mask).find(|(_, word)| **word != 0)?;
    Some(at * std::ffi::c_ulong::BITS + word.trailing_zeros())
}

fn event(data: &EventData<'_>) -> XidEvent {
    let xid = match data.event_data {
        Some(XidError::Value(xid)) => Some(xid),
        Some(XidError::Unknown) | None => None,
    };
    XidEvent { uuid: data.device.uuid().ok(), xid }
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
        let words =
            |file| format!("{file}: cannot open shared object file: No such file or directory");
        assert!(is_absent(library, &words("libnvidia-ml.so.1")));
        assert!(!is_absent(library, &words("libdependency.so.3")));
    }

    #[test]
    fn an_unsupported_reading_is_none_and_a_lost_card_an_error() {
        assert_eq!(supported::<u32>(Err(NvmlError::NotSupported)).unwrap(), None);
        assert!(supported::<u32>(Err(NvmlError::GpuLost)).is_err());
    }
}
