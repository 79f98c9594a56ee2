//! Owns the random numbers of a schedule: SplitMix64, written out so that a seed means the same for ever.

/// A source of numbers.
pub(super) struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end` - 1; 0 where `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A place in a list of this length.
    pub(super) fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True so many times in 100.
    pub(super) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    /// One of these.
    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.place(all.len())).copied()
    }

    /// The same in another order.
    pub(super) fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        for end in (1..all.len()).rev() {
            all.swap(end, self.place(end + 1));
        }
        all
    }
}
