//! Cached ratings of nodes for recent GPU requests: pods of one workload have equal requests, and few nodes change between two of them.
//!
//! Invariant: a cached outcome equals the result of [`NodeCards::rate`] for every pod that is not one of the node's
//! [`NodeCards::pods_with_set_aside_cards`].

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::FixedState;
use placement::gpu::{ChoiceRule, GpuRequest, NoFit, NodeCards, Rating};
use placement::units::PodUid;

use crate::view::chunk_cache::{ChunkCache, NodeSet, has, only};

/// Requests whose ratings each chunk caches. Each takes a kilobyte; with 5,000 nodes all together take 2.5 MB.
pub(super) const REQUESTS: usize = 32;

/// The number of hash values of pod UIDs.
const HASHES: usize = 128;

/// The rating of a node for a request.
pub(super) type Outcome = Result<Rating, NoFit>;

/// A GPU request, and the rule by which cards are chosen for it.
#[derive(Debug)]
pub(super) struct RatedRequest {
    request: GpuRequest,
    rule: ChoiceRule,
    /// All nodes have been rated for it.
    is_rated: AtomicBool,
}

impl RatedRequest {
    pub(super) fn new(request: &GpuRequest, rule: &ChoiceRule) -> Self {
        let (request, rule) = (request.clone(), rule.clone());
        Self { request, rule, is_rated: AtomicBool::new(false) }
    }

    pub(super) fn is(&self, request: &GpuRequest, rule: &ChoiceRule) -> bool {
        let measures = (self.rule.measure.as_ref(), rule.measure.as_ref());
        let is_same_measure = match measures {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let counts_cpu = rule.measure.is_some();
        is_same_measure
            && self.rule.strategy == rule.strategy
            && self.request.is_rated_as(request, counts_cpu)
    }

    /// Whether all nodes have been rated for it, so that most ratings are cached.
    pub(super) fn is_rated(&self) -> bool {
        self.is_rated.load(Ordering::Relaxed)
    }

    /// Records that all nodes have been rated for it.
    pub(super) fn set_rated(&self) {
        self.is_rated.store(true, Ordering::Relaxed);
    }

    pub(super) fn rate(&self, pod: &PodUid, cards: &NodeCards) -> Outcome {
        cards.rate(pod, &self.request, &self.rule)
    }
}

/// The ratings of a chunk's nodes for the last requests, the newest first.
pub(super) type Ratings = ChunkCache<Vec<Rated>>;

/// The ratings of a chunk's nodes for one request.
#[derive(Debug, Clone)]
pub(super) struct Rated {
    request: Arc<RatedRequest>,
    outcomes: Arc<[Outcome]>,
    /// Nodes that have changed since.
    changed: NodeSet,
}

/// The outcomes of the nodes, for pods that are not among their known pods.
pub(super) fn outcomes(
    ratings: &Ratings,
    request: &Arc<RatedRequest>,
    nodes: &[Arc<NodeCards>],
) -> Arc<[Outcome]> {
    let (known, changed) = ratings.get().unwrap_or_default();
    let is_it = |rated: &&Rated| Arc::ptr_eq(&rated.request, request);
    let before = known.iter().find(is_it);
    if let Some(rated) = before
        && rated.changed | changed == 0
    {
        return Arc::clone(&rated.outcomes);
    }
    // No pod has this UID.
    let no_pod = PodUid::from("");
    let outcome = |(node, cards): (usize, &Arc<NodeCards>)| match before {
        Some(rated) if !has(rated.changed | changed, node) => rated.outcomes[node],
        _ => request.rate(&no_pod, cards),
    };
    let outcomes: Arc<[Outcome]> = nodes.iter().enumerate().map(outcome).collect();
    let newest =
        Rated { request: Arc::clone(request), outcomes: Arc::clone(&outcomes), changed: 0 };
    let others = known.iter().filter(|rated| !is_it(rated));
    let others = others.map(|rated| Rated { changed: rated.changed | changed, ..rated.clone() });
    ratings.set(Arc::new([newest].into_iter().chain(others).take(REQUESTS).collect()));
    outcomes
}

/// By the hash of a pod's UID, the nodes of a chunk that may have the pod among their [`NodeCards::pods_with_set_aside_cards`].
#[derive(Debug, Clone)]
pub(super) struct PodHashes(Box<[NodeSet; HASHES]>);

impl PodHashes {
    /// Bytes that it takes on the heap.
    pub(super) const BYTES: usize = size_of::<[NodeSet; HASHES]>();

    pub(super) fn new(nodes: &[Arc<NodeCards>]) -> Self {
        let mut known = Self(Box::new([0; HASHES]));
        nodes.iter().enumerate().for_each(|(node, cards)| known.add(node, cards));
        known
    }

    /// Replaces a node's cards.
    pub(super) fn set(&mut self, node: usize, cards: &NodeCards) {
        self.0.iter_mut().for_each(|nodes| *nodes &= !only(node));
        self.add(node, cards);
    }

    fn add(&mut self, node: usize, cards: &NodeCards) {
        cards.pods_with_set_aside_cards().for_each(|pod| self.0[hash(pod)] |= only(node));
    }

    /// The nodes that may have the pod among their known pods. Never leaves one out.
    pub(super) fn nodes(&self, pod: &PodUid) -> NodeSet {
        self.0[hash(pod)]
    }
}

fn hash(pod: &PodUid) -> usize {
    // A number below 128.
    (FixedState::default().hash_one(pod.as_str()) % HASHES as u64) as usize
}
