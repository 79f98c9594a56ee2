//! A decision: one pod, the nodes of the request, and the data about each node at that time.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use cluster::GpuRequestError;
use jiff::Timestamp;
use placement::gpu::fragmentation::Cost;
use placement::gpu::{
    Account, ChoiceRule, GpuRequest, NoFit, NodeCards, Rating, score_less_card_cost, scores,
};
use placement::load::{
    CpuUse, Evaluation, NodeLoad, Pairing, PodKind, PodToPlace, PreparedNodes, ResolvedPolicy,
    Score, Verdict, pass_over_limits,
};
use placement::selector::Labels;
use placement::units::NodeName;

use super::DecidedPod;
use crate::node_request::CandidateNodes;
use crate::view::{Board, CardBook, CardsOnBoard, NodeBackOffs, Place};

/// Bytes of a node of the request: its place on the board, and for an unknown node the entry of its name without the text.
pub(super) const PLACE: usize = size_of::<Option<Place>>();
pub(super) const UNKNOWN_NAME: usize = size_of::<(usize, NodeName)>();

/// Bytes of a node's load at one time: readings of some ten metrics, and what is prepared from them.
const LOAD: usize = 600;

/// Bytes of one recent pod of a node.
const RECENT_POD: usize = 64;

/// Bytes of a card, of a charge on it, and of a container that requests one.
const CARD: usize = 200;
const CHARGE: usize = 64;
const CONTAINER: usize = 128;

/// All inputs of a decision about one pod. They are shared with the view, not copied: the board, which holds all nodes' loads and the
/// policy in force, is one pointer.
#[derive(Debug)]
pub struct Decision {
    /// The pod, and the node that it was bound to.
    pub pod: Arc<DecidedPod>,
    /// The time of the decision, at which readings are fresh or stale.
    pub time: Timestamp,
    /// The pod's GPU request; `None` where it has none, or a faulty one.
    pub request: Option<GpuRequest>,
    /// The fault of a GPU request that cannot be read, or that no node can meet.
    pub fault: Option<GpuRequestError>,
    /// The nodes in the order of the request.
    nodes: CandidateNodes,
    /// All nodes' loads at that time, and the policy in force.
    board: Arc<Board>,
    /// All nodes' cards at that time; `None` for a pod without a GPU request, where fragmentation is not measured.
    cards: Option<CardsOnBoard>,
    /// How cards are chosen.
    pub rule: ChoiceRule,
    /// The nodes that take no GPU pods for a while.
    back_offs: Arc<NodeBackOffs>,
    /// The pairing under the policy in force and under the shadow policy, once computed.
    pairings: [OnceLock<Pairing>; 2],
}

/// A node of the request, with its load.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'d> {
    /// Its name.
    pub name: &'d NodeName,
    /// Its load; `None` where the node was not known.
    pub load: Option<&'d NodeLoad>,
}

impl Decision {
    /// A decision by the current state of `board` and `cards`.
    #[must_use]
    pub fn new(
        board: Arc<Board>,
        cards: &CardBook,
        pod: DecidedPod,
        request: Option<GpuRequest>,
        nodes: CandidateNodes,
        time: Timestamp,
    ) -> Self {
        let back_offs = cards.back_offs();
        let strategy = board.policy.policy.gpu.placement;
        let rule = ChoiceRule { strategy, measure: cards.measure() };
        let needs_cards = request.is_some() || rule.for_plain_pods().is_some();
        let cards = needs_cards.then(|| cards.on(board.names(), request.as_ref(), &rule));
        Self {
            pod: Arc::new(pod),
            time,
            request,
            fault: None,
            nodes,
            board,
            cards,
            rule,
            back_offs,
            pairings: Default::default(),
        }
    }

    /// The same decision with the fault of the pod's GPU request.
    #[must_use]
    pub fn with_fault(self, fault: Option<GpuRequestError>) -> Self {
        Self { fault, ..self }
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<ResolvedPolicy> {
        &self.board.policy
    }

    /// How many nodes the request named.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the request named no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at a position of the request.
    ///
    /// # Panics
    ///
    /// Where there is no such position.
    #[must_use]
    pub fn candidate(&self, position: usize) -> Candidate<'_> {
        let name = self.nodes.name(self.board.names(), position);
        Candidate { name, load: self.load(self.nodes.places()[position]) }
    }

    fn load(&self, place: Option<Place>) -> Option<&NodeLoad> {
        place.map(|place| &**self.board.loads().get(place))
    }

    /// The cards of the node at a position; `None` for a node without cards, and where [`Decision::cards`](field@Decision::cards) is.
    pub(super) fn cards(&self, position: usize) -> Option<&NodeCards> {
        let name = || self.nodes.name(self.board.names(), position);
        let cards = self.cards.as_ref()?.node(self.nodes.places()[position], name)?;
        Some(cards)
    }

    /// The inputs of a load decision about a node under `policy`: the one in force or the shadow policy.
    pub fn evaluation<'p, 'n>(
        &'p self,
        policy: &'p ResolvedPolicy,
        node: &'n NodeLoad,
    ) -> Evaluation<'p, 'n> {
        let pod = match self.is_in_force(policy) {
            true => self.pod.to_place(),
            false => self.pod.to_place_by_shadow(),
        };
        let pod = PodToPlace { pairing: self.pairing(policy), ..pod };
        Evaluation { policy, node, pod, now: self.time }
    }

    /// The pod's pairing under `policy`: the one in force or the shadow policy.
    pub fn pairing(&self, policy: &ResolvedPolicy) -> Pairing {
        let scoring = &policy.policy.scoring;
        if !scoring.pairs() {
            return Pairing::NONE;
        }
        let (is_in_force, loads) = (self.is_in_force(policy), self.board.loads());
        let nodes = || match is_in_force {
            true => loads.cpu_use(self.policy(), self.time),
            false => loads.iter().map(|node| self.cpu_use(policy, node)).sum(),
        };
        let pairing = || self.pod.pairing(scoring, nodes(), is_in_force);
        *self.pairings[usize::from(!is_in_force)].get_or_init(pairing)
    }

    fn cpu_use(&self, policy: &ResolvedPolicy, node: &NodeLoad) -> CpuUse {
        Evaluation { policy, node, pod: PodToPlace::ORDINARY, now: self.time }.cpu_use()
    }

    /// Whether each candidate may take the pod by its load under `policy`. An unknown node may, unless the pod's namespace has
    /// nodes of its own.
    pub fn verdicts<'p>(&'p self, policy: &'p ResolvedPolicy) -> Verdicts<'p> {
        let each = match self.is_in_force(policy) && !self.needs_full_evaluation(policy) {
            true => self.prepared_verdicts(),
            false => self.evaluated_verdicts(policy),
        };
        let known = |node: usize| self.load(self.nodes.places()[node]);
        let fits = |node| self.no_fit(node).is_none();
        self.with_least_loaded(policy, each, known, fits)
    }

    /// As [`Decision::verdicts`] under the policy in force, for candidates with these loads (`None` for an unknown node). Only nodes
    /// for which `fits` returns true can pass over limits.
    pub(super) fn verdicts_at(
        &self,
        loads: &[Option<Cow<'_, NodeLoad>>],
        fits: impl Fn(usize) -> bool,
    ) -> Verdicts<'_> {
        let each = loads.iter().map(|load| self.verdict(self.policy(), load.as_deref()));
        let known = |node: usize| loads[node].as_deref();
        self.with_least_loaded(self.policy(), each.collect(), known, fits)
    }

    /// Accepts the least loaded candidates that pass although they are over a limit.
    fn with_least_loaded<'p, 'n>(
        &'p self,
        policy: &'p ResolvedPolicy,
        mut each: Vec<Verdict<'p>>,
        known: impl Fn(usize) -> Option<&'n NodeLoad>,
        fits: impl Fn(usize) -> bool,
    ) -> Verdicts<'p> {
        // An unknown node has no readings.
        let limit_ratio = |node: usize| {
            let load = |known| self.evaluation(policy, known).limit_ratio();
            known(node).map_or(f64::INFINITY, load)
        };
        let rule = &policy.policy.overload;
        let over_limits = pass_over_limits(rule, self.pod.waited, &each, fits, limit_ratio);
        over_limits.iter().for_each(|position| each[*position] = Verdict::Accepted);
        Verdicts { each, over_limits }
    }

    fn evaluated_verdicts<'p>(&'p self, policy: &'p ResolvedPolicy) -> Vec<Verdict<'p>> {
        let places = self.nodes.places().iter();
        places.map(|place| self.verdict(policy, self.load(*place))).collect()
    }

    fn verdict<'p>(&'p self, policy: &'p ResolvedPolicy, load: Option<&NodeLoad>) -> Verdict<'p> {
        match load {
            Some(known) => self.evaluation(policy, known).verdict(),
            None => self.unknown_node_verdict(policy),
        }
    }

    /// As [`Decision::evaluated_verdicts`] under the policy in force, from prepared loads.
    fn prepared_verdicts(&self) -> Vec<Verdict<'_>> {
        let (policy, uses) = (self.policy(), self.pod.uses());
        let verdict = |nodes: &PreparedNodes, node| nodes.verdict(policy, node, &uses);
        let at = (policy, self.time);
        let all = |nodes: &PreparedNodes| nodes.all_accept(&uses).then_some(Verdict::Accepted);
        self.board.loads().of_each(self.nodes.places(), at, Verdict::Accepted, all, verdict)
    }

    /// Whether `policy` is the one in force, for which loads are prepared.
    fn is_in_force(&self, policy: &ResolvedPolicy) -> bool {
        std::ptr::eq(policy, &**self.policy())
    }

    /// Whether the pod's verdicts depend on more than loads: on an exemption, or on the nodes of its namespace.
    fn needs_full_evaluation(&self, policy: &ResolvedPolicy) -> bool {
        policy.exempts(&self.pod.to_place()) || policy.confines(&self.pod.namespace)
    }

    /// The score of each node under the policy in force, as [`Decision::scores_under`].
    pub fn scores(&self) -> impl Iterator<Item = Score> {
        let (policy, uses) = (self.policy(), self.pod.uses());
        let pairing = self.pairing(policy);
        let score = |nodes: &PreparedNodes, node| nodes.score(policy, node, &uses, pairing);
        let at = (policy, self.time);
        let places = self.nodes.places();
        let by_load = self.board.loads().of_each(places, at, Score::ZERO, |_| None, score);
        let by_cards = self.card_scores();
        let with_cards = move |(position, load): (usize, Score)| match &by_cards {
            Some(cards) => cards[position].mean(load),
            None => self.with_cost_to_cards(position, load),
        };
        by_load.into_iter().enumerate().map(with_cards)
    }

    /// The score of each node by its load under `policy` and, for a pod with a GPU request, by its cards.
    pub fn scores_under(&self, policy: &ResolvedPolicy) -> Vec<Score> {
        let by_cards = self.card_scores();
        let score = |(position, place): (usize, &Option<Place>)| {
            let load = self.load(*place);
            let load = load.map_or(Score::ZERO, |known| self.evaluation(policy, known).score());
            match &by_cards {
                Some(cards) => cards[position].mean(load),
                None => self.with_cost_to_cards(position, load),
            }
        };
        self.nodes.places().iter().enumerate().map(score).collect()
    }

    /// The score of the node at a position for a pod without a GPU request.
    fn with_cost_to_cards(&self, position: usize, by_load: Score) -> Score {
        let cost = self.cost_to_cards(position);
        cost.map_or(by_load, |cost| score_less_card_cost(by_load, cost))
    }

    /// The cost to the cards of the node at a position of the CPU that the pod takes; `None` for a pod with a GPU request, or where
    /// fragmentation is not measured.
    pub fn cost_to_cards(&self, position: usize) -> Option<Cost> {
        let measure = self.rule.for_plain_pods().filter(|_| self.request.is_none())?;
        Some(self.cards(position)?.cost_of_cpu(self.pod.cpu, measure))
    }

    /// The score of each node by its cards, 0 where none fit; `None` for a pod without a GPU request.
    pub fn card_scores(&self) -> Option<Vec<Score>> {
        self.request.as_ref()?;
        let ratings = self.ratings().into_iter().map(|rating| rating.and_then(Result::ok));
        let (names, places) = (self.board.names(), self.nodes.places());
        let name = |position| self.nodes.name(names, position);
        let order = |one: usize, other: usize| match (places[one], places[other]) {
            (Some(one), Some(other)) => names.rank(one).cmp(&names.rank(other)),
            _ => name(one).cmp(name(other)),
        };
        Some(scores(&ratings.collect::<Vec<_>>(), order))
    }

    /// The rating of each node by its cards, or why none fit; `None` for a node without cards.
    fn ratings(&self) -> Vec<Option<Result<Rating, NoFit>>> {
        let (Some(cards), Some(request)) = (&self.cards, &self.request) else {
            return vec![None; self.len()];
        };
        let places = self.nodes.places();
        let mut ratings = cards.ratings(&self.pod.uid, places);
        // Nodes that are not on the board are few, and may have cards.
        for position in (0..self.len()).filter(|at| places[*at].is_none()) {
            let rate = |cards: &NodeCards| cards.rate(&self.pod.uid, request, &self.rule);
            ratings[position] = self.cards(position).map(rate);
        }
        ratings
    }

    /// [`Decision::no_fit`] of each node.
    pub fn no_fits(&self) -> Vec<Option<NoFit>> {
        let refused = |(position, rating): (usize, Option<Result<Rating, NoFit>>)| match self
            .is_backed_off(position)
        {
            true => Some(NoFit::BackedOff),
            false => rating.map_or(Some(NoFit::NoCards), Result::err),
        };
        match self.cards.as_ref().is_some_and(CardsOnBoard::are_rated) {
            true => self.ratings().into_iter().enumerate().map(refused).collect(),
            false => (0..self.len()).map(|position| self.no_fit(position)).collect(),
        }
    }

    /// Checks whether the node at a position has cards for the pod.
    ///
    /// # Errors
    ///
    /// Why none fit.
    pub fn fit(&self, position: usize) -> Result<(), NoFit> {
        let Some(request) = &self.request else { return Ok(()) };
        if self.is_backed_off(position) {
            return Err(NoFit::BackedOff);
        }
        self.cards(position).ok_or(NoFit::NoCards)?.check(&self.pod.uid, request)
    }

    /// Why the node at a position is rejected for its cards; `None` where it is not.
    pub fn no_fit(&self, position: usize) -> Option<NoFit> {
        self.fit(position).err()
    }

    /// Whether the node at a position takes no pods of the pod's namespace for a while.
    fn is_backed_off(&self, position: usize) -> bool {
        // Nearly always empty.
        !self.back_offs.is_empty()
            && self
                .back_offs
                .get(self.nodes.name(self.board.names(), position))
                .is_some_and(|back_off| back_off.rejects(&self.pod.namespace, self.time))
    }

    fn unknown_node_verdict<'p>(&'p self, policy: &'p ResolvedPolicy) -> Verdict<'p> {
        let rule = || policy.broken_namespace_rule(&self.pod.namespace, &Labels::default());
        let broken = (self.pod.kind == PodKind::Ordinary).then(rule).flatten();
        broken.map_or(Verdict::Accepted, Verdict::OtherNamespace)
    }

    /// The same decision without the GPU request, for callers that check cards separately.
    #[must_use]
    pub fn without_cards(self) -> Self {
        Self { request: None, cards: None, ..self }
    }

    /// Bytes that this decision retains: its own, and those of values that no earlier decision holds.
    pub(super) fn retained_bytes(&self) -> usize {
        let containers = self.request.as_ref().map_or(0, |request| request.containers().len());
        let unknown = self.nodes.unknown();
        self.nodes.len() * PLACE
            + unknown.map(|name| UNKNOWN_NAME + name.as_str().len()).sum::<usize>()
            + self.cards.as_ref().map_or(0, retained_by_cards)
            + containers * CONTAINER
            + retained_by_board(&self.board)
    }
}

/// Whether each candidate of a decision may take the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdicts<'p> {
    /// In the order of the candidates; a node that passes although it is over a limit is accepted.
    pub each: Vec<Verdict<'p>>,
    /// Positions of the nodes that pass although they are over a limit: the least loaded, where every node is over one.
    pub over_limits: Vec<usize>,
}

/// Bytes of the board, if only the view and this decision hold it. Its chunks may be shared with another board.
fn retained_by_board(board: &Arc<Board>) -> usize {
    if Arc::strong_count(board) > 2 {
        return 0;
    }
    let loads = board.loads();
    let chunk = |chunk: &[Arc<NodeLoad>]| {
        size_of_val(chunk) + chunk.iter().map(retained_by_load).sum::<usize>()
    };
    // Counted twice at most: the `CardBook` may hold them too.
    let names = match Arc::strong_count(board.names()) {
        ..=2 => board.names().bytes(),
        _ => 0,
    };
    names + loads.list_bytes() + loads.unshared().map(chunk).sum::<usize>()
}

/// Bytes of a load. It may be shared with another chunk, and its pods with another load.
fn retained_by_load(load: &Arc<NodeLoad>) -> usize {
    if Arc::strong_count(load) > 1 {
        return 0;
    }
    let pods = match Arc::strong_count(&load.recent) {
        1 => load.recent.len(),
        _ => 0,
    };
    LOAD + pods * RECENT_POD
}

/// Bytes of the cards that only the view, the node's ledger and this decision hold.
fn retained_by_cards(cards: &CardsOnBoard) -> usize {
    let account = |account: &Account| CARD + account.charges.len() * CHARGE;
    let of_node = |cards: &Arc<NodeCards>| match Arc::strong_count(cards) {
        ..=2 => cards.accounts().iter().map(account).sum(),
        _ => 0,
    };
    let (lists, nodes) = cards.unshared();
    lists + nodes.map(|cards| size_of::<Arc<NodeCards>>() + of_node(cards)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use cluster::Pod;
    use jiff::SignedDuration;
    use placement::names::Names;
    use placement::policy::LoadPolicy;
    use placement::reading::{Reading, ReadingCodec};
    use placement::units::Ratio;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::view::{LoadBoard, PodEstimates};

    const NODES: usize = 150;
    const POLICY: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
  priority: [{name: cpu_usage_avg_5m, weight: 1}]
";

    fn now() -> Timestamp {
        Timestamp::from_second(1_795_165_200).unwrap()
    }

    /// 64 nodes with room, then nodes of every load; each seventh has no reading.
    fn board() -> Arc<Board> {
        let board = LoadBoard::new(LoadPolicy::from_yaml(POLICY).unwrap(), false);
        let facts = |number: usize| {
            let percent = number * 37 % if number < 64 { 60 } else { 100 };
            let load = Ratio::new(percent as f64 / 100.0).unwrap();
            let text = ReadingCodec::default().encode(&Reading::new(load, now()));
            let key = if number.is_multiple_of(7) { "other" } else { "cpu_usage_avg_5m" };
            let meta = json!({ "name": format!("n{number}"), "annotations": { key: text } });
            let node: cluster::Node = serde_json::from_value(json!({ "metadata": meta })).unwrap();
            node.facts(&Names::default(), &ReadingCodec::default())
        };
        board.set_nodes((0..NODES).map(facts), now());
        board.current()
    }

    proptest! {
        #[test]
        fn whatever_nodes_are_named_each_is_decided_by_its_own_load(
            named in prop::collection::vec(0..NODES + 10, 0..2 * NODES),
        ) {
            let board = board();
            let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" } })).unwrap();
            let names: Vec<_> = named.iter().map(|number| format!("n{number}")).collect();
            let nodes = CandidateNodes::new(&board, names.iter().map(String::as_str));
            let pod = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
            let decision = Decision::new(board, &CardBook::default(), pod, None, nodes, now());
            let policy = decision.policy();
            prop_assert_eq!(decision.prepared_verdicts(), decision.evaluated_verdicts(policy));
            let scores = decision.scores_under(policy);
            prop_assert_eq!(decision.scores().collect::<Vec<_>>(), scores);
        }
    }
}
