//! One card with the charges of its pods.

use super::free_card::Room;
use super::{Basis, Charge, FreeCard, GpuRequest};
use crate::units::{PodUid, Units};

/// One card and what pods are charged on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The card.
    pub card: FreeCard,
    /// One charge for each pod, sorted by UID.
    pub charges: Vec<Charge>,
}

impl Account {
    /// Units that pods hold, as far as is known ([`Basis::is_held`]).
    pub fn held(&self) -> Units {
        self.sum(Basis::is_held)
    }

    /// Units of the pods that are on this card by the kubelet's records, by Bind's choice or by their claim.
    pub fn of_known_place(&self) -> Units {
        self.sum(|basis| matches!(basis, Basis::Recorded | Basis::Chosen | Basis::Claimed))
    }

    fn sum(&self, counts: impl Fn(Basis) -> bool) -> Units {
        self.charges.iter().filter(|charge| counts(charge.basis)).map(|charge| charge.units).sum()
    }

    /// The account of a card that has these charges. What `card` itself has free does not matter.
    pub(super) fn new(card: &FreeCard, charges: Vec<Charge>) -> Self {
        Self { card: card.with_room(Room::left_by(card.units, charges.iter())), charges }
    }

    /// The card as the pod finds it.
    pub(super) fn for_pod(&self, pod: &PodUid, request: &GpuRequest) -> FreeCard {
        self.with_charges(|charge| charge.counts_against(pod, request))
    }

    pub(super) fn with_charges(&self, stays: impl Fn(&&Charge) -> bool) -> FreeCard {
        self.card.with_room(Room::left_by(self.card.units, self.charges.iter().filter(stays)))
    }
}
