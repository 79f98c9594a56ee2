//! How many more pods of one request a node's cards take, one after the other, each as [`NodeCards::fit`] decides.

use std::cmp::Reverse;

use super::{
    Account, Basis, CardFit, CardShare, Charge, ChoiceRule, GpuRequest, NodeCards, choose,
};
use crate::units::{CardModel, Cores, PodUid, Units};

/// Pods with several cards on one node at most: more than its kubelet runs.
const MOST: u64 = 128;

/// What fits on a node's cards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Cards that take pods.
    pub cards: u64,
    /// Units of these that are charged to no pod.
    pub free: u64,
    /// How many more pods; with several cards each at most 128.
    pub pods: u64,
    /// The most units on each card with which one more pod fits.
    pub largest: Units,
}

impl NodeCards {
    /// How many pods with this request fit on the node's cards of a model, or on all its cards. Pods with several cards
    /// take those that packing chooses.
    pub fn capacity(&self, request: &GpuRequest, model: Option<&CardModel>) -> Capacity {
        let mut accounts = Vec::with_capacity(self.accounts().len());
        for Account { card, charges } in self.accounts() {
            let mut counted = charges.clone();
            counted.retain(|charge| charge.counts_against(&new_pod(), request));
            accounts.push(Account::new(card, counted));
        }
        let (share, count) = (request.largest(), request.shares().len());
        let (mut fits, mut sizes) = (Capacity::default(), Vec::new());
        for account in accounts.iter().filter(|it| it.is_of(model) && it.card.is_open()) {
            fits.cards += 1;
            fits.free += u64::from(account.card.free.0);
            fits.pods += u64::from(account.most_shares(share, request));
            let all = CardShare { units: account.card.free, ..share };
            sizes.extend(account.takes(all, request).then_some(all.units));
        }
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        fits.largest = sizes.get(count - 1).copied().unwrap_or_default();
        let cards = accounts.iter().map(|account| &account.card);
        if let Some(free) = self.free_beside_unplaced(|_| false, cards) {
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
        model: Option<&CardModel>,
    ) -> u64 {
        for pods in 0..MOST {
            let all = accounts.iter().map(|account| &account.card);
            if self.unplaced_need(|_| false, all, request) {
                return pods;
            }
            let of_model = accounts.iter().filter(|account| account.is_of(model));
            let cards = of_model.map(|account| &account.card);
            let placed = choose(cards, self.cpu(), request, &ChoiceRule::BEST_FIT);
            let Ok(choice) = placed else { return pods };
            for (chosen, share) in choice.cards.iter().zip(request.shares()) {
                for account in accounts.iter_mut().filter(|it| it.card.uuid == chosen.uuid) {
                    *account = account.with_shares(1, *share, request);
                }
            }
        }
        MOST
    }
}

impl Account {
    fn is_of(&self, model: Option<&CardModel>) -> bool {
        model.is_none_or(|model| self.card.model == *model)
    }

    fn takes(&self, share: CardShare, request: &GpuRequest) -> bool {
        matches!(self.card.fit(share, request), CardFit::Fits { .. })
    }

    /// How many such shares the card takes, each of another pod with this request.
    fn most_shares(&self, share: CardShare, request: &GpuRequest) -> u32 {
        let by_units = self.card.free.0 / share.units.0.max(1);
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

    /// The card with the shares of this many new pods on it.
    fn with_shares(&self, pods: u32, share: CardShare, request: &GpuRequest) -> Self {
        let mut charges = self.charges.clone();
        if pods > 0 {
            let processes = u32::from(share.processes).saturating_mul(pods);
            let all = CardShare {
                units: Units(share.units.0.saturating_mul(pods)),
                cores: Cores(share.cores.0.saturating_mul(pods)),
                processes: u16::try_from(processes).unwrap_or(u16::MAX),
                ..share
            };
            let sharing = Some(self.card.isolation.sharing(request.isolation()));
            charges.extend(Charge::of(&new_pod(), all, Basis::Chosen, sharing, self.card.units));
        }
        Self::new(&self.card, charges)
    }
}

fn new_pod() -> PodUid {
    PodUid::from("")
}
