//! Looks for a GPU on a node that may have none, before the rest of the plugin starts.
//!
//! Invariant: until a GPU is found, nothing is asked of the API server or of the kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::Open;
use super::file::GpusFile;
use crate::metrics::Metrics;

/// Pause between two looks, in pauses between two polls of a GPU's health: a minute by default.
pub(crate) const POLLS_PER_LOOK: u32 = 12;
/// NVIDIA's number among the vendors of PCI devices.
const NVIDIA: &str = "0x10de";
/// The class of PCI devices that are display controllers; the digits after it tell which kind.
const DISPLAY: &str = "0x03";

/// The search for a first GPU.
pub(crate) struct GpuSearch {
    /// Opens NVML; called at each look.
    pub open: Open,
    /// The kernel's folder of PCI devices.
    pub pci_dir: PathBuf,
    /// The GPUs of earlier processes, which may be lost now.
    pub file: GpusFile,
    /// Pause between two looks: how long a GPU that appears waits at most.
    pub pause: Duration,
    /// Has the metric of idle plugins.
    pub metrics: Metrics,
}

impl GpuSearch {
    /// Returns once there is a GPU. Calls `idle` after each look that finds none.
    pub(crate) async fn found(self, idle: impl Fn()) {
        let mut is_told = false;
        while let Some(why) = self.why_none().await {
            if !is_told {
                let pause = self.pause;
                tracing::info!(
                    "this node has no GPU ({why}): nothing is offered. Looking again every {pause:?}"
                );
                is_told = true;
            }
            self.metrics.idle.set(1);
            idle();
            sleep(self.pause).await;
        }
        self.metrics.idle.set(0);
    }

    /// Why the node has no GPU; `None` where it has one, or has had one since its boot, whether or not NVML works.
    async fn why_none(&self) -> Option<String> {
        if has_nvidia_controller(&self.pci_dir) || !self.file.read().is_empty() {
            return None;
        }
        let open = self.open.clone();
        // The library is loaded for this look alone.
        match tokio::task::spawn_blocking(move || open()?.gpus()).await {
            Ok(Ok(gpus)) if gpus.is_empty() => Some("NVML enumerates none".to_owned()),
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panicked) => Some(panicked.to_string()),
        }
    }
}

/// Whether the PCI bus has a display controller of NVIDIA's. A container sees all devices of the bus, with and without
/// a driver.
pub(super) fn has_nvidia_controller(pci_dir: &Path) -> bool {
    let Ok(devices) = fs::read_dir(pci_dir) else { return false };
    devices.flatten().any(|device| {
        let read = |file| fs::read_to_string(device.path().join(file)).unwrap_or_default();
        read("vendor").trim_end() == NVIDIA && read("class").starts_with(DISPLAY)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of PCI devices, each with its vendor and class as the kernel writes them.
    fn bus(devices: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, (vendor, class)) in devices.iter().enumerate() {
            let device = folder.path().join(format!("0000:00:{number:02}.0"));
            fs::create_dir(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
        }
        folder
    }

    #[test]
    fn a_display_controller_of_nvidias_is_a_gpu_and_nothing_else_is() {
        for (vendor, class, is_gpu) in [
            ("0x10de", "0x030000", true),
            ("0x10de", "0x030200", true),
            // The sound of a graphics GPU, a GPU of another vendor, a network card.
            ("0x10de", "0x040300", false),
            ("0x1002", "0x030000", false),
            ("0x15b3", "0x020000", false),
        ] {
            let folder = bus(&[("0x8086", "0x060000"), (vendor, class)]);
            assert_eq!(has_nvidia_controller(folder.path()), is_gpu, "{vendor} {class}");
        }
        assert!(!has_nvidia_controller(Path::new("/nowhere")), "a machine without a PCI bus");
    }
}
