//! The newest samples, one slot each, in a ring buffer of 4 bytes a slot.
//!
//! It is allocated in chunks, which saves 2.7 of 36.6 KiB a signal and day: see [`CHUNK`].

use std::ops::RangeInclusive;

use super::interval::Slot;

/// The slots of one allocation. They fill musl's size class just below 8 KiB. A day in one allocation, 33.9 KiB, would
/// get one of 36.6 KiB, of which the rest is lost.
const CHUNK: usize = 2_043;

/// The newest `capacity` slots. They are written in order; a new slot overwrites the oldest.
#[derive(Debug)]
pub(super) struct Ring {
    /// NaN marks a gap: an `Option<f32>` would take 8 bytes.
    chunks: Box<[Box<[f32]>]>,
    capacity: u32,
}

impl Ring {
    /// All gaps, at least one slot.
    pub(super) fn new(slots: u32) -> Self {
        let capacity = slots.max(1);
        Self {
            chunks: (0..capacity as usize)
                .step_by(CHUNK)
                .map(|first| vec![f32::NAN; CHUNK.min(capacity as usize - first)].into())
                .collect(),
            capacity,
        }
    }

    /// The bytes that so many slots take.
    pub(super) fn bytes(capacity: u32) -> usize {
        let slots = capacity as usize;
        slots * size_of::<f32>() + slots.div_ceil(CHUNK) * size_of::<Box<[f32]>>()
    }

    /// In slots.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Writes the next slot; `None` is a gap.
    pub(super) fn put(&mut self, slot: Slot, value: Option<f32>) {
        let (chunk, place) = self.position(slot);
        self.chunks[chunk][place] = value.unwrap_or(f32::NAN);
    }

    /// The sample in one of the newest `capacity` slots.
    pub(super) fn get(&self, slot: Slot) -> Option<f32> {
        let (chunk, place) = self.position(slot);
        let value = self.chunks[chunk][place];
        (!value.is_nan()).then_some(value)
    }

    /// The samples in a run of the newest `capacity` slots, oldest first, without the gaps. Faster than slot by slot.
    pub(super) fn run(&self, slots: RangeInclusive<Slot>) -> impl Iterator<Item = f32> {
        let (first, last) = slots.into_inner();
        let around = self.chunks.iter().flatten().copied().cycle();
        let run = around.skip((first % self.capacity) as usize).take((last - first) as usize + 1);
        run.filter(|value| !value.is_nan())
    }

    pub(super) fn clear(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.fill(f32::NAN));
    }

    /// Chunk and place in it.
    fn position(&self, slot: Slot) -> (usize, usize) {
        let position = (slot % self.capacity) as usize;
        (position / CHUNK, position % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_stay_gaps_and_new_slots_overwrite_the_oldest() {
        let mut ring = Ring::new(2);
        ring.put(7, Some(1.0));
        ring.put(8, None);
        assert_eq!((ring.get(7), ring.get(8)), (Some(1.0), None));
        ring.put(9, Some(3.0));
        assert_eq!((ring.get(8), ring.get(9)), (None, Some(3.0)));
    }

    #[test]
    fn chunks_are_one_ring() {
        for capacity in [1, 2_042, 2_043, 2_044, 4_086, 5_000] {
            let mut ring = Ring::new(capacity);
            (0..6_000).for_each(|slot| ring.put(slot, Some(slot as f32)));
            let kept = 6_000 - capacity..6_000;
            assert!(kept.clone().all(|slot| ring.get(slot) == Some(slot as f32)), "{capacity}");
            let run = ring.run(kept.start + capacity / 3..=5_999).map(|value| value as u32);
            assert!(run.eq(kept.start + capacity / 3..6_000), "{capacity}");
            let slots: usize = ring.chunks.iter().map(|chunk| chunk.len()).sum();
            assert_eq!(slots, capacity as usize);
            assert_eq!(Ring::bytes(capacity), slots * 4 + ring.chunks.len() * 16);
        }
    }
}
