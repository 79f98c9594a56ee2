//! The number of units of a GPU.

use placement::units::{MiB, Units};

use super::Gpus;

/// The largest number of units of a node. The device ids of a pod are in the pod's status, and the whole Pod object is
/// limited to 1.5 MiB. Each unit is also a device in the kubelet's device list, for which 4 MiB are enough: see
/// [`super::ids`].
pub const MAX_UNITS: u64 = 32_768;

/// The memory of one unit, and the memory of each GPU that is not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizing {
    /// GPU memory of one unit.
    pub unit: MiB,
    /// Percent of each GPU's memory that is not offered.
    pub reserve_percent: u8,
    /// The memory of a GPU that has none of its own; `None` if such a GPU is not offered.
    pub unified: Option<MiB>,
}

/// More units than the kubelet's device list can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{units} units of {unit}, where a node may have {MAX_UNITS}: set --unit-mib to {enough} or more, on all nodes alike"
)]
pub struct TooManyUnits {
    units: u64,
    unit: MiB,
    /// The smallest unit that is large enough, in MiB.
    pub enough: u64,
}

impl Sizing {
    /// A sizing without reserve.
    pub fn of_unit(unit: MiB) -> Self {
        Self { unit, reserve_percent: 0, unified: None }
    }

    /// The whole units of a GPU of this memory; `None` if a unit is 0 MiB.
    pub fn units(self, memory: MiB) -> Option<Units> {
        let units = self.offered(memory).0.checked_div(self.unit.0)?;
        Some(Units(u32::try_from(units).unwrap_or(u32::MAX)))
    }

    /// What is offered of a GPU of this memory: all but the reserve.
    pub fn offered(self, memory: MiB) -> MiB {
        let part = memory.0.saturating_mul(u64::from(self.reserve_percent)).div_ceil(100);
        MiB(memory.0.saturating_sub(part))
    }

    /// Checks that the node has at most [`MAX_UNITS`] units.
    ///
    /// # Errors
    /// If it has more. The error contains the smallest unit that is large enough.
    pub fn check(self, gpus: &Gpus) -> Result<(), TooManyUnits> {
        let units = gpus.iter().map(|gpu| u64::from(gpu.units.0)).sum();
        if units <= MAX_UNITS {
            return Ok(());
        }
        Err(TooManyUnits { units, unit: self.unit, enough: self.smallest_unit(gpus) })
    }

    /// The smallest unit, in MiB, with which the GPUs have at most [`MAX_UNITS`].
    fn smallest_unit(self, gpus: &Gpus) -> u64 {
        let offered: Vec<u64> = gpus.iter().map(|gpu| gpu.offered.0).collect();
        let all: u64 = offered.iter().sum();
        let mut unit = all.div_ceil(MAX_UNITS + offered.len() as u64).max(1);
        while offered.iter().map(|memory| memory / unit).sum::<u64>() > MAX_UNITS {
            unit += 1;
        }
        unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus};
    use crate::gpus::Gpu;

    /// The units of a GPU of 16 GiB.
    fn units(reserve_percent: u8) -> u32 {
        let sizing = Sizing { reserve_percent, ..Sizing::of_unit(MiB(1024)) };
        sizing.units(MiB(16_384)).unwrap().0
    }

    #[test]
    fn what_is_kept_back_leaves_whole_units() {
        assert_eq!([units(0), units(1), units(6), units(7), units(90)], [16, 15, 15, 14, 1]);
    }

    #[test]
    fn too_many_units_are_refused_with_one_that_is_large_enough() {
        // Two GPUs of 40 GiB.
        let gpus = gpus(&[(A, 40), (B, 40)]);
        let many = Gpus::new(
            gpus.iter().map(|gpu| Gpu { units: Units(40 << 10), ..gpu.clone() }).collect(),
        );
        let sizing = Sizing::of_unit(MiB(1));
        assert_eq!(
            sizing.check(&many).unwrap_err().to_string(),
            "81920 units of 1 MiB, where a node may have 32768: set --unit-mib to 3 or more, on all nodes alike"
        );
        assert_eq!(sizing.check(&gpus), Ok(()));
    }
}
