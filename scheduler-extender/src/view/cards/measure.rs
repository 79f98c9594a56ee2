//! The measure of fragmentation: learned from the pods that request cards, and recomputed periodically.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use placement::gpu::fragmentation::{Learner, Measure, NodeClass, PodShape, TypicalPods};
use placement::gpu::{Account, GpuRequest, NodeCards};
use placement::units::NodeName;

use super::CardBook;

/// The measure, as one immutable value that is swapped as a whole, and the data that it is computed from.
#[derive(Debug, Default)]
pub(super) struct LearnedMeasure {
    measure: ArcSwapOption<Measure>,
    learned: Mutex<Learned>,
}

#[derive(Debug, Default)]
struct Learned {
    learner: Learner,
    /// The nodes for which the measure was computed.
    classes: Vec<NodeClass>,
}

/// A kind of cards: CPU of the node, model and units.
pub(super) type CardKind = (Option<u64>, String, u32);

impl LearnedMeasure {
    /// The measure in force; `None` until enough pods were seen.
    pub(super) fn current(&self) -> Option<Arc<Measure>> {
        self.measure.load_full()
    }

    /// Counts a new pod.
    pub(super) fn observe(&self, request: &GpuRequest) {
        self.lock().learner.observe(&PodShape::of(request));
    }

    /// Recomputes the measure if enough pods have come since, or nodes have changed. Takes some milliseconds.
    pub(super) fn renew(&self, nodes: impl Iterator<Item = Vec<CardKind>>) {
        let classes = classes(nodes);
        // The lock is not held during the computation: each new pod is counted under it.
        let due = self.lock().due(&classes);
        if let Some(typical) = due {
            self.measure.store(Some(Arc::new(Measure::new(&typical, &classes))));
        }
    }

    // Every change is one call, so that a panic leaves no partial change.
    fn lock(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learned {
    fn due(&mut self, classes: &[NodeClass]) -> Option<TypicalPods> {
        let changed = self.learner.has_begun() && self.classes != classes;
        if classes.is_empty() || !changed && !self.learner.is_due() {
            return None;
        }
        self.classes = classes.to_vec();
        Some(self.learner.take())
    }
}

/// The classes of equal nodes. A node with cards of several kinds counts in the class of each.
fn classes(nodes: impl Iterator<Item = Vec<CardKind>>) -> Vec<NodeClass> {
    let mut counts: BTreeMap<(CardKind, usize), usize> = BTreeMap::new();
    for cards in nodes {
        let mut kinds: BTreeMap<CardKind, usize> = BTreeMap::new();
        cards.into_iter().for_each(|kind| *kinds.entry(kind).or_default() += 1);
        kinds.into_iter().for_each(|kind| *counts.entry(kind).or_default() += 1);
    }
    let class = |(((cpu, model, units), cards), count): ((CardKind, usize), usize)| NodeClass {
        count,
        cpu,
        model,
        cards,
        units: placement::units::Units(units),
    };
    counts.into_iter().map(class).collect()
}

impl CardBook {
    /// The measure of fragmentation; `None` until enough pods were seen.
    pub fn measure(&self) -> Option<Arc<Measure>> {
        self.measure.current()
    }

    /// Recomputes the measure if that is due. Takes some milliseconds.
    pub fn renew_measure(&self) {
        let index = self.read();
        let kinds = |(node, cards): (&NodeName, &Arc<NodeCards>)| -> Vec<CardKind> {
            let cpu = self.cpus.allocatable(node);
            let kind = |account: &Account| {
                let card = &account.card;
                (cpu, card.model.to_string(), card.units.0)
            };
            cards.accounts().iter().map(kind).collect()
        };
        self.measure.renew(index.nodes().map(kinds));
    }
}

#[cfg(test)]
mod tests {
    use placement::units::Units;

    use super::*;

    fn nodes(count: usize) -> impl Iterator<Item = Vec<CardKind>> {
        let kind = |units| (Some(64_000), "NVIDIA A10".to_owned(), units);
        (0..count).map(move |_| vec![kind(24), kind(24), kind(16)])
    }

    #[test]
    fn there_is_no_measure_before_enough_pods_were_seen() {
        let (measure, request) = (LearnedMeasure::default(), GpuRequest::single("main", Units(8)));
        let request = request.unwrap();
        (0..15).for_each(|_| measure.observe(&request));
        measure.renew(nodes(3));
        assert!(measure.current().is_none());
        measure.observe(&request);
        // Nodes may not have been listed yet.
        measure.renew(nodes(0));
        assert!(measure.current().is_none());
        measure.renew(nodes(3));
        let first = measure.current().unwrap();
        measure.renew(nodes(3));
        assert!(Arc::ptr_eq(&first, &measure.current().unwrap()));
        measure.renew(nodes(4));
        let second = measure.current().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        (0..5).for_each(|_| measure.observe(&request));
        measure.renew(nodes(4));
        assert!(!Arc::ptr_eq(&second, &measure.current().unwrap()));
    }

    #[test]
    fn nodes_that_are_alike_are_one_class() {
        let found: Vec<_> = classes(nodes(3))
            .iter()
            .map(|class| (class.count, class.cards, class.units.0))
            .collect();
        assert_eq!(found, [(3, 1, 16), (3, 2, 24)]);
    }
}
