//! The cluster as it fills up.

use super::trace::{MOST_GPUS, Model, NodeKind, PodKind, WHOLE};

/// A node and what is free of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Memory free, in MiB.
    pub memory: u32,
    /// The rest.
    pub room: NodeRoom,
}

/// What a measure of fragmentation looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeRoom {
    /// The GPUs' model.
    pub model: Model,
    /// GPUs.
    pub gpus: u8,
    /// CPU free, in thousandths of a core.
    pub cpu: u32,
    /// Of each GPU, what is free, in thousandths. GPUs that the node lacks have 0.
    pub free: [u16; MOST_GPUS],
}

/// The GPUs that a pod is on, a bit each.
pub type Gpus = u16;

impl NodeRoom {
    /// What is free of the node's GPUs.
    pub fn free(&self) -> &[u16] {
        &self.free[..usize::from(self.gpus)]
    }

    /// GPUs with room for `milli`.
    pub fn with_room(&self, milli: u32) -> usize {
        self.free().iter().filter(|free| u32::from(**free) >= milli).count()
    }

    /// Whether a pod fits, but for memory.
    pub fn fits(&self, pod: &PodKind) -> bool {
        self.cpu >= pod.cpu
            && (pod.gpus == 0
                || (pod.models.contain(self.model) && self.with_room(pod.milli) >= pod.gpus))
    }

    /// The first `pod.gpus` GPUs with room, the one way for a pod of whole GPUs.
    pub fn first(&self, pod: &PodKind) -> Gpus {
        let roomy = (0..usize::from(self.gpus)).filter(|at| u32::from(self.free[*at]) >= pod.milli);
        roomy.take(pod.gpus).fold(0, |gpus, at| gpus | 1 << at)
    }

    /// The room once `pod` is on `gpus`.
    #[must_use]
    pub fn with(mut self, pod: &PodKind, gpus: Gpus) -> Self {
        self.cpu -= pod.cpu;
        for (at, free) in self.free.iter_mut().enumerate() {
            if gpus >> at & 1 == 1 {
                *free -= pod.milli as u16;
            }
        }
        self
    }

    /// The room once `pod` has left `gpus`.
    #[must_use]
    pub fn without(mut self, pod: &PodKind, gpus: Gpus) -> Self {
        self.cpu += pod.cpu;
        for (at, free) in self.free.iter_mut().enumerate() {
            if gpus >> at & 1 == 1 {
                *free += pod.milli as u16;
            }
        }
        self
    }
}

impl Node {
    /// An empty node.
    pub fn new(kind: &NodeKind) -> Self {
        let mut free = [0; MOST_GPUS];
        free[..kind.gpus].fill(WHOLE as u16);
        let room = NodeRoom { model: kind.model, gpus: kind.gpus as u8, cpu: kind.cpu, free };
        Self { memory: kind.memory, room }
    }

    /// Puts a pod on `gpus`.
    pub fn put(&mut self, pod: &PodKind, gpus: Gpus) {
        self.memory -= pod.memory;
        self.room = self.room.with(pod, gpus);
    }

    /// Takes a pod off `gpus`.
    pub fn take_off(&mut self, pod: &PodKind, gpus: Gpus) {
        self.memory += pod.memory;
        self.room = self.room.without(pod, gpus);
    }

    /// Whether a pod fits.
    pub fn fits(&self, pod: &PodKind) -> bool {
        self.memory >= pod.memory && self.room.fits(pod)
    }
}
