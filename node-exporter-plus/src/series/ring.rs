//! The samples themselves, one slot each.

use std::ops::RangeInclusive;

use super::interval::Slot;

/// How many slots are one piece of memory. They fill the size just below 8 KiB that musl's allocator has; a day in one
/// piece, 33.9 KiB, is put into 36.6, of which the rest is lost.
const PIECE: usize = 2_043;

/// The newest `capacity` slots. Written slot after slot; what falls out is forgotten.
#[derive(Debug)]
pub(super) struct Ring {
    /// NaN marks a gap: 4 bytes a sample, where an `Option` would take 8.
    pieces: Box<[Box<[f32]>]>,
    capacity: u32,
}

impl Ring {
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let piece = |first| vec![f32::NAN; PIECE.min(capacity as usize - first)].into();
        Self { pieces: (0..capacity as usize).step_by(PIECE).map(piece).collect(), capacity }
    }

    /// The bytes that so many slots take.
    pub(super) fn bytes(capacity: u32) -> usize {
        let slots = capacity as usize;
        slots * size_of::<f32>() + slots.div_ceil(PIECE) * size_of::<Box<[f32]>>()
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn put(&mut self, slot: Slot, value: Option<f32>) {
        let (piece, place) = self.position(slot);
        self.pieces[piece][place] = value.unwrap_or(f32::NAN);
    }

    /// The sample in one of the newest `capacity` slots.
    pub(super) fn get(&self, slot: Slot) -> Option<f32> {
        let (piece, place) = self.position(slot);
        let value = self.pieces[piece][place];
        (!value.is_nan()).then_some(value)
    }

    /// The samples in a run of the newest `capacity` slots, the oldest first, without gaps: faster than one by one.
    pub(super) fn run(&self, slots: RangeInclusive<Slot>) -> impl Iterator<Item = f32> {
        let (first, last) = slots.into_inner();
        let around = self.pieces.iter().flatten().copied().cycle();
        let run = around.skip((first % self.capacity) as usize).take((last - first) as usize + 1);
        run.filter(|value| !value.is_nan())
    }

    pub(super) fn clear(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.fill(f32::NAN));
    }

    fn position(&self, slot: Slot) -> (usize, usize) {
        let position = (slot % self.capacity) as usize;
        (position / PIECE, position % PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_gap_and_old_samples_make_room() {
        let mut ring = Ring::new(2);
        ring.put(7, Some(1.0));
        ring.put(8, None);
        assert_eq!((ring.get(7), ring.get(8)), (Some(1.0), None));
        ring.put(9, Some(3.0));
        assert_eq!((ring.get(8), ring.get(9)), (None, Some(3.0)));
    }

    #[test]
    fn pieces_are_one_ring() {
        for capacity in [1, 2_042, 2_043, 2_044, 4_086, 5_000] {
            let mut ring = Ring::new(capacity);
            (0..6_000).for_each(|slot| ring.put(slot, Some(slot as f32)));
            let kept = 6_000 - capacity..6_000;
            assert!(kept.clone().all(|slot| ring.get(slot) == Some(slot as f32)), "{capacity}");
            let run = ring.run(kept.start + capacity / 3..=5_999).map(|value| value as u32);
            assert!(run.eq(kept.start + capacity / 3..6_000), "{capacity}");
            let slots: usize = ring.pieces.iter().map(|piece| piece.len()).sum();
            assert_eq!(slots, capacity as usize);
            assert_eq!(Ring::bytes(capacity), slots * 4 + ring.pieces.len() * 16);
        }
    }
}
