//! The samples themselves, one slot each.

use super::interval::Slot;

/// The newest `capacity` slots. Written slot after slot; what falls out is forgotten.
#[derive(Debug)]
pub(super) struct Ring {
    /// NaN marks a gap: 4 bytes a sample, where an `Option` would take 8.
    slots: Box<[f32]>,
}

impl Ring {
    pub(super) fn new(capacity: u32) -> Self {
        Self { slots: vec![f32::NAN; capacity.max(1) as usize].into() }
    }

    pub(super) fn capacity(&self) -> u32 {
        // Made from a `u32`.
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn put(&mut self, slot: Slot, value: Option<f32>) {
        let position = self.position(slot);
        self.slots[position] = value.unwrap_or(f32::NAN);
    }

    /// The sample in one of the newest `capacity` slots.
    pub(super) fn get(&self, slot: Slot) -> Option<f32> {
        let value = self.slots[self.position(slot)];
        (!value.is_nan()).then_some(value)
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(f32::NAN);
    }

    fn position(&self, slot: Slot) -> usize {
        slot as usize % self.slots.len()
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
}
