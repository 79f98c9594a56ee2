//! Attempts, watch events, lists, reads and reports, in every order in a small world and at random in a larger one,
//! over the real machine and the real index. Replies get lost, watches break, pods end and are made again under the
//! same name, users edit claims, nodes go and come back, GPUs are replaced and change their index, the extender
//! restarts.
//!
//! What holds in every state: claims that are carried out never exceed a GPU; a GPU is charged at least what is on
//! it, and what requests under way may put there; an attempt that succeeds has its pod on the node. And from every
//! state, once everything has arrived and the pods are gone, nothing is held.

mod ways;
mod world;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use self::ways::Waits;
use self::world::{Listing, UNITS, World, id, name};
use crate::view::Index;

const SLOTS: usize = 4;
const NODES: usize = 2;
const GPUS: usize = 2;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod of this name is made; its UID is new.
    Create(usize, u32),
    /// It changes before it is bound.
    Touch(usize, u32),
    /// Its object goes, by force or after its containers.
    Delete(usize, bool),
    /// The time passes in which a report would show a deleted pod.
    PassTime,
    /// A user has its claim name this GPU of its node, one that the node lacks, or none.
    Edit(usize, Option<usize>),
    /// Another scheduler binds it.
    TakeAway(usize, usize),
    Bind(usize, usize),
    Carry(usize),
    Refuse(usize),
    Answer(usize, bool),
    Expire(usize),
    Wake(usize),
    Read(usize),
    Arrive(usize, bool),
    /// Whether this replica leads.
    Lead(bool),
    /// The kubelet admits the pod on the GPU of its claim, or fails it.
    Admit(usize),
    PodEvent,
    Relist,
    Report(usize),
    NodeEvent,
    RelistNodes,
    Toggle(usize),
    Replace(usize, usize),
    /// The node's GPUs change their indexes.
    Swap(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (slot, node, units) = (0..SLOTS, 0..NODES, 1..=UNITS);
    let gpu = prop::option::of(0..=GPUS);
    let seldom = prop::bool::weighted(0.2);
    prop_oneof![
        4 => (slot.clone(), units.clone()).prop_map(|(s, u)| Step::Create(s, u)),
        1 => (slot.clone(), units).prop_map(|(s, u)| Step::Touch(s, u)),
        3 => (slot.clone(), seldom).prop_map(|(s, force)| Step::Delete(s, force)),
        1 => Just(Step::PassTime),
        2 => (slot.clone(), gpu).prop_map(|(s, c)| Step::Edit(s, c)),
        1 => (slot.clone(), node.clone()).prop_map(|(s, n)| Step::TakeAway(s, n)),
        8 => (slot.clone(), node.clone()).prop_map(|(s, n)| Step::Bind(s, n)),
        6 => slot.clone().prop_map(Step::Carry),
        1 => slot.clone().prop_map(Step::Refuse),
        6 => (slot.clone(), any::<bool>()).prop_map(|(s, lost)| Step::Answer(s, lost)),
        1 => slot.clone().prop_map(Step::Expire),
        6 => slot.clone().prop_map(Step::Wake),
        6 => slot.clone().prop_map(Step::Read),
        6 => (slot.clone(), seldom).prop_map(|(s, lost)| Step::Arrive(s, lost)),
        1 => any::<bool>().prop_map(Step::Lead),
        4 => slot.prop_map(Step::Admit),
        8 => Just(Step::PodEvent),
        6 => Just(Step::Relist),
        3 => node.clone().prop_map(Step::Report),
        6 => Just(Step::NodeEvent),
        1 => Just(Step::RelistNodes),
        1 => node.clone().prop_map(Step::Toggle),
        1 => (node.clone(), 0..GPUS).prop_map(|(n, c)| Step::Replace(n, c)),
        1 => node.prop_map(Step::Swap),
        1 => Just(Step::Restart),
    ]
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Create(slot, units) => self.create(slot, units),
            Step::Touch(slot, units) => self.touch(slot, units),
            Step::Delete(slot, by_force) => self.delete(slot, by_force),
            Step::PassTime => self.pass_time(),
            Step::Edit(slot, gpu) => self.edit(slot, gpu),
            Step::TakeAway(slot, node) => self.take_away(slot, node),
            Step::Bind(slot, node) => self.bind(slot, node),
            Step::Carry(slot) => self.carry(slot),
            Step::Refuse(slot) => self.refuse(slot),
            Step::Answer(slot, is_lost) => self.answer(slot, is_lost),
            Step::Expire(slot) => self.expire(slot),
            Step::Wake(slot) => self.wake(slot),
            Step::Read(slot) => self.read(slot),
            Step::Arrive(slot, is_lost) => self.arrive(slot, is_lost),
            Step::Lead(leads) => self.leads = leads,
            Step::Admit(slot) => self.admit(slot),
            Step::PodEvent => self.pod_event(),
            Step::Relist => self.relist(),
            Step::Report(node) => self.report(node),
            Step::NodeEvent => self.node_event(),
            Step::RelistNodes => self.relist_nodes(),
            Step::Toggle(node) => self.toggle(node),
            Step::Replace(node, gpu) => self.replace(node, gpu),
            Step::Swap(node) => self.machines[node].gpus.reverse(),
            Step::Restart => self.restart(),
        }
    }

    /// Everything under way arrives. The watches do not break any more.
    fn settle(&mut self) {
        while !matches!(self.listing, Listing::No) {
            self.relist();
        }
        (0..SLOTS).for_each(|slot| self.finish(slot));
        while !self.events.is_empty() {
            self.pod_event();
        }
        while !self.node_events.is_empty() {
            self.node_event();
        }
        self.pass_time();
        assert!(self.ways.is_empty(), "{:?}", self.ways);
        assert!(self.look_ups.is_empty(), "{:?}", self.look_ups);
    }

    /// No GPU looks emptier than it is.
    fn check(&self) {
        for (gpu, charged) in self.charged() {
            let carried = self.carried(&gpu).min(UNITS);
            assert!(carried <= charged, "{gpu} carries {carried}, charged {charged}");
        }
    }

    /// What has ended holds nothing.
    fn end(mut self) {
        self.settle();
        (0..SLOTS).for_each(|slot| self.delete(slot, false));
        (0..self.machines.len()).for_each(|node| self.report(node));
        self.settle();
        for (gpu, charged) in self.charged() {
            assert_eq!(charged, 0, "{gpu}");
        }
        // A reservation for a pod that is gone leaves its name until the next list.
        (0..3).for_each(|_| self.relist());
        assert!(self.has_forgotten_all());
    }
}

fn run(steps: &[Step]) -> World {
    let mut world = World::new(NODES, GPUS);
    for step in steps {
        world.take(*step);
        world.check();
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_order_makes_a_gpu_look_emptier_than_it_is(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps);
    }

    #[test]
    fn whatever_the_order_what_has_ended_holds_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(NODES, GPUS);
        steps.into_iter().for_each(|step| world.take(step));
        world.settle();
        // What runs is on its GPU, and only there.
        for slot in 0..SLOTS {
            world.admit(slot);
            world.settle();
        }
        (0..NODES).for_each(|node| world.report(node));
        world.settle();
        for (gpu, charged) in world.charged() {
            prop_assert_eq!(charged, world.carried(&gpu), "{}", gpu);
        }
        world.end();
    }
}

#[test]
fn a_claim_that_is_put_back_after_a_restart_counts_once_it_is_seen() {
    use Step::{Bind, Carry, Create, Edit, Restart};
    run(&[Create(2, 1), Bind(2, 0), Carry(2), Edit(2, None), Restart, Edit(2, Some(0))]);
}

/// A read that is newer than the watch shows that a pod is gone whose two bindings may have been carried out. Then the
/// watch shows it bound, and gone.
#[test]
fn a_pod_that_is_shown_again_after_its_end_leaves_nothing_on_another_node() {
    use Step::{Answer, Bind, Carry, Create, Delete, Relist};
    let bound = [Relist, Create(1, 1), Bind(1, 0), Relist, Bind(1, 1)];
    let mut world = run(&bound);
    for step in [Carry(1), Answer(1, true), Delete(1, false)] {
        world.take(step);
    }
    world.end();
}

/// Of a GPU's 16 units: the first two do not fit together, the third fits beside each.
const SIZES: [u32; 3] = [9, 8, 7];

impl World {
    /// What can happen in a small world, of so many pods and of nodes with one GPU, while nothing goes wrong.
    fn rightly(&self, pods: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if !matches!(self.listing, Listing::No) {
            steps.push(Step::Relist);
        } else if !self.events.is_empty() {
            steps.push(Step::PodEvent);
        }
        for slot in 0..pods {
            steps.extend((0..self.machines.len()).map(|node| Step::Bind(slot, node)));
            if self.requests.iter().any(|request| request.slot == slot) {
                steps.extend([Step::Carry(slot), Step::Expire(slot)]);
            }
            for way in self.ways.iter().filter(|way| way.slot == slot) {
                steps.extend(match way.waits {
                    Waits::Read => Some(Step::Read(slot)),
                    Waits::Shown(_) => Some(Step::Arrive(slot, false)),
                    Waits::Answered(_) => Some(Step::Answer(slot, false)),
                    Waits::Pause => Some(Step::Wake(slot)),
                    Waits::Answer => None,
                });
            }
            if self.look_ups.iter().any(|look_up| look_up.is_of(slot)) {
                steps.extend([Step::Read(slot), Step::Arrive(slot, false)]);
            }
        }
        steps
    }

    fn wrongly(&self, pods: usize) -> Vec<Step> {
        let mut steps = vec![Step::Restart];
        if matches!(self.listing, Listing::No) {
            steps.push(Step::Relist);
        }
        for (slot, units) in SIZES.into_iter().enumerate().take(pods) {
            steps.extend([Step::Touch(slot, units), Step::Delete(slot, true)]);
        }
        for step in self.rightly(pods) {
            match step {
                Step::Carry(slot) => steps.extend([Step::Answer(slot, true), Step::Refuse(slot)]),
                Step::Answer(slot, _) => steps.push(Step::Answer(slot, true)),
                Step::Arrive(slot, _) => steps.push(Step::Arrive(slot, true)),
                _ => {}
            }
        }
        steps
    }

    /// A hash of all that the next steps depend on.
    fn key(&self, pods: usize) -> u64 {
        let Self { look_ups, events, listing, bound, lingering, .. } = self;
        let mut hasher = DefaultHasher::new();
        let ways = self.ways_and_requests();
        let others = (&self.pods, look_ups, events, listing, bound, lingering);
        format!("{ways} {others:?} {}", self.accounts()).hash(&mut hasher);
        // What a list that has begun does not end.
        format!("{:?}", self.settled.iter().collect::<BTreeSet<_>>()).hash(&mut hasher);
        let mut probe = self.index.clone();
        for slot in 0..pods {
            // Made in this order.
            let id = id(slot, &format!("uid-{}", slot + 1));
            let ask = |index: &Index| {
                (index.request(&id), index.version(&id.uid), index.is_doubtful(&id.uid))
            };
            let before = ask(&probe);
            // Without its reservations it shows whether a list lacked it.
            (0..self.machines.len()).for_each(|node| probe.cancel(&id.uid, &name(node)));
            format!("{before:?} {:?}", ask(&probe)).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Takes the step, and tries the end from there where the state is new.
fn try_step(world: &World, step: Step, is_new: impl FnOnce(&World) -> bool) -> Option<World> {
    let mut next = world.clone();
    next.take(step);
    next.check();
    for (gpu, _) in next.charged() {
        assert!(next.claimed(&gpu) <= UNITS, "{gpu}");
    }
    if !is_new(&next) {
        return None;
    }
    let mut settled = next.clone();
    settled.settle();
    for (gpu, charged) in settled.charged() {
        assert_eq!(charged, settled.claimed(&gpu), "{gpu}");
    }
    settled.end();
    Some(next)
}

/// Takes up to `depth` steps in every order, of which up to `faults` are wrong.
fn explore(first: World, depth: usize, faults: usize) {
    let pods = first.pods.len();
    let mut known = HashSet::new();
    let mut queue = VecDeque::from([(first, Vec::new(), 0)]);
    while let Some((world, path, wrong)) = queue.pop_front() {
        let wrongly = if wrong < faults { world.wrongly(pods) } else { Vec::new() };
        let rightly = world.rightly(pods).into_iter().map(|step| (step, wrong));
        for (step, wrong) in rightly.chain(wrongly.into_iter().map(|step| (step, wrong + 1))) {
            let path: Vec<Step> = path.iter().copied().chain([step]).collect();
            let is_new = |world: &World| known.insert((world.key(pods), wrong));
            match catch_unwind(AssertUnwindSafe(|| try_step(&world, step, is_new))) {
                Ok(Some(next)) if path.len() < depth => queue.push_back((next, path, wrong)),
                Ok(_) => {}
                Err(_) => panic!("after {path:?}"),
            }
        }
    }
    eprintln!("{} states", known.len());
    assert!(known.len() > 500);
}

/// Pods that the watch has shown, on nodes with one GPU.
fn shown(pods: usize, nodes: usize) -> World {
    let mut world = World::new(nodes, 1);
    for (slot, units) in SIZES.into_iter().enumerate().take(pods) {
        world.create(slot, units);
        world.pod_event();
    }
    world
}

#[test]
fn two_pods_on_one_gpu_in_every_order_of_events() {
    explore(shown(2, 1), 13, 2);
}

#[test]
fn three_pods_on_two_nodes_in_every_order_of_five_events() {
    explore(shown(3, 2), 5, 1);
}

/// The watch shows it at any time.
#[test]
fn one_pod_on_two_nodes_in_every_order_of_events() {
    let mut first = World::new(2, 1);
    first.create(0, SIZES[0]);
    explore(first, 8, 2);
}
