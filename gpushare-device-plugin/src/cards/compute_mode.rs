//! Cards whose compute mode keeps the programs of pods from them: containers start, and CUDA finds no card in them.

use std::fmt;

use nvml::ComputeMode;
use placement::gpu::Isolation;
use placement::units::CardId;

use super::{Card, Cards};

/// A card, and the compute mode for which it takes no new pods. Its text becomes an event of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BarredCard {
    index: u32,
    /// The card.
    pub uuid: CardId,
    mode: ComputeMode,
}

impl fmt::Display for BarredCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, uuid, mode } = self;
        let (admits, or) = match mode {
            ComputeMode::Prohibited => ("no process", ""),
            _ => (
                "one process at a time",
                ", or have it shared by MPS (value mps.enabled, --isolation=mps)",
            ),
        };
        write!(
            f,
            "GPU {index} ({uuid}) takes no new pods: its compute mode {mode} admits {admits}. Run `nvidia-smi -i {uuid} \
             -c DEFAULT` on the node{or}"
        )
    }
}

/// The cards that take no new pods for their mode. `isolation` is the mode of pods without an annotation: where that is
/// MPS, its server is the one process of a card.
pub(crate) fn barred(cards: &Cards, isolation: Option<Isolation>) -> Vec<BarredCard> {
    let is_barred = |mode: &ComputeMode| match mode {
        ComputeMode::Default => false,
        ComputeMode::ExclusiveProcess => isolation != Some(Isolation::Mps),
        ComputeMode::Prohibited => true,
    };
    let with_mode = |card: &Card| {
        let mode = card.compute_mode.filter(is_barred)?;
        Some(BarredCard { index: card.index, uuid: card.uuid.clone(), mode })
    };
    cards.iter().filter_map(with_mode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::Card;
    use crate::fixtures::{A, B, cards};

    fn barred_in(mode: Option<ComputeMode>, isolation: Option<Isolation>) -> Vec<String> {
        let all = cards(&[(A, 4), (B, 4)]);
        let all = all.iter().map(|card| {
            let compute_mode = if card.uuid.as_str() == B { mode } else { None };
            Card { compute_mode, ..card.clone() }
        });
        let barred = barred(&Cards::new(all.collect()), isolation);
        barred.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_card_for_one_process_is_for_mps_and_one_for_none_is_closed() {
        use Isolation::{Driver, Mps};
        let (exclusive, prohibited) =
            (Some(ComputeMode::ExclusiveProcess), Some(ComputeMode::Prohibited));
        for isolation in [None, Some(Isolation::None), Some(Driver), Some(Mps)] {
            assert!(barred_in(None, isolation).is_empty(), "unknown is not exclusive");
            assert!(barred_in(Some(ComputeMode::Default), isolation).is_empty());
            let is_shared = isolation == Some(Mps);
            assert_eq!(barred_in(exclusive, isolation).is_empty(), is_shared, "{isolation:?}");
            assert_eq!(barred_in(prohibited, isolation).len(), 1, "{isolation:?}");
        }
    }

    #[test]
    fn the_text_names_the_card_the_mode_and_the_fix() {
        let exclusive = &barred_in(Some(ComputeMode::ExclusiveProcess), None)[0];
        let prohibited = &barred_in(Some(ComputeMode::Prohibited), None)[0];
        for (text, mode, admits) in [
            (exclusive, "EXCLUSIVE_PROCESS", "one process"),
            (prohibited, "PROHIBITED", "no process"),
        ] {
            let parts = [mode, admits, &format!("nvidia-smi -i {B} -c DEFAULT")];
            assert!(parts.iter().all(|part| text.contains(*part)), "{text}");
        }
        assert!(exclusive.contains("mps.enabled") && !prohibited.contains("mps.enabled"));
    }
}
