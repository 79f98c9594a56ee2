//! A card as its node reports it.

use std::collections::BTreeMap;

use crate::units::{CardId, CardModel, MiB, PodUid, Units};

/// One GPU card of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Card {
    /// NVML's UUID, the card's lasting name.
    pub uuid: CardId,
    /// NVML's index on this boot; what Aliyun's annotations speak of.
    pub index: u32,
    /// The product's name, e.g. `NVIDIA A10`.
    pub model: CardModel,
    /// The card's memory.
    pub memory: MiB,
    /// Units of it that pods can request.
    pub units: Units,
    /// The NUMA node that the card is attached to, where known.
    pub numa_node: Option<u32>,
    /// Whether pods may be placed on it now.
    pub healthy: bool,
    /// Units that the kubelet's records say each pod holds here.
    pub pods: BTreeMap<PodUid, Units>,
}
