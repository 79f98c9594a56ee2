//! The devices of the node's ResourceSlices, and the GPUs that they are on. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{DeviceName, DeviceSlice, Event, OfferedDevice};
use placement::units::GpuId;

use crate::gpus::Gpus;
use crate::gpus::offered::OfferedGpus;

/// NVIDIA's driver of GPUs. A device of it that no slice shows is a GPU, or a part of one.
const NVIDIA: &str = "gpu.nvidia.com";
/// Devices that are remembered after their slices have gone, at most.
const MAX_KNOWN: usize = 4096;

/// The node's slices.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// This plugin's own driver.
    own: String,
    now: BTreeMap<String, DeviceSlice>,
    /// The attributes of all devices that a slice has shown.
    known: BTreeMap<DeviceName, BTreeSet<String>>,
    listed: bool,
}

impl Slices {
    /// No slices yet. Those of the driver `own` are this plugin's.
    pub(crate) fn new(own: &str) -> Self {
        Self { own: own.to_owned(), ..Self::default() }
    }

    /// Applies an event of the watch.
    pub(crate) fn apply(&mut self, event: Event<DeviceSlice>) {
        match event {
            Event::Listing => {}
            Event::Listed(all) => {
                self.listed = true;
                self.now.clear();
                all.into_iter().for_each(|slice| self.add(slice));
            }
            Event::Applied(slice) => self.add(slice),
            Event::Gone(slice) => drop(self.now.remove(&slice.name)),
        }
    }

    fn add(&mut self, slice: DeviceSlice) {
        if self.known.len() >= MAX_KNOWN {
            self.known = self.devices().map(|it| (it.name.clone(), it.texts.clone())).collect();
        }
        for device in &slice.devices {
            self.known.insert(device.name.clone(), device.texts.clone());
        }
        self.now.insert(slice.name.clone(), slice);
    }

    /// Whether the watch has had its first whole list.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// What the slices of other drivers offer now.
    pub(crate) fn offered(&self) -> OfferedGpus {
        OfferedGpus::of(self.devices().filter(|device| device.name.driver != self.own))
    }

    /// The slices of this plugin's driver.
    pub(crate) fn own(&self) -> Vec<DeviceSlice> {
        self.now.values().filter(|slice| slice.driver == self.own).cloned().collect()
    }

    fn devices(&self) -> impl Iterator<Item = &OfferedDevice> {
        self.now.values().flat_map(|slice| &slice.devices)
    }

    /// The GPUs that a device is on; `None` if no slice has shown it.
    pub(crate) fn gpus_of(&self, device: &DeviceName, gpus: &Gpus) -> Option<Vec<GpuId>> {
        self.known.get(device).map(|texts| named(texts, gpus))
    }

    /// Whether devices of this driver are GPUs of the node, or parts of them.
    pub(crate) fn has_gpus(&self, driver: &str, gpus: &Gpus) -> bool {
        let holds = |texts: &BTreeSet<String>| !named(texts, gpus).is_empty();
        driver == NVIDIA || self.known.iter().any(|(of, texts)| of.driver == driver && holds(texts))
    }
}

/// The GPUs whose UUIDs are among these texts.
fn named(texts: &BTreeSet<String>, gpus: &Gpus) -> Vec<GpuId> {
    gpus.iter().map(|gpu| &gpu.uuid).filter(|id| texts.contains(id.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus};

    fn name(driver: &str, device: &str) -> DeviceName {
        DeviceName { driver: driver.into(), pool: "node-1".into(), device: device.into() }
    }

    fn slice(driver: &str, devices: &[(&str, &[&str])]) -> DeviceSlice {
        let devices = devices.iter().map(|(device, texts)| OfferedDevice {
            name: name(driver, device),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        });
        let name = format!("node-1-{driver}");
        DeviceSlice { name, devices: devices.collect(), ..DeviceSlice::default() }
    }

    fn on(slices: &Slices, driver: &str, device: &str) -> Option<Vec<String>> {
        let on = slices.gpus_of(&name(driver, device), &gpus(&[(A, 4), (B, 4)]))?;
        Some(on.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_device_is_on_the_gpu_that_an_attribute_names_also_once_its_slice_is_gone() {
        let mut slices = Slices::default();
        assert!(!slices.is_listed());
        let offer = slice("gpu.nvidia.com", &[("gpu-0", &[A, "gpu"]), ("mig-1", &["MIG-7", B])]);
        slices.apply(Event::Listed(vec![offer.clone()]));
        assert!(slices.is_listed());
        assert_eq!(slices.offered().driver_of(&A.into()), Some("gpu.nvidia.com"));
        assert_eq!(slices.offered().driver_of(&B.into()), Some("gpu.nvidia.com"), "a part of it");
        slices.apply(Event::Gone(offer));
        assert_eq!(slices.offered(), OfferedGpus::default());
        assert_eq!(on(&slices, "gpu.nvidia.com", "gpu-0"), Some(vec![A.to_owned()]));
        assert_eq!(on(&slices, "gpu.nvidia.com", "mig-1"), Some(vec![B.to_owned()]));
    }

    #[test]
    fn a_driver_has_gpus_if_a_slice_of_it_has_ever_named_one_or_it_is_nvidias() {
        let two = gpus(&[(A, 4), (B, 4)]);
        let mut slices = Slices::default();
        assert!(slices.has_gpus("gpu.nvidia.com", &two));
        slices.apply(Event::Applied(slice("net.example.com", &[("eth0", &["eth0"])])));
        slices.apply(Event::Applied(slice("gpu.example.com", &[("gpu-0", &[A])])));
        slices.apply(Event::Listed(Vec::new()));
        assert_eq!(on(&slices, "net.example.com", "eth0"), Some(vec![]));
        assert_eq!(on(&slices, "gpu.example.com", "gpu-1"), None);
        let drivers = ["net.example.com", "gpu.example.com"];
        assert_eq!(drivers.map(|driver| slices.has_gpus(driver, &two)), [false, true]);
    }
}
