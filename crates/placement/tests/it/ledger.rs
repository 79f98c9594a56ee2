//! The ledger against a model of the world: an API server that alone decides what is bound, replies
//! that get lost, extenders that restart, and kubelets that report late. Whatever the interleaving,
//! no card ever carries more than it has.

use std::collections::BTreeMap;

use placement::gpu::{Card, Claim, GpuRequest, NodeLedger, Placed, Stage};
use placement::units::{CardId, MiB, PodUid, Units};
use proptest::prelude::*;

const CARDS: u32 = 3;
const UNITS: u32 = 8;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A Bind arrives and the ledger reserves; the write to the API server is on its way.
    Reserve(u8, u32),
    /// The API server applies the write (and the reply is lost, or not read yet).
    Apply(u8),
    /// The API server refuses the write for good, and the extender learns it.
    Refuse(u8),
    /// The watch shows the pod as the API server has it.
    Watch(u8),
    /// The pod ends: its containers are gone, then its object, then the watch says so.
    End(u8),
    /// The kubelet's records reach the node's annotation.
    Report,
    /// The extender restarts: no write is under way, all memory is gone, the list is read anew.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0_u8..12;
    prop_oneof![
        4 => (pod.clone(), 1..=UNITS).prop_map(|(p, u)| Step::Reserve(p, u)),
        4 => pod.clone().prop_map(Step::Apply),
        2 => pod.clone().prop_map(Step::Refuse),
        3 => pod.clone().prop_map(Step::Watch),
        2 => pod.prop_map(Step::End),
        1 => Just(Step::Report),
        1 => Just(Step::Restart),
    ]
}

#[derive(Default)]
struct World {
    ledger: NodeLedger,
    /// Writes under way: what Bind sent.
    under_way: BTreeMap<u8, (GpuRequest, Claim)>,
    /// What the API server holds.
    bound: BTreeMap<u8, (GpuRequest, Claim)>,
    refused: usize,
}

fn uid(pod: u8) -> PodUid {
    PodUid::from(format!("uid-{pod}"))
}

fn cards(bound: &BTreeMap<u8, (GpuRequest, Claim)>) -> Vec<Card> {
    let uuid = |index| CardId::from(format!("GPU-{index}"));
    let pods = |index| {
        let on = |(_, (_, claim)): &(&u8, &(GpuRequest, Claim))| *claim.card() == uuid(index);
        bound.iter().filter(on).map(|(pod, (ask, _))| (uid(*pod), ask.peak())).collect()
    };
    (0..CARDS)
        .map(|index| Card {
            uuid: uuid(index),
            index,
            model: String::new(),
            memory: MiB(8192),
            units: Units(UNITS),
            numa_node: None,
            healthy: true,
            pods: pods(index),
        })
        .collect()
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        world.ledger.set_cards(cards(&world.bound));
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Reserve(pod, units) => self.reserve(pod, units),
            Step::Apply(pod) => {
                if let Some(sent) = self.under_way.remove(&pod) {
                    self.bound.insert(pod, sent);
                }
            }
            Step::Refuse(pod) => {
                if self.under_way.remove(&pod).is_some() {
                    self.ledger.cancel(&uid(pod));
                }
            }
            Step::Watch(pod) => self.watch(pod),
            Step::End(pod) => {
                if self.bound.remove(&pod).is_some() {
                    self.ledger.release(&uid(pod));
                }
            }
            Step::Report => self.ledger.set_cards(cards(&self.bound)),
            Step::Restart => self.restart(),
        }
    }

    fn reserve(&mut self, pod: u8, units: u32) {
        if self.bound.contains_key(&pod) || self.under_way.contains_key(&pod) {
            return;
        }
        let request = GpuRequest::single("app", Units(units)).unwrap();
        match self.ledger.reserve(&uid(pod), &request) {
            Ok((claim, _)) => drop(self.under_way.insert(pod, (request, claim))),
            Err(_) => self.refused += 1,
        }
    }

    fn watch(&mut self, pod: u8) {
        if let Some((request, claim)) = self.bound.get(&pod) {
            let placed = Placed::by(claim, request);
            self.ledger.observe(&uid(pod), request, placed, Stage::Bound);
        }
    }

    fn restart(&mut self) {
        self.under_way.clear();
        self.ledger = NodeLedger::default();
        self.ledger.set_cards(cards(&self.bound));
        self.bound.keys().copied().collect::<Vec<_>>().into_iter().for_each(|pod| self.watch(pod));
    }

    /// What the cards really carry: bound pods, and writes that may yet land.
    fn carried(&self) -> BTreeMap<CardId, u32> {
        let mut carried = BTreeMap::new();
        for (request, claim) in self.bound.values().chain(self.under_way.values()) {
            *carried.entry(claim.card().clone()).or_default() += request.peak().0;
        }
        carried
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_interleaving_overbooks_a_card(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            for (card, units) in world.carried() {
                prop_assert!(units <= UNITS, "{card} carries {units} of {UNITS}");
            }
        }
    }

    #[test]
    fn nothing_leaks_once_every_pod_has_ended(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        (0..12).for_each(|pod| {
            world.take(Step::Apply(pod));
            world.take(Step::End(pod));
            world.ledger.cancel(&uid(pod));
        });
        world.take(Step::Report);
        for account in world.ledger.accounts() {
            prop_assert_eq!(account.used, Units::ZERO);
            prop_assert!(account.pods.is_empty());
        }
    }

    #[test]
    fn a_restarted_ledger_is_the_same_ledger(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        (0..12).for_each(|pod| { world.take(Step::Apply(pod)); world.take(Step::Watch(pod)); });
        world.take(Step::Report);
        let before = world.ledger.accounts();
        world.take(Step::Restart);
        prop_assert_eq!(world.ledger.accounts(), before);
    }
}
