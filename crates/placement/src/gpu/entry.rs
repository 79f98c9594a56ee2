//! One pod's account on one node: how far its claim has come, and where that makes the pod count.
//!
//! ```text
//!                reserve             bound             the kubelet's records place it
//! (no entry) ──────────────> Reserved ─────> Bound ──────────────────────────────> Allocated
//!     └────────── bound ─────────┼────────────^ └─ release ─┐ ┌──── release ───────────┘
//!                                └─ cancel, release ──> (no entry)
//! ```
//!
//! Invariant: an annotation only ever adds to what a pod is charged. What Bind chose counts until the kubelet's records
//! place the pod, and so does each card that the annotation has claimed meanwhile: the device plugin goes by it, and may
//! have done so before it changed again. Then the last record that placed the pod counts alone, whatever claims and
//! later reports leave out.

use std::collections::{BTreeMap, BTreeSet};

use super::{Basis, Card, Charge, Choice, Claim};
use crate::units::{CardId, PodUid, Units};

/// Cards kept of those that the annotation of one pod names one after the other. A node reports at most 64; a pod that
/// has named more is of unknown place.
const MAX_CLAIMED: usize = 65;

/// How far a pod's claim has come on a node. A pod that was released has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Chosen at Bind; the API server has not confirmed it.
    Reserved,
    /// The API server shows the pod on the node.
    Bound,
    /// The kubelet has handed the units out, as its records show.
    Allocated,
}

/// What Bind decided for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// What it writes on the pod.
    pub claim: Claim,
    /// The claim's card, as it was when it was chosen.
    pub choice: Choice,
}

/// Units by card, as the kubelet's records have them.
pub(super) type Record = BTreeMap<CardId, Units>;

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The most units that it holds at one time.
    peak: Units,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Reserved(Reservation),
    Bound {
        /// What Bind chose, where that was in the life of this process.
        reservation: Option<Reservation>,
        /// The cards that the claim annotation has named, while it agreed with the pod's spec; also some that the node
        /// does not report, or not yet.
        claimed: BTreeSet<CardId>,
    },
    Allocated {
        reservation: Option<Reservation>,
        /// The last record that placed the pod.
        record: Record,
    },
}

/// How the pod's card is known.
enum Place<'a> {
    /// The kubelet's records, now or earlier.
    Recorded(&'a Record),
    /// Bind in the life of this process; and annotations since then.
    Chosen { card: &'a CardId, claimed: &'a BTreeSet<CardId> },
    /// Annotations alone, which do not prove that it is on no other card.
    Claimed(&'a BTreeSet<CardId>),
    /// Nothing.
    Unknown,
}

impl Entry {
    pub(super) fn reserved(peak: Units, reservation: Reservation) -> Self {
        Self { peak, state: State::Reserved(reservation) }
    }

    /// The entry after the API server showed the pod on the node.
    pub(super) fn bound(before: Option<Self>, peak: Units, claimed: Option<CardId>) -> Self {
        let (reservation, mut before) = match before.map(|entry| entry.state) {
            Some(state @ State::Allocated { .. }) => return Self { peak, state },
            Some(State::Reserved(reservation)) => (Some(reservation), BTreeSet::new()),
            Some(State::Bound { reservation, claimed }) => (reservation, claimed),
            None => (None, BTreeSet::new()),
        };
        if before.len() < MAX_CLAIMED {
            before.extend(claimed);
        }
        Self { peak, state: State::Bound { reservation, claimed: before } }
    }

    /// The entry after the node reported these cards.
    pub(super) fn reported(self, pod: &PodUid, cards: &[Card]) -> Self {
        match self.placed_by(record(pod, cards)) {
            Some(record) => {
                let reservation = self.state.into_reservation();
                Self { state: State::Allocated { reservation, record }, ..self }
            }
            None => self,
        }
    }

    /// The record, where it places all units. All containers of a pod share a card, and the kubelet lists
    /// no init containers: so a record of one card places the whole pod there.
    fn placed_by(&self, mut record: Record) -> Option<Record> {
        if let (1, Some(units)) = (record.len(), record.values_mut().next()) {
            *units = self.peak.max(*units);
        }
        let all = record.values().copied().sum::<Units>() >= self.peak;
        (all && !record.is_empty()).then_some(record)
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Reserved(_) => Stage::Reserved,
            State::Bound { .. } => Stage::Bound,
            State::Allocated { .. } => Stage::Allocated,
        }
    }

    pub(super) fn reservation(&self) -> Option<&Reservation> {
        match &self.state {
            State::Reserved(reservation) => Some(reservation),
            State::Bound { reservation, .. } | State::Allocated { reservation, .. } => {
                reservation.as_ref()
            }
        }
    }

    /// What the pod is charged on each of the node's cards, in their order.
    pub(super) fn charges(&self, pod: &PodUid, cards: &[Card]) -> Vec<Option<Charge>> {
        let place = self.place(cards);
        let charge = |card: &Card| {
            let recorded = card.pods.get(pod).copied().unwrap_or(Units::ZERO);
            let (units, basis) = match place.on(card, self.peak) {
                Some((units, basis)) if units > recorded => (units, basis),
                _ => (recorded, Basis::Recorded),
            };
            (!units.is_zero()).then(|| Charge { pod: pod.clone(), units, basis })
        };
        cards.iter().map(charge).collect()
    }

    /// A card that the node does not report is no place.
    fn place(&self, cards: &[Card]) -> Place<'_> {
        const NONE: &BTreeSet<CardId> = &BTreeSet::new();
        let here = |card: &CardId| cards.iter().any(|reported| reported.uuid == *card);
        let claimed = match &self.state {
            State::Bound { claimed, .. } => claimed,
            State::Reserved(_) => NONE,
            State::Allocated { record, .. } => return Place::Recorded(record),
        };
        if claimed.len() >= MAX_CLAIMED {
            return Place::Unknown;
        }
        match self.reservation().map(|reservation| &reservation.choice.uuid) {
            Some(card) if here(card) => Place::Chosen { card, claimed },
            _ if claimed.iter().any(here) => Place::Claimed(claimed),
            _ => Place::Unknown,
        }
    }
}

impl State {
    fn into_reservation(self) -> Option<Reservation> {
        match self {
            Self::Reserved(reservation) => Some(reservation),
            Self::Bound { reservation, .. } | Self::Allocated { reservation, .. } => reservation,
        }
    }
}

impl Place<'_> {
    /// What a pod of this peak counts on `card`.
    fn on(&self, card: &Card, peak: Units) -> Option<(Units, Basis)> {
        let card = &card.uuid;
        match self {
            Self::Recorded(record) => record.get(card).map(|units| (*units, Basis::Recorded)),
            Self::Chosen { card: chosen, .. } if *chosen == card => Some((peak, Basis::Chosen)),
            Self::Chosen { claimed, .. } => {
                claimed.contains(card).then_some((peak, Basis::Claimed))
            }
            Self::Claimed(claimed) if claimed.contains(card) => Some((peak, Basis::Claimed)),
            Self::Claimed(_) => Some((peak, Basis::UnprovenClaim)),
            Self::Unknown => Some((peak, Basis::UnknownPlace)),
        }
    }
}

/// What the node's report says of a pod.
fn record(pod: &PodUid, cards: &[Card]) -> Record {
    let on = |card: &Card| Some((card.uuid.clone(), *card.pods.get(pod)?));
    cards.iter().filter_map(on).filter(|(_, units)| !units.is_zero()).collect()
}
