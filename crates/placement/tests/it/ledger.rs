//! The ledger against a model of the world: an API server that alone decides what is bound, replies that get lost,
//! extenders and device plugins that restart, kubelets that report late, GPUs that come and go, and users who write
//! what they like on their pods.
//!
//! What really is on a GPU: the pods that the kubelet has put there, and those bound or being bound that it has not
//! admitted yet, on the GPU that Bind chose. Every second pod is a client of MPS.

use std::collections::BTreeMap;

use placement::gpu::{
    ChoiceRule, Claim, ContainerKind, ContainerRequest, Gpu, GpuFilter, GpuIsolation, GpuOptions,
    GpuRequest, GpuUse, Isolation, NodeLedger, Stage, Topology,
};
use placement::units::{GpuId, MiB, PodUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;
const GPUS: u32 = 3;
const UNITS: u32 = 8;
const PODS: u8 = 10;
/// The most clients of MPS that a GPU serves.
const CLIENTS: u16 = 3;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A Bind arrives and the ledger reserves; the write to the API server is on its way.
    Reserve(u8, u32),
    /// The API server applies the write; the reply is lost, or not read yet.
    Apply(u8),
    /// The API server refuses the write for good, and the extender learns it.
    Refuse(u8),
    /// The watch shows the pod as the API server has it.
    Watch(u8),
    /// A user writes a claim of this GPU, which the node may lack, or removes it. The watch shows it.
    Edit(u8, Option<u32>),
    /// A user writes a claim of this GPU for just as long as the kubelet needs to admit the pod there.
    Divert(u8, u32),
    /// The kubelet admits the pod on the GPU of its annotation, or fails it.
    Admit(u8),
    /// The pod's status shows that the kubelet has admitted it.
    Status(u8),
    /// Reports have had the time to show the pod.
    Overdue(u8),
    /// The kubelet's records of a pod's init container, which the device plugin alone remembers, are lost.
    Forget(u8),
    /// The device plugin rewrites the claim to the GPU of the kubelet's records. The watch shows it.
    Correct(u8),
    /// The pod ends: its containers are gone, then its object, then the watch says so.
    End(u8),
    /// The device plugin's report reaches the extender.
    Report,
    /// A GPU falls off the bus or is back; the next report says so.
    Toggle(u32),
    /// The extender restarts: no write is under way, all memory is gone, everything is listed anew.
    Restart,
}

/// Steps in which everybody means well.
fn honest() -> impl Strategy<Value = Step> {
    let pod = 0..PODS;
    prop_oneof![
        4 => (pod.clone(), 1..=UNITS).prop_map(|(p, u)| Step::Reserve(p, u)),
        4 => pod.clone().prop_map(Step::Apply),
        2 => pod.clone().prop_map(Step::Refuse),
        3 => pod.clone().prop_map(Step::Watch),
        3 => pod.clone().prop_map(Step::Admit),
        1 => pod.clone().prop_map(Step::Status),
        1 => pod.clone().prop_map(Step::Overdue),
        2 => pod.prop_map(Step::End),
        2 => Just(Step::Report),
        1 => Just(Step::Restart),
    ]
}

/// As [`honest`], with pods of which a GPU has room for more than it serves.
fn honest_and_small() -> impl Strategy<Value = Step> {
    prop_oneof![1 => (0..PODS).prop_map(|pod| Step::Reserve(pod, 1)), 2 => honest()]
}

fn hostile() -> impl Strategy<Value = Step> {
    let pod = 0..PODS;
    prop_oneof![
        8 => honest(),
        3 => (pod.clone(), prop::option::of(0..=GPUS)).prop_map(|(p, c)| Step::Edit(p, c)),
        2 => (pod.clone(), 0..GPUS).prop_map(|(p, c)| Step::Divert(p, c)),
        1 => pod.clone().prop_map(Step::Forget),
        1 => pod.prop_map(Step::Correct),
        1 => (0..GPUS).prop_map(Step::Toggle),
    ]
}

#[derive(Debug, Clone)]
struct Pod {
    uid: PodUid,
    request: GpuRequest,
    /// What Bind chose.
    chosen: u32,
    bound: bool,
    /// What its annotation claims.
    claimed: Option<u32>,
    /// Where the kubelet has put it.
    admitted: Option<u32>,
    /// Whether the device plugin can tell.
    recorded: bool,
    /// Whether it was admitted when a report was made.
    reported: bool,
    /// Whether its status shows that it was admitted.
    status: bool,
    /// Whether this extender has chosen its GPU, seen a claim of it, or seen its status.
    known: bool,
}

#[derive(Default)]
struct World {
    ledger: NodeLedger,
    pods: BTreeMap<u8, Pod>,
    lost: [bool; GPUS as usize],
    /// The node's annotation, which outlives the extender.
    report: Vec<Gpu>,
    uids: u32,
}

fn uuid(index: u32) -> GpuId {
    GpuId::from(format!("GPU-{index}"))
}

/// Every second pod is a client of MPS, and every fourth has two processes.
fn request(pod: u8, units: u32) -> GpuRequest {
    let isolation = if is_client(pod) { Isolation::Mps } else { Isolation::None };
    let processes = if pod % 4 == 3 { 2 } else { 1 };
    let container = ContainerRequest {
        name: "app".to_owned(),
        kind: ContainerKind::App,
        position: 0,
        units: Units(units),
        gpu_use: GpuUse { processes, ..GpuUse::default() },
    };
    let filter = GpuFilter { isolation, ..GpuFilter::default() };
    let options = GpuOptions { filter, ..GpuOptions::default() };
    GpuRequest::with_options([container], options).unwrap().unwrap()
}

fn is_client(pod: u8) -> bool {
    pod % 2 == 1
}

impl Pod {
    fn claim(&self) -> Option<Claim> {
        self.claimed.map(|index| Claim::on_gpu(&self.request, &uuid(index)))
    }

    /// Without a claim the kubelet admits it nowhere.
    fn is_on(&self, gpu: u32) -> bool {
        let expected = (!self.bound || self.claimed.is_some()).then_some(self.chosen);
        self.admitted.or(expected) == Some(gpu)
    }
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        world.take(Step::Report);
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Reserve(pod, units) => self.reserve(pod, units),
            Step::Apply(pod) => {
                if let Some(pod) = self.pods.get_mut(&pod).filter(|pod| !pod.bound) {
                    (pod.bound, pod.claimed) = (true, Some(pod.chosen));
                }
            }
            Step::Refuse(pod) => {
                if self.pods.get(&pod).is_some_and(|pod| !pod.bound) {
                    self.ledger.cancel(&self.pods[&pod].uid.clone());
                    self.pods.remove(&pod);
                }
            }
            Step::Watch(pod) => self.watch(pod),
            Step::Edit(pod, claimed) => self.edit(pod, |_| claimed),
            Step::Divert(pod, gpu) => {
                self.edit(pod, |_| Some(gpu));
                self.admit(pod);
                self.edit(pod, |pod| Some(pod.chosen));
            }
            Step::Admit(pod) => self.admit(pod),
            Step::Status(pod) => {
                if let Some(pod) = self.pods.get_mut(&pod).filter(|pod| pod.admitted.is_some()) {
                    pod.status = true;
                }
                self.watch(pod);
            }
            Step::Overdue(pod) => {
                let due = |pod: &&Pod| pod.recorded && pod.reported;
                if let Some(pod) = self.pods.get(&pod).filter(due) {
                    self.ledger.set_overdue(&pod.uid);
                }
            }
            Step::Forget(pod) => {
                if let Some(pod) = self.pods.get_mut(&pod) {
                    pod.recorded = false;
                }
            }
            Step::Correct(pod) => {
                if self.pods.get(&pod).is_some_and(|pod| pod.recorded) {
                    self.edit(pod, |pod| pod.admitted);
                }
            }
            Step::End(pod) => {
                if self.pods.get(&pod).is_some_and(|pod| pod.bound) {
                    self.end(pod);
                }
            }
            Step::Report => {
                self.report = self.gpus();
                self.pods.values_mut().for_each(|pod| pod.reported = pod.admitted.is_some());
                self.ledger.set_gpus(self.report.clone());
            }
            Step::Toggle(gpu) => self.lost[gpu as usize] ^= true,
            Step::Restart => self.restart(),
        }
    }

    fn reserve(&mut self, pod: u8, units: u32) {
        if self.pods.contains_key(&pod) {
            return;
        }
        self.uids += 1;
        let uid = PodUid::from(format!("uid-{}", self.uids));
        let request = request(pod, units);
        if let Ok(reservation) = self.ledger.reserve(&uid, &request, &RULE) {
            let chosen = reservation.choice.gpus[0].index;
            let claimed = None;
            let admitted = None;
            let bound = false;
            let recorded = false;
            let reported = false;
            let status = false;
            let known = true;
            let new = Pod {
                uid,
                request,
                chosen,
                bound,
                claimed,
                admitted,
                recorded,
                reported,
                status,
                known,
            };
            self.pods.insert(pod, new);
        }
    }

    fn watch(&mut self, pod: u8) {
        if let Some(pod) = self.pods.get_mut(&pod).filter(|pod| pod.bound) {
            self.ledger.bind(&pod.uid, &pod.request, pod.claim().as_ref());
            pod.known |= pod.claimed.is_some() || pod.status;
            if pod.status {
                self.ledger.admit(&pod.uid);
            }
        }
    }

    fn edit(&mut self, pod: u8, claimed: impl Fn(&Pod) -> Option<u32>) {
        if let Some(pod) = self.pods.get_mut(&pod).filter(|pod| pod.bound) {
            pod.claimed = claimed(pod);
        }
        self.watch(pod);
    }

    fn admit(&mut self, number: u8) {
        let Some(pod) = self.pods.get(&number) else { return };
        if !pod.bound || pod.admitted.is_some() {
            return;
        }
        let room = |gpu: &u32| {
            let there = self.pods.values().filter(|other| other.admitted == Some(*gpu));
            let held: u32 = there.map(|other| other.request.peak().0).sum();
            *gpu < GPUS && !self.lost[*gpu as usize] && held + pod.request.peak().0 <= UNITS
        };
        match pod.claimed.filter(room) {
            None => self.end(number),
            Some(gpu) => {
                if let Some(pod) = self.pods.get_mut(&number) {
                    (pod.admitted, pod.recorded) = (Some(gpu), true);
                }
            }
        }
    }

    fn end(&mut self, pod: u8) {
        if let Some(pod) = self.pods.remove(&pod) {
            self.ledger.release(&pod.uid);
        }
    }

    fn restart(&mut self) {
        self.pods.retain(|_, pod| pod.bound);
        self.pods.values_mut().for_each(|pod| pod.known = false);
        self.ledger = NodeLedger::default();
        self.ledger.set_gpus(self.report.clone());
        self.pods.keys().copied().collect::<Vec<_>>().into_iter().for_each(|pod| self.watch(pod));
    }

    /// What the device plugin reports.
    fn gpus(&self) -> Vec<Gpu> {
        let pods = |index| {
            let on = |pod: &&Pod| pod.recorded && pod.admitted == Some(index);
            let of = |pod: &Pod| (pod.uid.clone(), pod.request.peak());
            self.pods.values().filter(on).map(of).collect()
        };
        let there = (0..GPUS).filter(|index| !self.lost[*index as usize]);
        there
            .map(|index| Gpu {
                uuid: uuid(index),
                index,
                model: "".into(),
                memory: MiB(8192),
                units: Units(UNITS),
                topology: Topology::default(),
                healthy: true,
                closed: None,
                isolation: GpuIsolation {
                    strongest: Some(Isolation::Mps),
                    minimum: Isolation::None,
                    mps_clients: Some(CLIENTS),
                    drains_clients: false,
                },
                outside_mps: Vec::new(),
                pods: pods(index),
            })
            .collect()
    }

    /// What really is on a GPU.
    fn carried(&self, gpu: u32) -> u32 {
        self.carried_by(gpu, |_| true)
    }

    /// What is on a GPU of pods that the extender knows more of than their requests: the GPU, a claim or that they
    /// run.
    fn carried_by_known(&self, gpu: u32) -> u32 {
        self.carried_by(gpu, |pod| pod.known)
    }

    fn carried_by(&self, gpu: u32, counts: impl Fn(&Pod) -> bool) -> u32 {
        let on = self.pods.values().filter(|pod| pod.is_on(gpu) && counts(pod));
        on.map(|pod| pod.request.peak().0).sum()
    }

    /// The clients of MPS that really are on a GPU, and the number of other pods there.
    fn sharers(&self, gpu: u32) -> (u16, usize) {
        let on = || self.pods.iter().filter(|(_, pod)| pod.is_on(gpu));
        let (clients, others): (Vec<_>, Vec<_>) = on().partition(|(number, _)| is_client(**number));
        let clients = clients.iter().map(|(_, pod)| pod.request.largest().processes).sum();
        (clients, others.len())
    }

    /// What the ledger counts for a pod: on GPUs, and on the node as a whole.
    fn counted(&self, uid: &PodUid) -> u32 {
        let gpus = self.ledger.read();
        let charges = gpus.accounts().iter().flat_map(|account| &account.charges);
        let on_gpus = charges.filter(|charge| charge.pod == *uid).map(|charge| charge.units.0);
        let unplaced = gpus.unplaced().iter().filter(|(pod, _)| pod == uid);
        on_gpus.chain(unplaced.map(|(_, units)| units.0)).sum()
    }

    /// What the ledger takes from each reported GPU.
    fn charged(&self) -> Vec<(u32, u32)> {
        let accounts = self.ledger.read().accounts().iter();
        accounts.map(|account| (account.gpu.index, UNITS - account.gpu.free.0)).collect()
    }

    /// Everything under way arrives, and is reported.
    fn settle(&mut self) {
        self.lost = Default::default();
        self.take(Step::Report);
        (0..PODS).for_each(|pod| {
            self.take(Step::Apply(pod));
            self.take(Step::Watch(pod));
            self.take(Step::Admit(pod));
        });
        self.pods.values_mut().for_each(|pod| pod.recorded = true);
        self.take(Step::Report);
    }
}

fn steps(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_interleaving_overbooks_a_gpu(steps in steps(honest())) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            for gpu in 0..GPUS {
                let carried = world.carried(gpu);
                prop_assert!(carried <= UNITS, "GPU {gpu} carries {carried} of {UNITS}");
            }
        }
    }

    #[test]
    fn no_interleaving_mixes_sharers_or_adds_a_client_too_many(steps in steps(honest_and_small())) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            for gpu in 0..GPUS {
                let (clients, others) = world.sharers(gpu);
                prop_assert!(clients <= CLIENTS, "{step:?}: {clients} clients on GPU {gpu}");
                prop_assert!(clients == 0 || others == 0, "{step:?}: {others} beside {clients} on {gpu}");
            }
        }
    }

    #[test]
    fn no_gpu_looks_emptier_than_it_is(steps in steps(hostile())) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            for (gpu, charged) in world.charged() {
                let carried = world.carried_by_known(gpu).min(UNITS);
                prop_assert!(carried <= charged, "{step:?}: GPU {gpu} carries {carried}, charged {charged}");
            }
            // A pod without a claim is of the node as a whole, as in kube-scheduler: the device plugin lets no pod in
            // on a full GPU. One that a report has shown on a GPU is of that GPU, also once the GPU is lost, until
            // a report has the GPU again.
            let is_on_lost = |pod: &Pod| {
                let is_there = |index| world.report.iter().any(|gpu| gpu.index == index);
                pod.admitted.is_some_and(|gpu| world.lost[gpu as usize] || !is_there(gpu))
            };
            for pod in world.pods.values().filter(|pod| !pod.known && !is_on_lost(pod)) {
                let counted = world.counted(&pod.uid);
                let peak = pod.request.peak().0;
                prop_assert!(counted >= peak, "{step:?}: {} counts {counted} of {peak}", pod.uid);
            }
        }
    }

    #[test]
    fn a_settled_ledger_is_exact(steps in steps(hostile())) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        world.settle();
        for (gpu, charged) in world.charged() {
            prop_assert_eq!(charged, world.carried(gpu), "GPU {}", gpu);
        }
        let stages: Vec<Stage> = world.ledger.stages().map(|(_, stage)| stage).collect();
        prop_assert!(stages.iter().all(|stage| *stage == Stage::Allocated), "{:?}", stages);
    }

    #[test]
    fn nothing_leaks_once_every_pod_has_ended(steps in steps(hostile())) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        (0..PODS).for_each(|pod| {
            world.take(Step::Refuse(pod));
            world.take(Step::End(pod));
        });
        world.settle();
        prop_assert!(world.ledger.stages().next().is_none());
        for (_, charged) in world.charged() {
            prop_assert_eq!(charged, 0);
        }
    }

    #[test]
    fn a_restarted_ledger_is_the_same_ledger(steps in steps(hostile())) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        world.settle();
        let before = world.ledger.read().accounts().to_vec();
        world.take(Step::Restart);
        prop_assert_eq!(world.ledger.read().accounts(), before);
    }
}
