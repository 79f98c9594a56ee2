//! The cluster as it fills up.

use super::trace::{MOST_CARDS, Model, NodeKind, PodKind, WHOLE};

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
    /// The cards' model.
    pub model: Model,
    /// Cards.
    pub cards: u8,
    /// CPU free, in thousandths of a core.
    pub cpu: u32,
    /// Of each card, what is free, in thousandths. Cards that the node lacks have 0.
    pub free: [u16; MOST_CARDS],
}

/// The cards that a pod is on, a bit each.
pub type Cards = u16;

impl NodeRoom {
    /// What is free of the node's cards.
    pub fn free(&self) -> &[u16] {
        &self.free[..usize::from(self.cards)]
    }

    /// Cards with room for `milli`.
    pub fn with_room(&self, milli: u32) -> usize {
        self.free().iter().filter(|free| u32::from(**free) >= milli).count()
    }

    /// Whether a pod fits, but for memory.
    pub fn fits(&self, pod: &PodKind) -> bool {
        self.cpu >= pod.cpu
            && (pod.cards == 0
                || (pod.models.contain(self.model) && self.with_room(pod.milli) >= pod.cards))
    }

    /// The first `pod.cards` cards with room, the one way for a pod of whole cards.
    pub fn first(&self, pod: &PodKind) -> Cards {
        let roomy =
            (0..usize::from(self.cards)).filter(|at| u32::from(self.free[*at]) >= pod.milli);
        roomy.take(pod.cards).fold(0, |cards, at| cards | 1 << at)
    }

    /// The room once `pod` is on `cards`.
    #[must_use]
    pub fn with(mut self, pod: &PodKind, cards: Cards) -> Self {
        self.cpu -= pod.cpu;
        for (at, free) in self.free.iter_mut().enumerate() {
            if cards >> at & 1 == 1 {
                *free -= pod.milli as u16;
            }
        }
        self
    }

    /// The room once `pod` has left `cards`.
    #[must_use]
    pub fn without(mut self, pod: &PodKind, cards: Cards) -> Self {
        self.cpu += pod.cpu;
        for (at, free) in self.free.iter_mut().enumerate() {
            if cards >> at & 1 == 1 {
                *free += pod.milli as u16;
            }
        }
        self
    }
}

impl Node {
    /// An empty node.
    pub fn new(kind: &NodeKind) -> Self {
        let mut free = [0; MOST_CARDS];
        free[..kind.cards].fill(WHOLE as u16);
        let room = NodeRoom { model: kind.model, cards: kind.cards as u8, cpu: kind.cpu, free };
        Self { memory: kind.memory, room }
    }

    /// Puts a pod on `cards`.
    pub fn put(&mut self, pod: &PodKind, cards: Cards) {
        self.memory -= pod.memory;
        self.room = self.room.with(pod, cards);
    }

    /// Takes a pod off `cards`.
    pub fn take_off(&mut self, pod: &PodKind, cards: Cards) {
        self.memory += pod.memory;
        self.room = self.room.without(pod, cards);
    }

    /// Whether a pod fits.
    pub fn fits(&self, pod: &PodKind) -> bool {
        self.memory >= pod.memory && self.room.fits(pod)
    }
}
