//! The measure of fragmentation: learned from the pods that got GPUs, and recomputed periodically.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::gpu::fragmentation::{
    HeldParts, Measure, NodeClass, PodShape, RequestCounter, TypicalPods,
};
use placement::gpu::{GivenOut, GpuRequest};
use placement::units::Units;

use super::Index;
use super::nodes::Node;

/// The measure, as one immutable value, and the data that it is computed from.
#[derive(Debug, Clone, Default)]
pub(super) struct LearnedMeasure {
    measure: Option<Arc<Measure>>,
    learner: RequestCounter,
    /// The nodes for which the measure was computed.
    classes: Vec<NodeClass>,
}

/// A kind of GPUs: CPU of the node, model and units.
type GpuKind<'n> = (Option<u64>, &'n str, u32);

/// What a measure is computed from.
#[derive(Debug)]
pub(in crate::view) struct MeasureInput {
    typical: TypicalPods,
    classes: Vec<NodeClass>,
}

impl MeasureInput {
    /// Computes the measure, while pods hold what is in `held`. Takes some milliseconds.
    pub(in crate::view) fn compute(&self, held: &HeldParts) -> Measure {
        Measure::new(&self.typical, held, &self.classes)
    }
}

impl LearnedMeasure {
    /// A measure that nothing has been learned for since.
    pub(super) fn of(measure: Option<Arc<Measure>>) -> Self {
        Self { measure, ..Self::default() }
    }

    /// The measure in force; `None` until enough pods were bound.
    pub(super) fn current(&self) -> Option<Arc<Measure>> {
        self.measure.clone()
    }

    fn observe(&mut self, request: &GpuRequest) {
        self.learner.observe(&PodShape::of(request));
    }

    /// What the next measure is computed from; `None` where too few pods have come since the last one and no nodes have
    /// changed.
    fn due<'n>(&mut self, nodes: impl Iterator<Item = Vec<GpuKind<'n>>>) -> Option<MeasureInput> {
        let classes = classes(nodes);
        let have_changed = self.learner.has_begun() && self.classes != classes;
        if classes.is_empty() || !have_changed && !self.learner.is_due() {
            return None;
        }
        self.classes.clone_from(&classes);
        Some(MeasureInput { typical: self.learner.take(), classes })
    }
}

/// The classes of equal nodes. A node with GPUs of several kinds counts in the class of each.
fn classes<'n>(nodes: impl Iterator<Item = Vec<GpuKind<'n>>>) -> Vec<NodeClass> {
    let mut counts: BTreeMap<(GpuKind<'n>, usize), usize> = BTreeMap::new();
    for mut gpus in nodes {
        gpus.sort_unstable();
        for alike in gpus.chunk_by(|one, other| one == other) {
            *counts.entry((alike[0], alike.len())).or_default() += 1;
        }
    }
    let mut classes = Vec::with_capacity(counts.len());
    for (((cpu, model, units), gpus), count) in counts {
        let (model, units) = (model.to_owned(), Units(units));
        classes.push(NodeClass { count, cpu, model, gpus, units });
    }
    classes
}

impl Index {
    /// Counts a pod that was bound.
    pub(super) fn observe(&mut self, request: &GpuRequest) {
        self.measures[request.given_out() as usize].observe(request);
    }

    /// What the next measure of fragmentation of GPUs that are given out in that way is computed from, if that is due.
    /// The caller computes it and calls [`Index::set_measure`].
    pub(in crate::view) fn due_measure(&mut self, way: GivenOut) -> Option<MeasureInput> {
        if way == GivenOut::Claims {
            self.observe_claims();
        }
        let mut nodes = Vec::new();
        for node in self.nodes.iter() {
            if node.ledger.given_out() == way {
                nodes.push(gpu_kinds(node, way));
            }
        }
        self.measures[way as usize].due(nodes.into_iter())
    }

    /// Puts a measure of fragmentation in force.
    pub(in crate::view) fn set_measure(&mut self, way: GivenOut, measure: Measure) {
        self.measures[way as usize].measure = Some(Arc::new(measure));
        self.changes.others = true;
    }
}

fn gpu_kinds(node: &Node, way: GivenOut) -> Vec<GpuKind<'_>> {
    // Without a copy of any text: this runs every few seconds, under the lock.
    let mut kinds = Vec::with_capacity(node.ledger.gpus().len());
    for gpu in node.ledger.gpus() {
        kinds.push((node.cpu.allocatable, gpu.model.as_str(), gpu.size(way).0));
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> impl Iterator<Item = Vec<GpuKind<'static>>> {
        let kind = |units| (Some(64_000), "NVIDIA A10", units);
        (0..count).map(move |_| vec![kind(24), kind(24), kind(16)])
    }

    #[test]
    fn there_is_no_measure_before_enough_pods_were_seen() {
        let (mut measure, request) =
            (LearnedMeasure::default(), GpuRequest::single("main", Units(8)));
        let request = request.unwrap();
        (0..15).for_each(|_| measure.observe(&request));
        assert!(measure.due(nodes(3)).is_none());
        measure.observe(&request);
        // Nodes may not have been listed yet.
        assert!(measure.due(nodes(0)).is_none());
        assert!(measure.due(nodes(3)).is_some());
        assert!(measure.due(nodes(3)).is_none());
        assert!(measure.due(nodes(4)).is_some());
        (0..5).for_each(|_| measure.observe(&request));
        assert!(measure.due(nodes(4)).is_some());
    }

    #[test]
    fn nodes_that_are_alike_are_one_class() {
        let found: Vec<_> = classes(nodes(3))
            .iter()
            .map(|class| (class.count, class.gpus, class.units.0))
            .collect();
        assert_eq!(found, [(3, 1, 16), (3, 2, 24)]);
    }
}
