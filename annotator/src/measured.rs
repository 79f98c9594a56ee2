//! What an exporter measured of each card, found among its values by their names and the card's UUID.
//!
//! Names: `gpu_<index>_usage_active`, percent of the time of the last sample that the card was busy;
//! `gpu_<index>_mem_bytes_active`, bytes of its memory in use. What was not measured is absent.

use std::collections::BTreeMap;

use placement::gpu::CardShare;
use placement::units::{CardId, MiB};

const MIB: f64 = 1_048_576.0;

/// What was measured of one card.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Measured {
    used: Option<MiB>,
    /// The part of the time that the card was busy, from 0 to 1.
    utilisation: Option<f64>,
}

/// What was measured of a node's cards.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements(BTreeMap<CardId, Measured>);

impl Measurements {
    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The card with what was measured of it; what was not stays as it was.
    #[must_use]
    pub fn add_to(&self, card: CardShare) -> CardShare {
        let measured = self.0.get(&card.uuid).copied().unwrap_or_default();
        CardShare {
            used: measured.used.or(card.used),
            utilisation: measured.utilisation.or(card.utilisation),
            ..card
        }
    }

    /// Takes over a value of a card; one that tells something else is passed over.
    pub(crate) fn take(&mut self, metric: &str, card: &str, value: f64) {
        let Some(what) = after_the_index(metric) else { return };
        let card = || CardId::from(card);
        match what {
            "usage_active" if value <= 100.0 => {
                self.0.entry(card()).or_default().utilisation = Some(value / 100.0);
            }
            "mem_bytes_active" => {
                self.0.entry(card()).or_default().used = Some(MiB((value / MIB) as u64));
            }
            _ => {}
        }
    }
}

/// `gpu_12_usage_active` is `usage_active` of a card; `gpu_usage_active` is of the node.
fn after_the_index(metric: &str) -> Option<&str> {
    let (index, what) = metric.strip_prefix("gpu_")?.split_once('_')?;
    (!index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::units::Units;

    #[test]
    fn names_tell_cards_from_the_node_and_one_measure_from_another() {
        let mut all = Measurements::default();
        let values = [
            ("gpu_0_usage_active", 60.0),
            ("gpu_0_mem_usage_active", 25.0),
            ("gpu_0_mem_bytes_active", 4_294_967_296.0),
            ("gpu_0_usage_avg_5m", 1.0),
            ("gpu_usage_active", 15.0),
            ("gpu_mem_bytes_active", 7.0),
            ("gpu__usage_active", 7.0),
            ("cpu_usage_active", 7.0),
        ];
        values.iter().for_each(|(metric, value)| all.take(metric, "GPU-a", *value));
        all.take("gpu_11_usage_active", "GPU-b", 0.0);
        all.take("gpu_12_usage_active", "GPU-c", 101.0);
        let of = |uuid: &str| {
            let card = CardShare {
                uuid: uuid.into(),
                units: Units(16),
                allocated: Units(3),
                used: None,
                utilisation: None,
            };
            let told = all.add_to(card);
            (told.used, told.utilisation)
        };
        assert_eq!(of("GPU-a"), (Some(MiB(4096)), Some(0.6)));
        assert_eq!(of("GPU-b"), (None, Some(0.0)));
        assert_eq!(of("GPU-c"), (None, None));
    }
}
