//! Cards on which CUDA opens no context: containers start, and their programs fail.

use std::collections::BTreeMap;
use std::fmt;

use placement::units::CardId;

use super::{Card, Cards};

/// Why CUDA opens no context, by GPU.
pub(crate) type FailedContexts = BTreeMap<CardId, String>;

/// A GPU that takes no new pods for it. Its text becomes an event of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedCard {
    index: u32,
    /// The GPU.
    pub uuid: CardId,
    why: String,
}

impl fmt::Display for FailedCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, uuid, why } = self;
        write!(
            f,
            "GPU {index} ({uuid}) takes no new pods: NVML answers for it, and CUDA opens no context: {why}"
        )
    }
}

/// Those of the cards that failed.
pub(crate) fn failed(cards: &Cards, failed: &FailedContexts) -> Vec<FailedCard> {
    let with_why = |card: &Card| {
        let why = failed.get(&card.uuid)?.clone();
        Some(FailedCard { index: card.index, uuid: card.uuid.clone(), why })
    };
    cards.iter().filter_map(with_why).collect()
}
