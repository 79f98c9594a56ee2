//! Bindings, watch events, lists, reads and reports in random order, against a model of the API server and of the
//! cards. Replies get lost, watches break, pods end and are made again under the same name, users edit claims, nodes go
//! and come back, cards are replaced and change their index, the extender restarts.
//!
//! The steps of a binding are those of `binder::attempt`, `doubt` and `look_up`, taken apart so that anything can come
//! between a request, what the API server makes of it, and its answer.

use std::collections::{BTreeMap, HashSet, VecDeque};

use cluster::{Event, GpuPod, NodeFacts, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Card, CardIsolation, ChoiceRule, Claim, GpuRequest};
use placement::load::PodKind;
use placement::units::{MiB, NodeName, PodUid, Units};
use proptest::prelude::*;
use scheduler_extender::view::{GpuPodId, PodUse, View, WatchedPod};

use crate::rig::empty_view;

const SLOTS: usize = 4;
const NODES: usize = 2;
const CARDS: usize = 2;
const UNITS: u32 = 8;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod of this name is made; its UID is new.
    Create(usize, u32),
    /// Its object goes.
    Delete(usize),
    /// A user has its claim name this card of its node, one that the node lacks, or none.
    Edit(usize, Option<usize>),
    /// Bind is called: a card is reserved, a request sent.
    Bind(usize, usize),
    /// The API server carries out the oldest request under way for the pod.
    Carry(usize),
    /// The answer to a binding arrives, or is lost.
    Answer(usize, bool),
    /// No request for the pod can be carried out any more.
    Expire(usize),
    /// The API server answers a read of the pod.
    Read(usize),
    /// That answer arrives.
    Arrive(usize),
    /// The kubelet admits the pod on the card of its claim, or fails it.
    Admit(usize),
    /// The next event of the pods' watch arrives.
    PodEvent,
    /// The pods' watch breaks, and a list begins; the API server reads the list; the list arrives.
    Relist,
    /// The node's plugin writes its report.
    Report(usize),
    /// The next event of the nodes' watch arrives.
    NodeEvent,
    /// All nodes are listed anew.
    RelistNodes,
    /// The Node object is deleted, or made again.
    ToggleNode(usize),
    /// A card that nobody uses makes room for a new one.
    Replace(usize, usize),
    /// The node's cards change their indexes.
    Swap(usize),
    /// The extender restarts.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (slot, node) = (0..SLOTS, 0..NODES);
    let card = prop::option::of(0..=CARDS);
    prop_oneof![
        4 => (slot.clone(), 1..=UNITS).prop_map(|(s, u)| Step::Create(s, u)),
        3 => slot.clone().prop_map(Step::Delete),
        2 => (slot.clone(), card).prop_map(|(s, c)| Step::Edit(s, c)),
        8 => (slot.clone(), node.clone()).prop_map(|(s, n)| Step::Bind(s, n)),
        6 => slot.clone().prop_map(Step::Carry),
        6 => (slot.clone(), any::<bool>()).prop_map(|(s, lost)| Step::Answer(s, lost)),
        1 => slot.clone().prop_map(Step::Expire),
        6 => slot.clone().prop_map(Step::Read),
        6 => slot.clone().prop_map(Step::Arrive),
        4 => slot.prop_map(Step::Admit),
        8 => Just(Step::PodEvent),
        6 => Just(Step::Relist),
        3 => node.clone().prop_map(Step::Report),
        6 => Just(Step::NodeEvent),
        1 => Just(Step::RelistNodes),
        1 => node.clone().prop_map(Step::ToggleNode),
        1 => (node.clone(), 0..CARDS).prop_map(|(n, c)| Step::Replace(n, c)),
        1 => node.prop_map(Step::Swap),
        1 => Just(Step::Restart),
    ]
}

/// A pod as the API server has it.
#[derive(Debug, Clone)]
struct Object {
    name: usize,
    uid: String,
    units: u32,
    node: Option<usize>,
    claim: Option<String>,
    /// What Bind wrote.
    chosen: Option<String>,
    admitted: Option<String>,
    failed: bool,
}

/// Where a binding, or a look-up, stands.
#[derive(Debug, Clone)]
enum Phase {
    /// The request is on its way.
    Sent,
    /// The API server has answered; whether it bound the pod.
    Carried(bool),
    /// The pod is to be read; whether the request may still be carried out.
    ToRead { may_land: bool },
    /// The read's answer is on its way: the pod as it was then.
    Read { may_land: bool, found: Option<Object> },
}

/// A binding under way.
#[derive(Debug, Clone)]
struct Attempt {
    pod: Object,
    node: usize,
    claim: Claim,
    phase: Phase,
    /// The API server has carried the request out, or never will.
    over: bool,
}

/// A look-up under way; the inner one is the read's answer.
#[derive(Debug, Clone)]
struct LookUp {
    id: GpuPodId,
    found: Option<Option<Object>>,
}

#[derive(Debug, Clone)]
struct Machine {
    exists: bool,
    cards: Vec<String>,
    report: Vec<Card>,
}

enum Listing {
    No,
    Begun,
    Read(Vec<Object>),
}

struct World {
    view: View,
    pods: BTreeMap<usize, Object>,
    machines: Vec<Machine>,
    attempts: Vec<Attempt>,
    look_ups: Vec<LookUp>,
    events: VecDeque<Event<Object>>,
    node_events: VecDeque<Event<usize>>,
    listing: Listing,
    settled: HashSet<PodUid>,
    made: usize,
}

fn name(node: usize) -> NodeName {
    format!("n{node}").into()
}

impl Object {
    fn request(&self) -> GpuRequest {
        GpuRequest::single("c", Units(self.units)).unwrap()
    }

    fn gpu(&self) -> GpuPod {
        let request = self.request();
        let claim = self.claim.as_ref().map(|card| Claim::on_card(&request, &card.as_str().into()));
        GpuPod {
            request,
            claim: Ok(claim),
            assigned: false,
            fault: None,
            isolation: None,
            mps_conflicts: Default::default(),
        }
    }

    fn facts(&self) -> PodFacts {
        let id = self.id();
        PodFacts {
            uid: id.uid,
            namespace: id.namespace,
            name: id.name,
            version: None,
            node: self.node.map(name),
            nominated_node: None,
            kind: PodKind::Ordinary,
            gpu: Ok(Some(self.gpu())),
            admitted: self.admitted.is_some(),
            finished: self.failed,
            refused: false,
            started: self.admitted.is_some(),
            // It goes once its containers have ended.
            stopped: true,
            deleting: false,
            waits_at: None,
            created_at: None,
            bound_at: None,
        }
    }

    fn watched(&self) -> WatchedPod {
        WatchedPod::Gpu(Box::new(self.facts()), PodUse::default())
    }

    fn id(&self) -> GpuPodId {
        let name = format!("p{}", self.name);
        GpuPodId { uid: self.uid.as_str().into(), namespace: "ml".to_owned(), name }
    }

    /// The card that it is on, or may be: what the kubelet did, else what Bind chose, unless its claim was removed, as
    /// the device plugin then refuses it.
    fn card(&self) -> Option<&String> {
        let chosen = self.chosen.as_ref().filter(|_| self.claim.is_some());
        self.admitted.as_ref().or(chosen).filter(|_| !self.failed)
    }
}

impl World {
    fn new() -> Self {
        let machine = |node: usize| Machine {
            exists: true,
            cards: (0..CARDS).map(|card| format!("GPU-{node}-{card}")).collect(),
            report: Vec::new(),
        };
        let mut world = Self {
            view: empty_view(),
            pods: BTreeMap::new(),
            machines: (0..NODES).map(machine).collect(),
            attempts: Vec::new(),
            look_ups: Vec::new(),
            events: VecDeque::new(),
            node_events: VecDeque::new(),
            listing: Listing::No,
            settled: HashSet::new(),
            made: 0,
        };
        (0..NODES).for_each(|node| world.report(node));
        world.restart();
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Create(slot, units) => self.create(slot, units),
            Step::Delete(slot) => {
                if let Some(pod) = self.pods.remove(&slot) {
                    self.events.push_back(Event::Gone(pod));
                }
            }
            Step::Edit(slot, card) => self.edit(slot, card),
            Step::Bind(slot, node) => self.bind(slot, node),
            Step::Carry(slot) => self.carry(slot),
            Step::Answer(slot, lost) => self.answer(slot, lost),
            Step::Expire(slot) => self.expire(slot),
            Step::Read(slot) => self.read(slot),
            Step::Arrive(slot) => self.arrive(slot),
            Step::Admit(slot) => self.admit(slot),
            Step::PodEvent => self.pod_event(),
            Step::Relist => self.relist(),
            Step::Report(node) => self.report(node),
            Step::NodeEvent => self.node_event(),
            Step::RelistNodes => self.relist_nodes(),
            Step::ToggleNode(node) => {
                self.machines[node].exists ^= true;
                let exists = self.machines[node].exists;
                let event = if exists { Event::Applied(node) } else { Event::Gone(node) };
                self.node_events.push_back(event);
            }
            Step::Replace(node, card) => self.replace(node, card),
            Step::Swap(node) => self.machines[node].cards.reverse(),
            Step::Restart => self.restart(),
        }
    }

    fn changed(&mut self, slot: usize) {
        self.events.extend(self.pods.get(&slot).cloned().map(Event::Applied));
    }

    fn create(&mut self, slot: usize, units: u32) {
        if self.pods.contains_key(&slot) {
            return;
        }
        self.made += 1;
        let (uid, claim, chosen, admitted) = (format!("uid-{}", self.made), None, None, None);
        let pod =
            Object { name: slot, uid, units, node: None, claim, chosen, admitted, failed: false };
        self.pods.insert(slot, pod);
        self.changed(slot);
    }

    fn edit(&mut self, slot: usize, card: Option<usize>) {
        let Some((pod, node)) = self.pods.get_mut(&slot).and_then(|pod| pod.node.map(|n| (pod, n)))
        else {
            return;
        };
        let cards = &self.machines[node].cards;
        pod.claim = card.map(|card| cards.get(card).cloned().unwrap_or("GPU-none".to_owned()));
        self.changed(slot);
    }

    fn bind(&mut self, slot: usize, node: usize) {
        let Some(pod) = self.pods.get(&slot).cloned() else { return };
        let runs = |attempt: &Attempt| attempt.pod.uid == pod.uid && attempt.node == node;
        if pod.node.is_some() || self.attempts.iter().any(runs) {
            return;
        }
        if let Ok(reservation) = self.view.change(|index| {
            index.reserve(&pod.id(), &pod.request(), &name(node), &ChoiceRule::default())
        }) {
            let (claim, phase) = (reservation.claim, Phase::Sent);
            self.attempts.push(Attempt { pod, node, claim, phase, over: false });
        }
    }

    fn attempt(&self, slot: usize, is: impl Fn(&Phase) -> bool) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.pod.name == slot && is(&attempt.phase))
    }

    /// Also a request whose answer nobody waits for any more.
    fn carry(&mut self, slot: usize) {
        let mut open = self.attempts.iter_mut().filter(|attempt| !attempt.over);
        let Some(attempt) = open.find(|attempt| attempt.pod.name == slot) else { return };
        let pod = self.pods.get_mut(&slot);
        let pod = pod.filter(|pod| pod.uid == attempt.pod.uid && pod.node.is_none());
        let bound = pod.is_some();
        if let Some(pod) = pod {
            let card = only_card(&attempt.claim).to_owned();
            (pod.node, pod.claim) = (Some(attempt.node), Some(card.clone()));
            pod.chosen = Some(card);
        }
        attempt.over = true;
        if matches!(attempt.phase, Phase::Sent) {
            attempt.phase = Phase::Carried(bound);
        }
        if bound {
            self.changed(slot);
        }
    }

    fn answer(&mut self, slot: usize, lost: bool) {
        let answered = |phase: &Phase| matches!(phase, Phase::Sent | Phase::Carried(_));
        let Some(at) = self.attempt(slot, answered) else { return };
        let attempt = &mut self.attempts[at];
        match (&attempt.phase, lost) {
            (Phase::Sent, false) => {}
            (Phase::Carried(true), false) => {
                let attempt = self.attempts.remove(at);
                let uid = attempt.pod.uid.as_str().into();
                self.view.change(|index| index.confirm(&uid, &name(attempt.node), &attempt.claim));
                self.end(&attempt.pod);
            }
            (Phase::Carried(false), false) => attempt.phase = Phase::ToRead { may_land: false },
            _ => attempt.phase = Phase::ToRead { may_land: true },
        }
    }

    /// After the longest time that a request can be under way.
    fn expire(&mut self, slot: usize) {
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.pod.name == slot) {
            if let Phase::ToRead { may_land } = &mut attempt.phase {
                (*may_land, attempt.over) = (false, true);
            }
        }
    }

    fn read(&mut self, slot: usize) {
        let pods = &self.pods;
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.pod.name == slot) {
            if let Phase::ToRead { may_land } = attempt.phase {
                attempt.phase = Phase::Read { may_land, found: pods.get(&slot).cloned() };
            }
        }
        let wanted = format!("p{slot}");
        for look_up in self.look_ups.iter_mut().filter(|l| l.id.name == wanted && l.found.is_none())
        {
            self.view.change(|index| index.begin_look_up(&look_up.id.uid));
            look_up.found = Some(pods.get(&slot).cloned());
        }
    }

    fn arrive(&mut self, slot: usize) {
        if let Some(at) = self.attempt(slot, |phase| matches!(phase, Phase::Read { .. })) {
            self.read_answered(at);
        }
        let wanted = format!("p{slot}");
        if let Some(at) =
            self.look_ups.iter().position(|l| l.id.name == wanted && l.found.is_some())
        {
            let look_up = self.look_ups.remove(at);
            match look_up.found.flatten().filter(|pod| pod.id() == look_up.id) {
                Some(pod) => self.take_over(&pod),
                None => self.view.change(|index| index.depart(&look_up.id.uid, Timestamp::now())),
            }
        }
    }

    fn read_answered(&mut self, at: usize) {
        let mut attempt = self.attempts.remove(at);
        let Phase::Read { may_land, found } = attempt.phase else { return };
        let (id, node) = (attempt.pod.id(), name(attempt.node));
        match found.filter(|pod| pod.uid == attempt.pod.uid) {
            None => self.view.change(|index| index.depart(&id.uid, Timestamp::now())),
            Some(pod) if pod.node.is_some() => self.take_over(&pod),
            Some(_) if !may_land => self.view.change(|index| index.cancel(&id.uid, &node)),
            // In doubt: while the reservation stands, the pod is read again.
            Some(_) if self.view.ask(|index| index.is_reserved(&id.uid, &node)) => {
                attempt.phase = Phase::ToRead { may_land };
                return self.attempts.push(attempt);
            }
            Some(_) => {}
        }
        self.end(&attempt.pod);
    }

    fn take_over(&self, pod: &Object) {
        self.view.apply_known(&pod.facts(), &pod.gpu());
    }

    fn end(&mut self, pod: &Object) {
        if self.view.ask(|index| index.is_doubtful(&pod.id().uid)) {
            self.look_ups.push(LookUp { id: pod.id(), found: None });
        }
    }

    fn admit(&mut self, slot: usize) {
        let Some(pod) = self.pods.get(&slot).filter(|pod| pod.admitted.is_none() && !pod.failed)
        else {
            return;
        };
        let Some(node) = pod.node else { return };
        // The device plugin goes by what a user has written; the extender is to have had the time to see it.
        let is_seen = self.events.is_empty() && matches!(self.listing, Listing::No);
        if pod.claim != pod.chosen && !is_seen {
            return;
        }
        let room = |card: &String| {
            let others = self
                .pods
                .values()
                .filter(|other| other.admitted.as_ref() == Some(card) && !other.failed);
            let held: u32 = others.map(|other| other.units).sum();
            self.machines[node].cards.contains(card) && held + pod.units <= UNITS
        };
        let card = pod.claim.clone().filter(room);
        if let Some(pod) = self.pods.get_mut(&slot) {
            (pod.failed, pod.admitted) = (card.is_none(), card);
        }
        self.changed(slot);
    }

    fn apply(&mut self, event: Event<WatchedPod>) {
        let doubtful = self.view.apply_pods(event, &mut self.settled, Timestamp::now());
        self.look_ups.extend(doubtful.into_iter().map(|id| LookUp { id, found: None }));
    }

    fn pod_event(&mut self) {
        if !matches!(self.listing, Listing::No) {
            return;
        }
        match self.events.pop_front() {
            Some(Event::Applied(pod)) => self.apply(Event::Applied(pod.watched())),
            Some(Event::Gone(pod)) => self.apply(Event::Gone(pod.watched())),
            _ => {}
        }
    }

    fn relist(&mut self) {
        match std::mem::replace(&mut self.listing, Listing::No) {
            Listing::No => {
                self.apply(Event::Listing);
                self.listing = Listing::Begun;
            }
            Listing::Begun => {
                self.events.clear();
                self.listing = Listing::Read(self.pods.values().cloned().collect());
            }
            Listing::Read(pods) => {
                self.apply(Event::Listed(pods.iter().map(Object::watched).collect()));
            }
        }
    }

    fn facts(&self, node: usize) -> NodeFacts {
        NodeFacts {
            name: name(node),
            uid: String::new(),
            created_at: None,
            internal_ip: None,
            exporter: None,
            cards: Some(Ok(self.machines[node].report.clone())),
            ready: None,
            readings: Vec::new(),
            hot_value: None,
            share: None,
            labels: [].into(),
            capacity: Default::default(),
            speeds: Default::default(),
            allocatable_cpu: None,
            measured: None,
            taints: Default::default(),
        }
    }

    fn report(&mut self, node: usize) {
        let pods = |card: &String| {
            let there = self.pods.values().filter(|pod| !pod.failed);
            let there = there.filter(|pod| pod.admitted.as_ref() == Some(card));
            there.map(|pod| (pod.id().uid, Units(pod.units))).collect()
        };
        let card = |(index, uuid): (u32, &String)| Card {
            uuid: uuid.as_str().into(),
            index,
            model: "".into(),
            memory: MiB(8192),
            units: Units(UNITS),
            numa_node: None,
            healthy: true,
            closed: None,
            isolation: CardIsolation::default(),
            outside_mps: Vec::new(),
            pods: pods(uuid),
        };
        self.machines[node].report = (0..).zip(&self.machines[node].cards).map(card).collect();
        if self.machines[node].exists {
            self.node_events.push_back(Event::Applied(node));
        }
    }

    /// A watch may leave out states that were overwritten: the event shows the newest.
    fn node_event(&mut self) {
        let event = match self.node_events.pop_front() {
            Some(Event::Applied(node)) if self.machines[node].exists => {
                Event::Applied(self.facts(node))
            }
            Some(Event::Gone(node)) => Event::Gone(self.facts(node)),
            _ => return,
        };
        self.view.apply_nodes(event, Timestamp::now());
    }

    fn relist_nodes(&mut self) {
        self.node_events.clear();
        let there = (0..NODES).filter(|node| self.machines[*node].exists);
        let nodes = there.map(|node| self.facts(node)).collect();
        self.view.apply_nodes(Event::Listed(nodes), Timestamp::now());
    }

    fn replace(&mut self, node: usize, card: usize) {
        let old = self.machines[node].cards[card].clone();
        if self.pods.values().all(|pod| pod.admitted.as_ref() != Some(&old)) {
            self.made += 1;
            self.machines[node].cards[card] = format!("GPU-{node}-{card}-{}", self.made);
            self.report(node);
        }
    }

    fn restart(&mut self) {
        self.view = empty_view();
        // What Bind chose for a pod without its claim is known to nobody now.
        for pod in self.pods.values_mut().filter(|pod| pod.claim.is_none()) {
            pod.chosen = None;
        }
        (self.attempts, self.look_ups, self.listing) = (Vec::new(), Vec::new(), Listing::No);
        self.relist_nodes();
        (0..3).for_each(|_| self.relist());
    }

    /// Units on a card by the API server and the kubelet, and those that a request under way may put there.
    fn carried(&self, card: &str) -> u32 {
        let bound = self.pods.values().filter(|pod| pod.card().is_some_and(|on| on == card));
        let coming = self.attempts.iter().filter(|attempt| {
            let object = self.pods.get(&attempt.pod.name);
            let is_open =
                object.is_some_and(|pod| pod.uid == attempt.pod.uid && pod.node.is_none());
            is_open && !attempt.over && only_card(&attempt.claim) == card
        });
        bound.map(|pod| pod.units).sum::<u32>()
            + coming.map(|attempt| attempt.pod.units).sum::<u32>()
    }

    fn charged(&self) -> Vec<(String, u32)> {
        let index = self.view.read();
        let accounts = index.nodes_with_cards().flat_map(|(_, cards)| cards.accounts().to_vec());
        accounts
            .map(|a| (a.card.uuid.to_string(), (a.card.units.saturating_sub(a.card.free)).0))
            .collect()
    }

    /// Everything under way arrives. The watches do not break any more.
    fn settle(&mut self) {
        while !matches!(self.listing, Listing::No) {
            self.relist();
        }
        (0..SLOTS).for_each(|slot| {
            while self.attempts.iter().any(|a| a.pod.name == slot && !a.over) {
                self.carry(slot);
            }
            for _ in 0..20 {
                self.answer(slot, false);
                self.arrive(slot);
                self.expire(slot);
                self.read(slot);
            }
        });
        while !self.events.is_empty() {
            self.pod_event();
        }
        while !self.node_events.is_empty() {
            self.node_event();
        }
        // The time for reports of pods that nobody saw ending is over.
        self.view.change(|index| index.end_departures(Timestamp::MAX));
        assert!(
            self.attempts.is_empty() && self.look_ups.is_empty(),
            "{:?} {:?}",
            self.attempts,
            self.look_ups
        );
    }
}

fn no_card_looks_emptier_than_it_is(steps: Vec<Step>) {
    let mut world = World::new();
    for step in steps {
        world.take(step);
        for (card, charged) in world.charged() {
            let carried = world.carried(&card).min(UNITS);
            assert!(carried <= charged, "{step:?}: {card} carries {carried}, charged {charged}");
        }
    }
}

#[test]
fn a_claim_that_is_put_back_after_a_restart_counts_once_it_is_seen() {
    use Step::{Bind, Carry, Create, Edit, Restart};
    let put_back = [Create(2, 1), Bind(2, 0), Carry(2), Edit(2, None), Restart, Edit(2, Some(0))];
    no_card_looks_emptier_than_it_is(put_back.to_vec());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_order_makes_a_card_look_emptier_than_it_is(steps in prop::collection::vec(step(), 1..120)) {
        no_card_looks_emptier_than_it_is(steps);
    }

    #[test]
    fn whatever_the_order_what_has_ended_holds_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        world.settle();
        let uids: Vec<String> = world.pods.values().map(|pod| pod.uid.clone()).collect();
        // What runs is on its card, and only there.
        for slot in 0..SLOTS {
            world.admit(slot);
            world.settle();
        }
        (0..NODES).for_each(|node| world.report(node));
        world.settle();
        for (card, charged) in world.charged() {
            prop_assert_eq!(charged, world.carried(&card), "{}", card);
        }
        (0..SLOTS).for_each(|slot| world.take(Step::Delete(slot)));
        (0..NODES).for_each(|node| world.report(node));
        world.settle();
        for (card, charged) in world.charged() {
            prop_assert_eq!(charged, 0, "{}", card);
        }
        for uid in uids {
            prop_assert_eq!(world.view.ask(|index| index.held_on(&uid.into())), Vec::<NodeName>::new());
        }
        prop_assert_eq!(world.view.read().totals().reserved, 0);
    }
}

/// A read that is newer than the watch shows that a pod is gone whose two bindings may have been carried out. Then the
/// watch shows it bound, and gone.
#[test]
fn a_pod_that_is_shown_again_after_its_end_leaves_nothing_on_another_node() {
    use Step::{Answer, Bind, Carry, Create, Delete, Relist};
    let mut world = World::new();
    let steps = [
        Relist,
        Create(1, 1),
        Bind(1, 0),
        Relist,
        Bind(1, 1),
        Carry(1),
        Answer(1, true),
        Delete(1),
    ];
    steps.into_iter().for_each(|step| world.take(step));
    world.settle();
    for (card, charged) in world.charged() {
        assert_eq!(charged, 0, "{card}");
    }
}

fn only_card(claim: &Claim) -> &str {
    claim.cards().keys().next().map_or("", |card| card.as_str())
}
