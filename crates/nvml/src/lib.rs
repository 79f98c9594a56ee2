//! GPU probing behind one small trait: [`Probe`] says which cards there are, what each reads and
//! which errors it raised. [`Library`] is the real one (libnvidia-ml through `nvml-wrapper`),
//! [`Scripted`] one for unit tests.
//!
//! Invariant: what NVML cannot tell is `None` or an error, never 0.

mod library;
mod scripted;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

pub use library::Library;
pub use scripted::Scripted;

/// The soname under which NVIDIA's driver installs NVML.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// What a card is: this does not change while the driver runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// `GPU-…`: the one name that survives reboots and re-cabling.
    pub uuid: String,
    /// NVML's enumeration index (PCI order).
    pub index: u32,
    /// Product name.
    pub model: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Total memory in MiB.
    pub memory_mib: Option<u64>,
    /// NUMA node of the host memory nearest to the card.
    pub numa_node: Option<u32>,
}

/// What a card reads now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Memory in use, in MiB.
    pub used_mib: Option<u64>,
    /// Percent of the last sample period in which a kernel ran.
    pub utilisation: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in milliwatt.
    pub power_milliwatt: Option<u32>,
}

/// A critical error that a card raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidEvent {
    /// The card, if the driver could still name it; an event without a name concerns every card.
    pub uuid: Option<String>,
    /// NVIDIA's error number, if the driver knew it.
    pub xid: Option<u64>,
}

/// XIDs that an application causes by itself and that say nothing about the card: the list that
/// NVIDIA's own device plugin ignores (13 engine exception, 31 page fault, 43 stopped processing,
/// 45 preemptive cleanup, 68 video processor exception, 109 context switch timeout).
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

impl XidEvent {
    /// Whether the card itself is in doubt. An error without a number counts.
    pub fn is_fatal(&self) -> bool {
        self.xid.is_none_or(|xid| !APPLICATION_XIDS.contains(&xid))
    }
}

/// Where facts about cards come from.
pub trait Probe: Send + Sync {
    /// The cards, in enumeration order. A card that cannot even be named is left out: nothing could
    /// be said of it.
    ///
    /// # Errors
    /// When the driver cannot enumerate.
    fn cards(&self) -> Result<Vec<Card>, Error>;

    /// What one card reads now. A reading that the card does not support is `None`.
    ///
    /// # Errors
    /// [`Error::Lost`] when the card no longer answers.
    fn status(&self, uuid: &str) -> Result<Status, Error>;

    /// Blocks, handing each event to `observe`, and `None` after every `tick` without one, until it
    /// breaks off.
    ///
    /// # Errors
    /// When the driver cannot watch, or stops being able to.
    fn watch(&self, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error>;
}

/// Takes events from [`Probe::watch`].
pub type Observer<'a> = dyn FnMut(Option<XidEvent>) -> ControlFlow<()> + 'a;

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no NVML here: most likely a machine without an NVIDIA driver, which is no fault.
    #[error(
        "no NVML library at {library:?}: install the NVIDIA driver, or name the library's path"
    )]
    LibraryAbsent {
        /// As it was asked for.
        library: PathBuf,
    },
    /// A library is there but cannot be used.
    #[error("NVML library {library:?} cannot be used: {source}")]
    Unusable {
        /// As it was asked for.
        library: PathBuf,
        /// NVML's or the loader's word.
        source: nvml_wrapper::error::NvmlError,
    },
    /// The card fell off the bus, needs a reset, or is unknown to the driver.
    #[error("card {uuid} does not answer: {reason}")]
    Lost {
        /// The card.
        uuid: String,
        /// NVML's word.
        reason: String,
    },
    /// Any other refusal.
    #[error("NVML: {0}")]
    Nvml(#[from] nvml_wrapper::error::NvmlError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_error_does_not_doubt_the_card() {
        let event = |xid| XidEvent { uuid: None, xid };
        assert!(APPLICATION_XIDS.iter().all(|xid| !event(Some(*xid)).is_fatal()));
        assert!(event(Some(79)).is_fatal());
        assert!(event(None).is_fatal());
    }
}
