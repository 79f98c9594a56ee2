//! Which card of a node a request goes to: the one pure function behind Filter, Prioritize, Bind
//! and the benchmarks.

use std::fmt;

use super::GpuRequest;
use crate::load::Score;
use crate::units::{CardId, Units};

/// A card as the choice sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeCard {
    /// The card.
    pub uuid: CardId,
    /// Its index, which breaks ties.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units that nobody holds.
    pub free: Units,
    /// Whether pods may be placed on it.
    pub healthy: bool,
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

impl Choice {
    /// How tightly the request fits: 100 where the card is filled, less the more stays free.
    pub fn tightness(&self) -> Score {
        let left = f64::from(self.left.0) / f64::from(self.units.0.max(1));
        Score::truncated(100.0 * (1.0 - left))
    }
}

/// Why one card cannot take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// Reported unhealthy.
    Unhealthy,
    /// This many units are free, too few.
    Free(Units),
}

/// Why no card of a node can take a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoCard {
    /// Units asked for.
    pub asked: Units,
    /// Each card's index and reason; empty where the node reports no cards.
    pub cards: Vec<(u32, WhyNot)>,
    /// Whether an empty node would do: if not, no deletion of pods helps.
    pub could_ever_fit: bool,
}

impl fmt::Display for NoCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cards.is_empty() {
            return f
                .write_str("node reports no GPU cards: is gpushare-device-plugin running there?");
        }
        // The words before the colon are Aliyun's, which operators grep for.
        write!(f, "Insufficient GPU Memory in one device: asked {} units,", self.asked)?;
        for (i, (index, why)) in self.cards.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match why {
                WhyNot::Unhealthy => write!(f, "{comma} card {index} unhealthy")?,
                WhyNot::Free(free) => write!(f, "{comma} card {index} has {free} free")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for NoCard {}

/// Picks the card that the request fills best (fewest units left), the lowest index among equals.
///
/// # Errors
///
/// Each card's reason where none fits.
pub fn choose(cards: &[FreeCard], request: &GpuRequest) -> Result<Choice, NoCard> {
    let asked = request.peak();
    let fits = |card: &&FreeCard| card.healthy && card.free >= asked;
    let best = cards.iter().filter(fits).min_by_key(|card| (card.free, card.index));
    best.map(|card| place(card, asked)).ok_or_else(|| refuse(cards, asked))
}

fn place(card: &FreeCard, asked: Units) -> Choice {
    let left = card.free.saturating_sub(asked);
    Choice { uuid: card.uuid.clone(), index: card.index, units: card.units, left }
}

fn refuse(cards: &[FreeCard], asked: Units) -> NoCard {
    let why = |card: &FreeCard| {
        let reason = if card.healthy { WhyNot::Free(card.free) } else { WhyNot::Unhealthy };
        (card.index, reason)
    };
    let could_ever_fit = cards.iter().any(|card| card.units >= asked);
    NoCard { asked, cards: cards.iter().map(why).collect(), could_ever_fit }
}
