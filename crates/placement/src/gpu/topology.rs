//! Where a GPU is in its machine.

/// The most GPUs whose links count: a node's report has no more.
const MOST: u32 = u64::BITS;

/// Where a GPU is in its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Topology {
    /// The NUMA node that it is attached to, where known.
    pub numa_node: Option<u32>,
    /// The GPUs that it reaches over NVLink.
    pub linked: GpuSet,
}

/// GPUs of a node by their indexes below 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct GpuSet(u64);

impl GpuSet {
    /// Whether the GPU of this index is one of them.
    pub fn contains(self, index: u32) -> bool {
        index < MOST && self.0 & 1 << index != 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether it has all of these.
    pub(super) fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Adds the GPU of this index, which is ignored where it is not below 64.
    pub(super) fn add(&mut self, index: u32) {
        if index < MOST {
            self.0 |= 1 << index;
        }
    }
}

impl FromIterator<u32> for GpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(indexes: T) -> Self {
        let mut all = Self::default();
        indexes.into_iter().for_each(|index| all.add(index));
        all
    }
}
