//! The claims of three pods on two GPUs, exhaustively: every order in which two replicas of the extender, the API
//! server, the network and the kubelet can act, over the real ledger.
//!
//! A replica that leads reserves and sends a binding. What can go wrong, [`FAULTS`] times in a run in any combination:
//! a reply is lost, a request is lost, the leader loses its Lease, it crashes with its ledger, and once it is frozen
//! between the check that it leads and the send. As `scheduler_extender::replicas` argues, another takes over once no
//! request is under way but one that is frozen, and after a list.
//!
//! What holds in every state: the claims on a GPU never exceed it and each is kept, unless a leader was frozen; then
//! the kubelet still hands out no unit twice, and refuses a pod rather. And from every state, if nothing more goes
//! wrong, each pod is placed, or was refused because of the frozen one.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use placement::gpu::{
    ChoiceRule, Claim, Gpu, GpuIsolation, GpuRequest, NodeLedger, ReserveError, Topology,
};
use placement::units::{GpuId, MiB, PodUid, Units};

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;
const GPUS: usize = 2;
const UNITS: u32 = 16;
/// Fit exactly: the first two on one GPU, the third on the other.
const SIZES: [u32; 3] = [9, 7, 16];
const PODS: usize = SIZES.len();
const REPLICAS: usize = 2;
const FAULTS: u8 = 1;

/// A pod as the API server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pod {
    Pending,
    Bound(usize),
    /// The kubelet refused it.
    Refused,
}

/// A binding on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    /// Its sender is stopped between the check and the send.
    Frozen,
    Sent,
    /// Carried out, or found in conflict; the reply is on its way.
    Answered,
    /// The sender will never know from a reply.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Binding {
    /// `None` where the sender has crashed.
    sender: Option<usize>,
    pod: usize,
    gpu: usize,
    way: Way,
}

#[derive(Debug, Clone, Default, Hash)]
struct Replica {
    ledger: NodeLedger,
    /// How much of the watch it has seen.
    seen: usize,
}

#[derive(Debug, Clone, Hash)]
struct World {
    pods: [Pod; PODS],
    /// Where the kubelet has put each.
    placed: [Option<usize>; PODS],
    /// As the node's last report has it.
    reported: [Option<usize>; PODS],
    /// What the watch shows, in order.
    watch: Vec<(usize, Pod)>,
    replicas: [Replica; REPLICAS],
    leader: Option<usize>,
    bindings: Vec<Binding>,
    faults: u8,
    /// A leader was frozen at some time.
    was_frozen: bool,
}

fn uuid(gpu: usize) -> GpuId {
    GpuId::from(format!("GPU-{gpu}"))
}

fn uid(pod: usize) -> PodUid {
    PodUid::from(format!("pod-{pod}"))
}

fn request(pod: usize) -> GpuRequest {
    GpuRequest::single("main", Units(SIZES[pod])).unwrap()
}

fn on_gpu(places: impl Iterator<Item = (usize, usize)>, gpu: usize) -> u32 {
    places.filter(|(_, at)| *at == gpu).map(|(pod, _)| SIZES[pod]).sum()
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            pods: [Pod::Pending; PODS],
            placed: [None; PODS],
            reported: [None; PODS],
            watch: Vec::new(),
            replicas: Default::default(),
            leader: None,
            bindings: Vec::new(),
            faults: 0,
            was_frozen: false,
        };
        world.take(0);
        world
    }

    fn gpus(&self) -> Vec<Gpu> {
        let gpu = |gpu: usize| {
            let pods = (0..PODS).filter(|pod| self.reported[*pod] == Some(gpu));
            Gpu {
                uuid: uuid(gpu),
                index: gpu as u32,
                model: "".into(),
                memory: MiB(16384),
                units: Units(UNITS),
                topology: Topology::default(),
                healthy: true,
                closed: None,
                isolation: GpuIsolation::default(),
                outside_mps: Vec::new(),
                pods: pods.map(|pod| (uid(pod), Units(SIZES[pod]))).collect(),
            }
        };
        (0..GPUS).map(gpu).collect()
    }

    /// A replica sees a pod as the API server has it, by its watch, a list or a read.
    fn show(&mut self, replica: usize, pod: usize, shown: Pod) {
        let ledger = &mut self.replicas[replica].ledger;
        match shown {
            Pod::Pending => {}
            Pod::Bound(gpu) => {
                let claim = Claim::on_gpu(&request(pod), &uuid(gpu));
                ledger.bind(&uid(pod), &request(pod), Some(&claim));
            }
            Pod::Refused => ledger.release(&uid(pod)),
        }
    }

    /// A replica takes the Lease and lists everything.
    fn take(&mut self, replica: usize) {
        for pod in 0..PODS {
            self.show(replica, pod, self.pods[pod]);
        }
        let gpus = self.gpus();
        self.replicas[replica].ledger.set_gpus(gpus);
        self.replicas[replica].seen = self.watch.len();
        self.leader = Some(replica);
    }

    fn change(&mut self, pod: usize, to: Pod) {
        self.pods[pod] = to;
        self.watch.push((pod, to));
    }

    /// The API server gets a binding.
    fn carry_out(&mut self, at: usize) {
        let Binding { pod, gpu, .. } = self.bindings[at];
        if self.pods[pod] == Pod::Pending {
            self.change(pod, Pod::Bound(gpu));
        }
        self.bindings[at].way = Way::Answered;
    }

    /// The sender learns what became of its binding: by the reply, or by reading the pod once nothing is under way.
    fn learn(&mut self, at: usize) {
        let Binding { sender, pod, .. } = self.bindings.remove(at);
        let Some(sender) = sender else { return };
        match self.pods[pod] {
            Pod::Pending => self.replicas[sender].ledger.cancel(&uid(pod)),
            shown => self.show(sender, pod, shown),
        }
    }

    fn bind(&self, leader: usize, pod: usize) -> Option<Self> {
        let mut next = self.clone();
        let reserved = next.replicas[leader].ledger.reserve(&uid(pod), &request(pod), &RULE);
        let gpu = match reserved {
            Ok(reserved) => reserved.choice.gpus[0].index as usize,
            Err(ReserveError::NoFit(_) | ReserveError::Bound | ReserveError::Changed) => {
                return None;
            }
        };
        next.bindings.push(Binding { sender: Some(leader), pod, gpu, way: Way::Sent });
        Some(next)
    }

    /// All that can happen next, with what goes wrong.
    fn steps(&self) -> Vec<Self> {
        let mut next = self.rightly();
        if self.faults < FAULTS {
            next.extend(
                self.wrongly().into_iter().map(|world| Self { faults: self.faults + 1, ..world }),
            );
        }
        next
    }

    fn changed(&self, change: &dyn Fn(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    /// All that can happen while nothing goes wrong.
    fn rightly(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| next.push(self.changed(change));
        for (at, binding) in self.bindings.iter().enumerate() {
            match binding.way {
                Way::Frozen => step(&|world| world.bindings[at].way = Way::Sent),
                Way::Sent => step(&|world| world.carry_out(at)),
                Way::Answered | Way::Silent => step(&|world| world.learn(at)),
            }
        }
        for (pod, units) in SIZES.into_iter().enumerate() {
            if let (Pod::Bound(gpu), None) = (self.pods[pod], self.placed[pod]) {
                let placed = self.placed.iter().enumerate();
                let used = on_gpu(placed.filter_map(|(pod, at)| Some((pod, (*at)?))), gpu);
                if used + units <= UNITS {
                    step(&|world| world.placed[pod] = Some(gpu))
                } else {
                    step(&|world| world.change(pod, Pod::Refused))
                }
            }
        }
        if let Some(leader) = self.leader {
            let seen = self.replicas[leader].seen;
            if let Some((pod, shown)) = self.watch.get(seen).copied() {
                step(&|world| {
                    world.show(leader, pod, shown);
                    world.replicas[leader].seen += 1;
                });
            }
            if self.reported != self.placed {
                step(&|world| {
                    world.reported = world.placed;
                    let gpus = world.gpus();
                    world.replicas[leader].ledger.set_gpus(gpus);
                });
            }
            let asked = |pod: &usize| {
                let of_pod =
                    |binding: &&Binding| binding.sender == Some(leader) && binding.pod == *pod;
                self.pods[*pod] == Pod::Pending
                    && !self.bindings.iter().any(|binding| of_pod(&binding))
            };
            next.extend((0..PODS).filter(asked).filter_map(|pod| self.bind(leader, pod)));
        } else if !self.bindings.iter().any(|binding| binding.way == Way::Sent) {
            for replica in 0..REPLICAS {
                step(&|world| world.take(replica));
            }
        }
        next
    }

    fn wrongly(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| next.push(self.changed(change));
        for (at, binding) in self.bindings.iter().enumerate() {
            match binding.way {
                Way::Sent => {
                    // The request is lost.
                    step(&|world| world.bindings[at].way = Way::Silent);
                    // The process stood still before it was sent.
                    if !self.was_frozen && binding.sender == self.leader {
                        step(&|world| {
                            world.bindings[at].way = Way::Frozen;
                            world.was_frozen = true;
                        });
                    }
                }
                Way::Answered => step(&|world| world.bindings[at].way = Way::Silent),
                Way::Frozen | Way::Silent => {}
            }
        }
        if let Some(leader) = self.leader {
            step(&|world| world.leader = None);
            step(&|world| {
                world.leader = None;
                world.replicas[leader] = Replica { seen: world.watch.len(), ..Replica::default() };
                let of_leader = |binding: &Binding| binding.sender == Some(leader);
                world.bindings.retain(|binding| !(of_leader(binding) && binding.way != Way::Sent));
                let sent = world.bindings.iter_mut().filter(|binding| of_leader(binding));
                sent.for_each(|binding| binding.sender = None);
            });
        }
        next
    }

    /// What must hold in every state.
    fn check(&self) {
        for gpu in 0..GPUS {
            let placed = self.placed.iter().enumerate();
            let handed_out = on_gpu(placed.filter_map(|(pod, at)| Some((pod, (*at)?))), gpu);
            assert!(handed_out <= UNITS, "{self:#?}");
            let claim = |(pod, shown): (usize, &Pod)| match shown {
                Pod::Bound(gpu) => Some((pod, *gpu)),
                Pod::Pending | Pod::Refused => None,
            };
            let claimed = on_gpu(self.pods.iter().enumerate().filter_map(claim), gpu);
            assert!(claimed <= UNITS || self.was_frozen, "{self:#?}");
        }
        for (pod, at) in self.placed.iter().enumerate() {
            assert!(at.is_none_or(|gpu| self.pods[pod] == Pod::Bound(gpu)), "{self:#?}");
            assert!(self.pods[pod] != Pod::Refused || self.was_frozen, "{self:#?}");
        }
    }

    fn is_done(&self) -> bool {
        (0..PODS).all(|pod| self.placed[pod].is_some() || self.pods[pod] == Pod::Refused)
    }

    /// Two hashes of all that it holds.
    fn key(&self) -> (u64, u64) {
        let hash = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, self).hash(&mut hasher);
            hasher.finish()
        };
        (hash(0), hash(1))
    }
}

/// Every state that can be reached.
struct Explored {
    /// For each state: the states that come before it while nothing goes wrong.
    before: Vec<Vec<u32>>,
    done: Vec<u32>,
}

fn explore() -> Explored {
    let first = World::new();
    let mut known = HashMap::from([(first.key(), 0_u32)]);
    let mut explored = Explored { before: vec![Vec::new()], done: Vec::new() };
    let mut queue = VecDeque::from([(0_u32, first)]);
    while let Some((number, world)) = queue.pop_front() {
        world.check();
        if world.is_done() {
            explored.done.push(number);
        }
        for next in world.steps() {
            let goes_well = next.faults == world.faults;
            let new = explored.before.len() as u32;
            let to = *known.entry(next.key()).or_insert(new);
            if to == new {
                explored.before.push(Vec::new());
                queue.push_back((new, next));
            }
            if goes_well {
                explored.before[to as usize].push(number);
            }
        }
    }
    explored
}

#[test]
fn three_pods_on_two_gpus_are_placed_once_in_every_order_of_events() {
    let Explored { before, done } = explore();
    let mut ends_well = vec![false; before.len()];
    let mut left = done;
    while let Some(state) = left.pop() {
        if !std::mem::replace(&mut ends_well[state as usize], true) {
            left.extend(&before[state as usize]);
        }
    }
    let stuck = ends_well.iter().filter(|ends_well| !**ends_well).count();
    eprintln!("{} states, {stuck} from which a pod is never placed", before.len());
    assert_eq!(stuck, 0);
}
