//! One pod, the nodes that were asked about, and what was known of each at that time.

use std::sync::{Arc, OnceLock};

use cluster::Pod;
use jiff::{SignedDuration, Timestamp};
use placement::estimate::Estimate;
use placement::gpu::{Account, GpuRequest, NodeCards};
use placement::load::{
    Evaluation, NodeLoad, PodKind, PodToPlace, ResolvedPolicy, Verdict, pass_over_limits,
};
use placement::resources::Amounts;
use placement::selector::Labels;
use placement::units::{NodeName, PodUid};

use crate::view::{Board, CardIndex};

/// Bytes of a node's load as it was at one time: readings of some ten metrics.
const LOAD: usize = 500;

/// Bytes of one pod that was bound to a node of late.
const RECENT_POD: usize = 64;

/// Bytes of a card, of a charge on it, and of a container that asks for one.
const CARD: usize = 200;
const CHARGE: usize = 64;
const CONTAINER: usize = 128;

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
    /// The cards of each node; empty where the pod asks for none.
    cards: Vec<Option<Arc<NodeCards>>>,
    held: usize,
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
    /// Its priority class; empty where it has none.
    pub priority_class: String,
    /// What it will probably use; `None` where the policy does not estimate pods.
    pub estimate: Option<Estimate>,
    /// How long kube-scheduler had found no node for it.
    pub waited: SignedDuration,
    node: OnceLock<NodeName>,
}

impl DecidedPod {
    /// The pod of that object, as it is at `now`.
    #[must_use]
    pub fn new(pod: &Pod, estimate: Option<Estimate>, now: Timestamp) -> Self {
        let waited = pod.unschedulable_since().map(|since| now.duration_since(since));
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid(),
            kind: pod.kind(),
            priority_class: pod.priority_class().to_owned(),
            estimate,
            waited: waited.unwrap_or_default(),
            node: pod.node().map(NodeName::from).map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    /// The pod as load decisions see it.
    #[must_use]
    pub fn to_place(&self) -> PodToPlace<'_> {
        PodToPlace {
            namespace: &self.namespace,
            priority_class: &self.priority_class,
            kind: self.kind,
            uses: self.uses(),
            waited: self.waited,
        }
    }

    /// What it will probably use; nothing where the policy does not estimate pods.
    #[must_use]
    pub fn uses(&self) -> Amounts {
        self.estimate.map(|estimate| estimate.amounts).unwrap_or_default()
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
}

impl Decision {
    /// What `board` and `cards` know now of the nodes named, for a pod that asks for `request`.
    pub fn new<'a>(
        board: &Board,
        cards: &CardIndex,
        pod: DecidedPod,
        request: Option<GpuRequest>,
        nodes: impl IntoIterator<Item = &'a str>,
        time: Timestamp,
    ) -> Self {
        let candidate = |name: &str| match board.known(name) {
            Some((name, load)) => Candidate { name: name.clone(), load: Some(load) },
            None => Candidate { name: NodeName::from(name), load: None },
        };
        let candidates: Vec<_> = nodes.into_iter().map(candidate).collect();
        let of = |node: &Candidate| cards.node(node.name.as_str()).map(|cards| Arc::clone(&cards));
        let cards: Vec<_> = match request {
            Some(_) => candidates.iter().map(of).collect(),
            None => Vec::new(),
        };
        let containers = request.as_ref().map_or(0, |request| request.containers().len());
        let held = candidates.iter().map(Candidate::held).sum::<usize>()
            + cards.iter().map(held_by_cards).sum::<usize>()
            + containers * CONTAINER;
        Self {
            pod: Arc::new(pod),
            time,
            policy: Arc::clone(&board.policy),
            request,
            candidates,
            cards,
            held,
        }
    }

    /// Each node with its cards; `None` where it had none, or the pod asks for none.
    pub fn nodes(&self) -> impl Iterator<Item = (&Candidate, Option<&NodeCards>)> {
        let cards = |position: usize| self.cards.get(position).and_then(Option::as_deref);
        self.candidates.iter().enumerate().map(move |(position, node)| (node, cards(position)))
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

    /// Whether each candidate may take the pod by its load under `policy`. One that is not known may, unless the pod's
    /// namespace has nodes of its own: it is not known to be one.
    pub fn verdicts<'p>(&'p self, policy: &'p ResolvedPolicy) -> Verdicts<'p> {
        let evaluation = |node: &'p Candidate| self.evaluation(policy, node);
        let verdict = |node| match evaluation(node) {
            Some(known) => known.verdict(),
            None => self.of_unknown_node(policy),
        };
        let mut each: Vec<_> = self.candidates.iter().map(verdict).collect();
        let overload =
            |node: usize| evaluation(&self.candidates[node]).map_or(0.0, |e| e.overload());
        let rule = &policy.policy.overload;
        let fits = |node: usize| self.fits(node);
        let over_limits = pass_over_limits(rule, self.pod.waited, &each, fits, overload);
        over_limits.iter().for_each(|position| each[*position] = Verdict::Accepted);
        Verdicts { each, over_limits }
    }

    fn of_unknown_node<'p>(&'p self, policy: &'p ResolvedPolicy) -> Verdict<'p> {
        let rule = || policy.broken_namespace_rule(&self.pod.namespace, &Labels::default());
        let broken = (self.pod.kind == PodKind::Ordinary).then(rule).flatten();
        broken.map_or(Verdict::Accepted, Verdict::OtherNamespace)
    }

    /// The same decision for a pod that asks for no card: of nodes whose cards are judged elsewhere.
    #[must_use]
    pub fn by_load_alone(self) -> Self {
        Self { request: None, cards: Vec::new(), ..self }
    }

    /// Whether the pod fits on a card of the candidate; always where it asks for none.
    fn fits(&self, node: usize) -> bool {
        let Some(request) = &self.request else { return true };
        let cards = self.cards.get(node).and_then(Option::as_ref);
        cards.is_some_and(|cards| cards.fit(&self.pod.uid, request).is_ok())
    }

    /// Bytes that this keeps from being freed: its own, and those of values that no earlier decision holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

/// Whether each candidate of a decision may take the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdicts<'p> {
    /// In the order of the candidates; what passes although it is over a limit is accepted.
    pub each: Vec<Verdict<'p>>,
    /// Positions of those that pass although they are over a limit: the least loaded, where every node is over one.
    pub over_limits: Vec<usize>,
}

impl Candidate {
    fn held(&self) -> usize {
        let load = self.load.as_ref().map_or(self.name.as_str().len(), held_by_load);
        size_of::<Self>() + load
    }
}

/// The view and this decision hold a load that no earlier one does. Its pods may be those of another load.
fn held_by_load(load: &Arc<NodeLoad>) -> usize {
    if Arc::strong_count(load) > 2 {
        return 0;
    }
    let pods = match Arc::strong_count(&load.recent) {
        1 => load.recent.len(),
        _ => 0,
    };
    LOAD + pods * RECENT_POD
}

/// As of a load; the node's ledger holds its cards too.
fn held_by_cards(cards: &Option<Arc<NodeCards>>) -> usize {
    let accounts = match cards {
        Some(cards) if Arc::strong_count(cards) <= 3 => cards.accounts(),
        _ => &[],
    };
    let account = |account: &Account| CARD + account.charges.len() * CHARGE;
    size_of::<Option<Arc<NodeCards>>>() + accounts.iter().map(account).sum::<usize>()
}
