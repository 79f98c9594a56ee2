//! What pods hold of GPUs now.

use std::collections::BTreeMap;

use crate::gpu::{Account, Basis};
use crate::units::Units;

/// How many times pods hold so many units of a GPU of a size. A pod that stays long is found here more often than
/// among the requests, and what it leaves free of its GPU has to be filled as often.
///
/// # Examples
///
/// ```
/// use placement::gpu::fragmentation::HeldParts;
/// use placement::units::Units;
///
/// let mut held = HeldParts::default();
/// held.count(Units(16), Units(4), 3);
/// held.count(Units(16), Units(16), 1);
/// assert_eq!(held.shares(Units(16)).collect::<Vec<_>>(), [(Units(4), 0.75), (Units(16), 0.25)]);
/// assert_eq!(held.shares(Units(24)).count(), 0);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldParts(BTreeMap<Units, BTreeMap<Units, u64>>);

impl HeldParts {
    /// Counts `times` GPUs of `gpu` units, of each of which a pod holds `part` units.
    pub fn count(&mut self, gpu: Units, part: Units, times: u64) {
        if times > 0 {
            *self.0.entry(gpu).or_default().entry(part).or_default() += times;
        }
    }

    /// Counts what pods and ResourceClaims hold of this GPU. Left out is memory of none of them, and what is charged on
    /// every GPU of the node since its own is not known.
    pub fn count_account(&mut self, account: &Account) {
        for charge in &account.charges {
            if charge.basis.is_held() && charge.basis != Basis::UnknownPlace {
                self.count(account.gpu.units, charge.units, 1);
            }
        }
    }

    /// Each number of units that is held of GPUs of this size, with its share of them.
    pub fn shares(&self, gpu: Units) -> impl Iterator<Item = (Units, f64)> {
        let parts = self.0.get(&gpu);
        let all: u64 = parts.into_iter().flat_map(BTreeMap::values).sum();
        parts.into_iter().flatten().map(move |(part, times)| (*part, *times as f64 / all as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Charge, FreeGpu, GpuIsolation, Sharers, Topology};
    use crate::units::{Cores, PodUid};

    #[test]
    fn what_is_certainly_held_of_this_gpu_counts() {
        let gpu = FreeGpu {
            uuid: "GPU-0".into(),
            index: 0,
            model: "A10".into(),
            topology: Topology::default(),
            units: Units(16),
            free: Units(1),
            free_cores: Cores::ALL,
            idle: false,
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            sharers: Sharers::None,
            clients: 0,
        };
        let charge = |units, basis| Charge {
            pod: PodUid::from(format!("pod-{units}").as_str()),
            units: Units(units),
            cores: Cores(0),
            processes: 1,
            sharing: None,
            basis,
            kept_at: None,
            claim: None,
        };
        let charges = vec![
            charge(1, Basis::Recorded),
            charge(2, Basis::Chosen),
            charge(3, Basis::Claimed),
            charge(4, Basis::UnknownPlace),
            charge(5, Basis::UnprovenClaim),
            charge(6, Basis::Nominated),
            charge(7, Basis::Unmanaged),
            charge(8, Basis::ResourceClaim),
        ];
        let mut held = HeldParts::default();
        held.count_account(&Account { gpu, charges });
        let parts: Vec<u32> = held.shares(Units(16)).map(|(part, _)| part.0).collect();
        assert_eq!(parts, [1, 2, 3, 8]);
    }
}
