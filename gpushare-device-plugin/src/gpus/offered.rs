//! Which GPUs drivers of dynamic resource allocation (DRA) offer as well: kube-scheduler gives them out without the
//! units.

use std::collections::BTreeMap;

use cluster::OfferedDevice;
use placement::units::GpuId;

/// Drivers by the texts of their devices' attributes. Some of these texts are UUIDs of GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfferedGpus(BTreeMap<String, String>);

impl OfferedGpus {
    /// The GPUs that these devices are on.
    pub fn of<'d>(devices: impl IntoIterator<Item = &'d OfferedDevice>) -> Self {
        let mut drivers = BTreeMap::new();
        for device in devices {
            for text in &device.texts {
                drivers.insert(text.clone(), device.name.driver.clone());
            }
        }
        Self(drivers)
    }

    /// The driver that offers this GPU, or a part of it.
    pub fn driver_of(&self, gpu: &GpuId) -> Option<&str> {
        self.0.get(gpu.as_str()).map(String::as_str)
    }
}
