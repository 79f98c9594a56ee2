//! How many more pods of one request a node's GPUs take, one after the other, each as [`NodeGpus::fit`] decides.

use std::cmp::Reverse;

use super::{Account, Basis, Charge, ChoiceRule, GpuFit, GpuRequest, GpuShare, NodeGpus, choose};
use crate::units::{Cores, GpuModel, PodUid, Units};

/// Pods with several GPUs on one node at most: more than its kubelet runs.
const MOST: u64 = 128;

/// What fits on a node's GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// GPUs that take pods.
    pub gpus: u64,
    /// Units of these that are charged to no pod.
    pub free: u64,
    /// How many more pods; with several GPUs each at most 128.
    pub pods: u64,
    /// The most units on each GPU with which one more pod fits.
    pub largest: Units,
}

impl NodeGpus {
    /// How many pods with this request fit on the node's GPUs of a model, or on all its GPUs. Pods with several GPUs
    /// take those that packing chooses.
    pub fn capacity(&self, request: &GpuRequest, model: Option<&GpuModel>) -> Capacity {
        let mut accounts = Vec::with_capacity(self.accounts().len());
        for Account { gpu, charges } in self.accounts() {
            let mut counted = charges.clone();
            counted.retain(|charge| charge.counts_against(&new_pod(), request));
            accounts.push(Account::new(gpu, counted));
        }
        let (share, count) = (request.largest(), request.shares().len());
        let (mut fits, mut sizes) = (Capacity::default(), Vec::new());
        for account in accounts.iter().filter(|it| it.is_of(model) && it.gpu.is_open()) {
            fits.gpus += 1;
            fits.free += u64::from(account.gpu.free.0);
            fits.pods += u64::from(account.most_shares(share, request));
            let all = GpuShare { units: account.gpu.free, ..share };
            sizes.extend(account.takes(all, request).then_some(all.units));
        }
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        fits.largest = sizes.get(count - 1).copied().unwrap_or_default();
        let gpus = accounts.iter().map(|account| &account.gpu);
        if let Some(free) = self.free_beside_unplaced(|_| false, gpus) {
            fits.free = fits.free.min(u64::from(free.0));
            fits.pods = fits.pods.min(u64::from(free.0 / share.units.0.max(1)));
            fits.largest =
                fits.largest.min(Units(free.0 / u32::try_from(count).unwrap_or(u32::MAX)));
        }
        if count > 1 {
            fits.pods = self.placed_one_by_one(accounts, request, model);
        }
        fits
    }

    fn placed_one_by_one(
        &self,
        mut accounts: Vec<Account>,
        request: &GpuRequest,
        model: Option<&GpuModel>,
    ) -> u64 {
        for pods in 0..MOST {
            let all = accounts.iter().map(|account| &account.gpu);
            if self.unplaced_need(|_| false, all, request) {
                return pods;
            }
            let of_model = accounts.iter().filter(|account| account.is_of(model));
            let gpus = of_model.map(|account| &account.gpu);
            let placed = choose(gpus, self.cpu(), request, &ChoiceRule::BEST_FIT);
            let Ok(choice) = placed else { return pods };
            for (chosen, share) in choice.gpus.iter().zip(request.shares()) {
                for account in accounts.iter_mut().filter(|it| it.gpu.uuid == chosen.uuid) {
                    *account = account.with_shares(1, *share, request);
                }
            }
        }
        MOST
    }
}

impl Account {
    fn is_of(&self, model: Option<&GpuModel>) -> bool {
        model.is_none_or(|model| self.gpu.model == *model)
    }

    fn takes(&self, share: GpuShare, request: &GpuRequest) -> bool {
        matches!(self.gpu.fit(share, request), GpuFit::Fits { .. })
    }

    /// How many such shares the GPU takes, each of another pod with this request.
    fn most_shares(&self, share: GpuShare, request: &GpuRequest) -> u32 {
        let by_units = self.gpu.free.0 / share.units.0.max(1);
        let (mut fit, mut too_many) = (0, by_units.saturating_add(1));
        // The first try is the answer unless something else than units is short.
        let mut tried = by_units;
        while tried > fit {
            if self.with_shares(tried - 1, share, request).takes(share, request) {
                fit = tried;
            } else {
                too_many = tried;
            }
            tried = fit + (too_many - fit) / 2;
        }
        fit
    }

    /// The GPU with the shares of this many new pods on it.
    fn with_shares(&self, pods: u32, share: GpuShare, request: &GpuRequest) -> Self {
        let mut charges = self.charges.clone();
        if pods > 0 {
            let processes = u32::from(share.processes).saturating_mul(pods);
            let all = GpuShare {
                units: Units(share.units.0.saturating_mul(pods)),
                cores: Cores(share.cores.0.saturating_mul(pods)),
                processes: u16::try_from(processes).unwrap_or(u16::MAX),
                ..share
            };
            let sharing = Some(self.gpu.isolation.sharing(request.isolation()));
            charges.extend(Charge::of(&new_pod(), all, Basis::Chosen, sharing, self.gpu.units));
        }
        Self::new(&self.gpu, charges)
    }
}

fn new_pod() -> PodUid {
    PodUid::from("")
}
