//! Device ids, which the kubelet keeps in its checkpoint and hands back after restarts.

use std::collections::BTreeSet;

use gpushare_device_plugin::cards::ids::{DeviceId, digits, prefixes};
use placement::units::CardId;

use crate::text;

/// An id that parses is written as it was, and two cards with different UUIDs have different prefixes.
pub(crate) fn device_ids(input: &[u8]) {
    let Some(text) = text(input) else { return };
    for line in text.lines() {
        if let Ok(id) = line.parse::<DeviceId>() {
            assert_eq!(id.to_string(), line);
        }
    }
    let cards: Vec<CardId> = text.lines().take(16).map(CardId::from).collect();
    let known: BTreeSet<String> = cards.iter().map(digits).collect();
    let prefixes = prefixes(&cards);
    assert_eq!(prefixes.iter().collect::<BTreeSet<_>>().len(), known.len(), "{prefixes:?}");
    for prefix in prefixes.iter().filter(|prefix| !prefix.is_empty()) {
        let id = DeviceId::new(prefix, u32::MAX);
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

pub(crate) fn ids() -> Vec<Vec<u8>> {
    ["a1b2c3d4-7\nGPU-a1b2c3d4-01\nGPU-a1b2c3d4-02\nGPU-ffffffff-01\n", "a1b2c3d4-07\n-7\nMIG-1\n"]
        .map(Vec::from)
        .into()
}
