//! The state of the cluster at one time, as one immutable value: what Filter, Prioritize, Preempt, explain and the
//! shadow policy read.
//!
//! Invariant: a snapshot never changes. The next one copies the chunks in which a node has changed, and shares all
//! others, so that a decision keeps everything it was made from by one pointer.

mod chunk;
mod names;
mod prepared;
mod totals;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use placement::gpu::fragmentation::Measure;
use placement::gpu::{
    BeyondUnits, Choice, ChoiceRule, GivenOut, GpuRequest, NoFit, NodeBackOff, NodeGpus,
};
use placement::load::{Evaluation, NodeLoad, PodToPlace, ReadingStatus, ResolvedPolicy};
use placement::units::{MetricName, NodeName, PodUid};

pub(super) use chunk::NodeSet;
pub use chunk::NodeState;
pub(crate) use chunk::{CHUNK, Chunk};
pub use names::{NodeNames, Place};
pub use prepared::Prepared;
pub(super) use prepared::PreparedChunk;
pub use totals::Totals;

/// The back-offs of all nodes that have some.
pub type NodeBackOffs = HashMap<NodeName, NodeBackOff>;

/// UIDs of pods.
pub(crate) type PodUids = HashSet<PodUid, RandomState>;

/// The state of the cluster at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The policy in force.
    pub policy: Arc<ResolvedPolicy>,
    /// The measures of fragmentation, as in [`GivenOut::BOTH`]; `None` until enough pods were seen.
    pub measures: [Option<Arc<Measure>>; 2],
    /// The nodes that take no GPU pods for a while.
    pub back_offs: Arc<NodeBackOffs>,
    pub(super) names: Arc<NodeNames>,
    pub(super) chunks: Box<[Arc<Chunk>]>,
}

impl Snapshot {
    /// A cluster without nodes.
    pub(super) fn empty(policy: &Arc<ResolvedPolicy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            measures: [None, None],
            back_offs: Arc::default(),
            names: Arc::default(),
            chunks: Box::default(),
        }
    }

    /// The names of all nodes: those that the watch has shown, and others on which pods hold GPUs.
    #[must_use]
    pub fn names(&self) -> &Arc<NodeNames> {
        &self.names
    }

    /// The nodes in chunks.
    #[must_use]
    pub(crate) fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    /// Bytes of the list of chunks.
    #[must_use]
    pub(crate) fn list_bytes(&self) -> usize {
        size_of_val(&*self.chunks)
    }

    /// The node at a place.
    #[must_use]
    pub fn at(&self, place: Place) -> &NodeState {
        &self.chunks[place.index() / CHUNK].nodes[place.index() % CHUNK]
    }

    fn named(&self, name: &str) -> Option<&NodeState> {
        self.names.place(name).map(|place| self.at(place))
    }

    /// A node's load; `None` for a node that the watch has not shown.
    #[must_use]
    pub fn load(&self, name: &str) -> Option<&NodeLoad> {
        self.named(name)?.load.as_ref()
    }

    /// A node's GPUs; `None` where it reports none and no pod is charged there.
    #[must_use]
    pub fn gpus(&self, name: &str) -> Option<&Arc<NodeGpus>> {
        self.named(name)?.gpus.as_ref()
    }

    /// The nodes that the watch has shown, with their loads.
    pub fn loads(&self) -> impl Iterator<Item = (&NodeName, &NodeLoad)> {
        self.states().filter_map(|(name, state)| Some((name, state.load.as_ref()?)))
    }

    /// The nodes that report GPUs or on which pods are charged, with their GPUs.
    pub fn nodes_with_gpus(&self) -> impl Iterator<Item = (&NodeName, &Arc<NodeGpus>)> {
        self.states().filter_map(|(name, state)| Some((name, state.gpus.as_ref()?)))
    }

    /// All nodes, in the order of their places.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&NodeName, &NodeState)> {
        self.names.places().iter().map(|place| (self.names.name(*place), self.at(*place)))
    }

    /// The state of the node in a slot; `None` beyond the last chunk.
    pub(super) fn in_slot(&self, slot: usize) -> Option<&NodeState> {
        let chunk = self.chunks.get(slot / CHUNK)?;
        Some(&chunk.nodes[slot % CHUNK])
    }

    /// The rule by which GPUs are chosen that are given out by units, and nodes for these.
    #[must_use]
    pub fn choice_rule(&self) -> ChoiceRule {
        self.choice_rule_of(GivenOut::Units)
    }

    /// As [`Snapshot::choice_rule`], for GPUs that are given out in that way.
    #[must_use]
    pub fn choice_rule_of(&self, way: GivenOut) -> ChoiceRule {
        let measure = self.measures[way as usize].clone();
        ChoiceRule { strategy: self.policy.policy.gpu.placement, measure }
    }

    /// What pods of a namespace may take of GPUs beyond their units.
    #[must_use]
    pub fn beyond_units_of(&self, namespace: &str) -> BeyondUnits {
        self.policy.policy.gpu.beyond_units_of(namespace)
    }

    /// Whether a node takes no pods of that namespace for a while.
    #[must_use]
    pub fn is_backed_off(&self, node: &NodeName, namespace: &str, now: Timestamp) -> bool {
        // Nearly always empty.
        !self.back_offs.is_empty()
            && self.back_offs.get(node).is_some_and(|back_off| back_off.rejects(namespace, now))
    }

    /// The GPUs of a node that a pod would go to, or that Bind chose for it.
    ///
    /// # Errors
    ///
    /// Why no GPU fits.
    pub fn fit(
        &self,
        node: &str,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        self.gpus(node).ok_or(NoFit::NoGpus)?.fit(pod, request, rule)
    }

    /// As [`Snapshot::fit`], without the pods for which `gone` returns true.
    ///
    /// # Errors
    ///
    /// Why no GPU fits even then.
    pub fn fit_without(
        &self,
        node: &str,
        gone: impl Fn(&PodUid) -> bool,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        self.gpus(node).ok_or(NoFit::NoGpus)?.fit_without(gone, pod, request, rule)
    }

    /// For each metric of the policy, how many nodes have no fresh reading of it.
    #[must_use]
    pub fn nodes_without_reading(&self, now: Timestamp) -> Vec<(MetricName, u64)> {
        let metrics = self.policy.policy.metrics();
        let mut missing: Vec<_> = metrics.into_iter().map(|metric| (metric.clone(), 0)).collect();
        for (_, node) in self.loads() {
            let of_node = Evaluation { policy: &self.policy, node, pod: PodToPlace::ORDINARY, now };
            let readings: HashMap<&MetricName, ReadingStatus> = of_node
                .terms()
                .map(|term| (&term.weight.metric.name, term.load.reading))
                .chain(of_node.limits().map(|check| (&check.limit.metric.name, check.load.reading)))
                .collect();
            for (metric, count) in &mut missing {
                let reading = readings.get(metric);
                *count += u64::from(reading.is_some_and(|reading| reading.fresh().is_none()));
            }
        }
        missing
    }
}
