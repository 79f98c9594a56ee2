//! A node's GPUs as pods with ResourceClaims find them: as kube-scheduler counts, and what it does not know.

use super::{Account, Basis, Charge, Closed, FreeGpu, GivenOut, Gpu, GpuIsolation, ResourceClaim};
use crate::units::Units;

/// How a node gives out these GPUs.
pub(super) fn given_out(gpus: &[Gpu]) -> GivenOut {
    let by_units = gpus.iter().any(|gpu| gpu.closed.is_none());
    let by_claims = !by_units && gpus.iter().any(|gpu| gpu.closed == Some(Closed::Claims));
    if by_claims { GivenOut::Claims } else { GivenOut::Units }
}

/// The accounts of a node whose GPUs are given out by ResourceClaims, as claims find them: in MiB in place of units, of
/// which a claim may take a part. `None` for a node whose GPUs are given out by units.
pub(super) fn accounts_in_mib(gpus: &[Gpu], accounts: &[Account]) -> Option<Vec<Account>> {
    if given_out(gpus) == GivenOut::Units {
        return None;
    }
    Some(gpus.iter().zip(accounts).map(|(gpu, account)| in_mib(gpu, account)).collect())
}

fn in_mib(gpu: &Gpu, account: &Account) -> Account {
    let whole = gpu.size(GivenOut::Claims);
    let mut charges = Vec::with_capacity(account.charges.len());
    for charge in &account.charges {
        // As for kube-scheduler: what a claim has of a GPU that is not reported, it has of no other, and what is in use
        // beyond claims takes no claim's room.
        let has_names = |claim: &ResourceClaim| claim.devices.iter().all(|it| !it.name.is_empty());
        let is_elsewhere =
            charge.basis == Basis::UnknownPlace && charge.claim.as_deref().is_some_and(has_names);
        if is_elsewhere || charge.basis == Basis::Unmanaged {
            continue;
        }
        let claimed = charge.claim.as_ref().and_then(|claim| claim.memory_on(&gpu.uuid));
        let units = match claimed {
            Some(memory) => units_in_mib(memory.0),
            None if charge.units >= gpu.units => whole,
            None => units_in_mib(u64::from(charge.units.0).saturating_mul(gpu.unit())),
        };
        charges.push(Charge { units, ..charge.clone() });
    }
    let closed = gpu.closed.filter(|why| *why != Closed::Claims);
    // How many clients of MPS it serves more, the driver counts by claim and says in its ResourceSlice.
    let isolation = GpuIsolation { mps_clients: None, ..gpu.isolation };
    Account::new(&FreeGpu { units: whole, closed, isolation, ..account.gpu.clone() }, charges)
}

fn units_in_mib(mib: u64) -> Units {
    Units(u32::try_from(mib).unwrap_or(u32::MAX))
}
