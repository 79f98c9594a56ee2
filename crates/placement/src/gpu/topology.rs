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
}

impl FromIterator<u32> for GpuSet {
    /// Ignores indexes that are not below 64.
    fn from_iter<T: IntoIterator<Item = u32>>(indexes: T) -> Self {
        Self(indexes.into_iter().filter(|index| *index < MOST).fold(0, |all, it| all | 1 << it))
    }
}
