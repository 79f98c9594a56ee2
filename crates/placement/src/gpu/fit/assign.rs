//! Finding a card of its own for each of several shares.
//!
//! The shares of a request are sorted, the largest first. So a greedy choice finds cards for all shares whenever some
//! choice does.

use crate::gpu::{CardShare, FreeCard};

/// For each share the first card that fits it and is not taken yet. Where all that fit it are taken, an earlier share
/// gives way if it fits another card: a card that fits the largest share may be too large for the compute or the
/// exclusive card of a smaller one.
pub(super) fn assign<'a>(
    cards: &[&'a FreeCard],
    shares: &[CardShare],
    fits: impl Fn(&FreeCard, CardShare) -> bool,
) -> Option<Vec<&'a FreeCard>> {
    let mut taken: Vec<Option<usize>> = vec![None; cards.len()];
    for share in 0..shares.len() {
        let mut tried = vec![false; cards.len()];
        if !put(share, &mut taken, &mut tried, &|share, card| fits(cards[card], shares[share])) {
            return None;
        }
    }
    (0..shares.len())
        .map(|share| taken.iter().position(|by| *by == Some(share)).map(|at| cards[at]))
        .collect()
}

/// Puts a share on a card, and the share that was there on another one. `taken`: the share on each card. `tried`: cards
/// that cannot be freed.
fn put(
    share: usize,
    taken: &mut [Option<usize>],
    tried: &mut [bool],
    fits: &impl Fn(usize, usize) -> bool,
) -> bool {
    let free = (0..taken.len()).find(|card| taken[*card].is_none() && fits(share, *card));
    if let Some(card) = free {
        taken[card] = Some(share);
        return true;
    }
    for card in 0..taken.len() {
        let Some(other) = taken[card] else {
            continue;
        };
        if tried[card] || !fits(share, card) {
            continue;
        }
        tried[card] = true;
        if put(other, taken, tried, fits) {
            taken[card] = Some(share);
            return true;
        }
    }
    false
}
