//! Whether a request fits a card, and which card of a node it goes to: the one rule behind Filter, Prioritize, preempt,
//! explain, Bind and the benchmarks.

use super::GpuRequest;
use crate::load::Score;
use crate::units::{CardId, Units};

/// A card and what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeCard {
    /// The card.
    pub uuid: CardId,
    /// Its index, which breaks ties.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units that no pod is charged.
    pub free: Units,
    /// Whether pods may be placed on it.
    pub healthy: bool,
}

/// How a request stands to one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardFit {
    /// It fits, and so many units stay free.
    Fits {
        /// Units left.
        left: Units,
    },
    /// The card is reported unhealthy.
    Unhealthy,
    /// Too few units are free.
    TooLittleFree {
        /// Units free.
        free: Units,
        /// Units missing.
        missing: Units,
    },
}

/// The chosen card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The card.
    pub uuid: CardId,
    /// Its index.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units left free once the request is on it.
    pub left: Units,
}

/// Why no card of a node takes a request. The text is the same whatever the numbers: kube-scheduler groups nodes by it
/// and uses it as a format string. The numbers are in [`Fit::cards`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.reason())]
pub enum NoFit {
    /// The node reports no cards.
    NoCards,
    /// Larger than any card of the node: no deletion of pods helps.
    TooLarge,
    /// A card has room, but every such card is unhealthy.
    Unhealthy,
    /// Every card of that size has too few units free.
    NoRoom,
}

impl NoFit {
    /// The text for Filter's answer, events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoCards => {
                reason!("node reports no GPU cards: is gpushare-device-plugin running there?")
            }
            Self::TooLarge => {
                reason!("Insufficient GPU Memory in one device: the node has no card of that size")
            }
            Self::Unhealthy => {
                reason!("Insufficient GPU Memory in one device: cards with room are unhealthy")
            }
            Self::NoRoom => reason!("Insufficient GPU Memory in one device"),
        }
    }

    /// In a word, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoCards => "no cards reported",
            Self::TooLarge => "larger than any card",
            Self::Unhealthy => "no healthy card with room",
            Self::NoRoom => "no card with room",
        }
    }
}

/// A node's cards and a request: the whole decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Units asked for.
    pub asked: Units,
    /// Each card, by index, and how the request stands to it.
    pub cards: Vec<(FreeCard, CardFit)>,
    /// The card that the request goes to, or why to none.
    pub outcome: Result<Choice, NoFit>,
}

impl Fit {
    /// The chosen card's [tightness](Choice::tightness); 0 where no card fits.
    pub fn score(&self) -> Score {
        self.outcome.as_ref().map_or(Score::ZERO, Choice::tightness)
    }
}

impl FreeCard {
    /// How a request for `asked` units stands to the card.
    pub fn fit(&self, asked: Units) -> CardFit {
        if !self.healthy {
            return CardFit::Unhealthy;
        }
        match self.free >= asked {
            true => CardFit::Fits { left: self.free.saturating_sub(asked) },
            false => {
                let missing = asked.saturating_sub(self.free);
                CardFit::TooLittleFree { free: self.free, missing }
            }
        }
    }
}

impl Choice {
    /// How tightly the request fits: 100 where the card is filled, less the more stays free.
    pub fn tightness(&self) -> Score {
        tightness(self.left, self.units)
    }
}

fn tightness(left: Units, units: Units) -> Score {
    let left = f64::from(left.0) / f64::from(units.0.max(1));
    Score::truncated(100.0 * (1.0 - left))
}

/// What a healthy card has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Units free.
    pub(super) free: Units,
    /// All its units.
    units: Units,
    /// Of the card among those of its node.
    pub(super) position: usize,
}

impl Room {
    /// As [`Choice::tightness`].
    pub(super) fn tightness(&self, request: &GpuRequest) -> Score {
        tightness(self.free.saturating_sub(request.peak()), self.units)
    }
}

impl FreeCard {
    /// What there is room for on the card, which is at `position`; `None` where it is unhealthy.
    pub(super) fn room(&self, position: usize) -> Option<Room> {
        self.healthy.then_some(Room { free: self.free, units: self.units, position })
    }

    /// The card as the one that a request goes to that fits.
    pub(super) fn choice(&self, request: &GpuRequest) -> Choice {
        let left = self.free.saturating_sub(request.peak());
        Choice { uuid: self.uuid.clone(), index: self.index, units: self.units, left }
    }
}

/// Picks the card that the request fills best (fewest units left), the lowest index among equals.
///
/// # Errors
///
/// Why none fits.
pub fn choose<'a, Cards>(cards: Cards, request: &GpuRequest) -> Result<Choice, NoFit>
where
    Cards: IntoIterator<Item = &'a FreeCard>,
    Cards::IntoIter: Clone,
{
    let (cards, asked) = (cards.into_iter(), request.peak());
    let fits = |card: &'a FreeCard| match card.fit(asked) {
        CardFit::Fits { left } => Some((left, card)),
        CardFit::Unhealthy | CardFit::TooLittleFree { .. } => None,
    };
    let best = cards.clone().filter_map(fits).min_by_key(|(left, card)| (*left, card.index));
    let (_, card) = best.ok_or_else(|| cause(&cards, asked))?;
    Ok(card.choice(request))
}

/// Why none of `cards` takes `asked` units.
pub(super) fn cause<'a>(
    cards: &(impl Iterator<Item = &'a FreeCard> + Clone),
    asked: Units,
) -> NoFit {
    if cards.clone().next().is_none() {
        NoFit::NoCards
    } else if cards.clone().all(|card| card.units < asked) {
        NoFit::TooLarge
    } else if cards.clone().any(|card| card.free >= asked) {
        NoFit::Unhealthy
    } else {
        NoFit::NoRoom
    }
}
