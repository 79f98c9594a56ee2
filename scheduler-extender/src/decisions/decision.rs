//! One pod, the nodes that were asked about, and what was known of each at that time.

use std::sync::{Arc, OnceLock};

use cluster::Pod;
use jiff::Timestamp;
use placement::gpu::{GpuRequest, NodeCards};
use placement::load::{Evaluation, NodeLoad, PodKind, PodToPlace, ResolvedPolicy, Verdict};
use placement::names::Names;
use placement::units::{NodeName, PodUid};

use crate::view::{Board, CardIndex};

/// Bytes of the name of an unknown node that count as much as a node that is known.
const BYTES_AS_ONE: usize = 64;

/// Everything that a decision about one pod follows from. Its values are shared with the view, not copied.
#[derive(Debug)]
pub struct Decision {
    /// The pod, and where it went.
    pub pod: Arc<DecidedPod>,
    /// When it was decided: the time at which readings were fresh or stale.
    pub time: Timestamp,
    /// The policy in force.
    pub policy: Arc<ResolvedPolicy>,
    /// What the pod asks of a card; `None` where it asks for nothing that can be read.
    pub request: Option<GpuRequest>,
    /// The nodes in the order of the request.
    pub candidates: Vec<Candidate>,
}

/// A pod that was decided about.
#[derive(Debug)]
pub struct DecidedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: PodUid,
    /// Whether a DaemonSet owns it.
    pub kind: PodKind,
    node: OnceLock<NodeName>,
}

impl DecidedPod {
    /// The pod of that object.
    #[must_use]
    pub fn new(pod: &Pod) -> Self {
        let (namespace, name) = (pod.namespace().to_owned(), pod.name().to_owned());
        let node = pod.node().map(NodeName::from).map_or_else(OnceLock::new, OnceLock::from);
        Self { namespace, name, uid: pod.uid(), kind: pod.kind(), node }
    }

    /// The pod as load decisions see it.
    #[must_use]
    pub fn to_place(&self) -> PodToPlace<'_> {
        PodToPlace { namespace: &self.namespace, kind: self.kind, ..PodToPlace::ORDINARY }
    }

    /// The node that it was bound to, as far as that is known.
    #[must_use]
    pub fn node(&self) -> Option<&NodeName> {
        self.node.get()
    }

    /// Notes the node that it was bound to. A pod is bound once: what is known stays.
    pub fn set_node(&self, node: &str) {
        self.node.get_or_init(|| NodeName::from(node));
    }
}

/// A node, and what was known of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its name.
    pub name: NodeName,
    /// Its load; `None` where the node was not known.
    pub load: Option<Arc<NodeLoad>>,
    /// Its cards; `None` where it had none, or the pod asks for none.
    pub cards: Option<Arc<NodeCards>>,
}

impl Decision {
    /// What `board` and `cards` know now of the nodes named.
    pub fn new<'a>(
        board: &Board,
        cards: &CardIndex,
        names: &Names,
        pod: &Pod,
        nodes: impl IntoIterator<Item = &'a str>,
        time: Timestamp,
    ) -> Self {
        let request = pod.request(names).ok().flatten();
        let candidate = |name: &str| {
            let (name, load) = match board.known(name) {
                Some((name, load)) => (name.clone(), Some(load)),
                None => (NodeName::from(name), None),
            };
            let cards = request.as_ref().and_then(|_| cards.node(name.as_str()));
            Candidate { name, load, cards: cards.map(|cards| Arc::clone(&cards)) }
        };
        let candidates = nodes.into_iter().map(candidate).collect();
        Self {
            pod: Arc::new(DecidedPod::new(pod)),
            time,
            policy: Arc::clone(&board.policy),
            request,
            candidates,
        }
    }

    /// Everything that a decision about the node under `policy` follows from; `None` where the node was not known.
    pub fn evaluation<'p>(
        &'p self,
        policy: &'p ResolvedPolicy,
        node: &'p Candidate,
    ) -> Option<Evaluation<'p, 'p>> {
        let node = node.load.as_deref()?;
        Some(Evaluation { policy, node, pod: self.pod.to_place(), now: self.time })
    }

    /// Whether the node may take the pod by its load, under the policy in force. One that is not known may.
    pub fn verdict(&self, node: &Candidate) -> Verdict<'_> {
        let Some(node) = node.load.as_deref() else { return Verdict::Accepted };
        let pod = self.pod.to_place();
        Evaluation { policy: &self.policy, node, pod, now: self.time }.verdict()
    }

    /// How much memory this keeps from being freed at most, in nodes: of a known node its name, its load and some hundred
    /// bytes of readings; a card, a charge on it and a container that asks for one count as a node each.
    pub(super) fn held(&self) -> usize {
        let containers = self.request.as_ref().map_or(0, |request| request.containers().len());
        self.candidates.iter().map(Candidate::held).sum::<usize>() + containers
    }
}

impl Candidate {
    fn held(&self) -> usize {
        let name = if self.load.is_some() { 0 } else { self.name.as_str().len() / BYTES_AS_ONE };
        let accounts = self.cards.iter().flat_map(|cards| cards.accounts());
        1 + name + accounts.map(|account| 1 + account.charges.len()).sum::<usize>()
    }
}
