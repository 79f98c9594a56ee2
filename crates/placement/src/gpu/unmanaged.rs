//! Unmanaged memory: memory in use on cards beyond what pods hold there, by processes outside of pods with a charge, or
//! by pods that use more than they requested.
//!
//! A card's free units are all its units less what pods hold now and less its unmanaged units. The memory in use was
//! measured some time ago, so it is compared with what pods held at that time. A pod that has ended since is then not
//! counted as in use, and a pod that has started since is not counted twice.
//!
//! Invariants: a measurement that is missing or too old counts for nothing. Only what two measurements in a row show
//! counts: the first one after a pod's end may have been taken before it.

use jiff::{SignedDuration, Timestamp};

use super::Card;
use crate::units::{CardId, MiB, Units};

/// How long a measurement counts: the annotator renews the annotation after 10 minutes at most.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(15);

/// The driver may use 1/32 of a card's memory by itself.
const DRIVER_DIVISOR: u64 = 32;

/// What was measured on a node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// When it was measured.
    pub at: Timestamp,
    /// The cards whose memory in use is known.
    pub cards: Vec<MeasuredCard>,
}

/// What was measured on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredCard {
    /// The card.
    pub uuid: CardId,
    /// Memory in use.
    pub used: MiB,
    /// Units that pods held at that time.
    pub held: Units,
}

impl MeasuredMemory {
    /// Whether it still counts at `now`. A time too far in the future comes from a wrong clock.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() <= MAX_AGE
    }

    /// The memory in use on a card; `None` where that is not known.
    pub fn on(&self, card: &CardId) -> Option<MiB> {
        let measured = self.cards.iter().find(|measured| measured.uuid == *card);
        measured.map(|measured| measured.used)
    }

    /// The units of each card that are in use beyond what pods held; cards without such units are left out.
    pub fn unmanaged(&self, cards: &[Card]) -> Vec<(CardId, Units)> {
        cards
            .iter()
            .filter_map(|card| {
                let measured = self.cards.iter().find(|measured| measured.uuid == card.uuid)?;
                let units = measured.beyond_held(card);
                (!units.is_zero()).then(|| (card.uuid.clone(), units))
            })
            .collect()
    }
}

impl MeasuredCard {
    /// The units in use beyond what pods held, rounded up. The driver's own memory is not counted.
    fn beyond_held(&self, card: &Card) -> Units {
        let memory = card.memory.0;
        let units = u64::from(card.units.0);
        let unit = memory.checked_div(units).unwrap_or(0).max(1);
        let kept_back = memory.saturating_sub(unit.saturating_mul(units));
        let of_pods = unit.saturating_mul(u64::from(self.held.0));
        let expected = of_pods.saturating_add(kept_back.max(memory / DRIVER_DIVISOR));
        let beyond = self.used.0.saturating_sub(expected).div_ceil(unit).min(units);
        Units(u32::try_from(beyond).unwrap_or(card.units.0))
    }
}

/// For each card in both lists, the smaller number of units.
pub fn in_both_measurements(
    one: &[(CardId, Units)],
    other: &[(CardId, Units)],
) -> Vec<(CardId, Units)> {
    one.iter()
        .filter_map(|(card, units)| {
            let (_, also) = other.iter().find(|(known, _)| known == card)?;
            Some((card.clone(), *units.min(also)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::CardIsolation;

    fn card(memory: u64, units: u32) -> Card {
        Card {
            uuid: "GPU-0".into(),
            index: 0,
            model: "NVIDIA A10".into(),
            memory: MiB(memory),
            units: Units(units),
            numa_node: None,
            healthy: true,
            closed: None,
            isolation: CardIsolation::default(),
            outside_mps: Vec::new(),
            pods: [].into(),
        }
    }

    fn beyond(card: &Card, used: u64, held: u32) -> u32 {
        let measured = MeasuredCard { uuid: "GPU-0".into(), used: MiB(used), held: Units(held) };
        let at = Timestamp::UNIX_EPOCH;
        let measured = MeasuredMemory { at, cards: vec![measured] };
        measured.unmanaged(std::slice::from_ref(card)).iter().map(|(_, units)| units.0).sum()
    }

    #[test]
    fn what_pods_hold_is_not_counted_twice() {
        let card = card(24_576, 24);
        assert_eq!(beyond(&card, 8 * 1024, 10), 0);
        assert_eq!(beyond(&card, 10 * 1024, 10), 0);
        assert_eq!(beyond(&card, 16 * 1024, 10), 6);
        assert_eq!(beyond(&card, 90 * 1024, 10), 24);
    }

    #[test]
    fn an_idle_card_is_free_whatever_its_driver_uses() {
        assert_eq!(beyond(&card(24_576, 24), 700, 0), 0);
        assert_eq!(beyond(&card(23_028, 22), 500, 0), 0);
        // Units of 1 MiB.
        assert_eq!(beyond(&card(16_384, 16_384), 500, 0), 0);
        assert_eq!(beyond(&card(16_384, 16_384), 1_500, 0), 988);
        // No units: nothing to count.
        assert_eq!(beyond(&card(16_384, 0), 9_000, 0), 0);
    }

    #[test]
    fn what_only_one_measurement_shows_does_not_count() {
        let of = |units: u32| vec![(CardId::from("GPU-0"), Units(units))];
        assert_eq!(in_both_measurements(&of(6), &of(4)), of(4));
        assert_eq!(in_both_measurements(&of(6), &[]), []);
    }

    #[test]
    fn an_old_measurement_and_one_from_the_future_do_not_count() {
        let measured = MeasuredMemory { at: Timestamp::UNIX_EPOCH, cards: Vec::new() };
        for (seconds, counts) in [(0, true), (900, true), (901, false), (-901, false)] {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(measured.is_fresh(now), counts, "{seconds}");
        }
    }
}
