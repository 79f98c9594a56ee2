//! Pods on several GPUs, with GPUs for themselves, with parts of the compute, and with options.

use std::collections::BTreeMap;

use placement::gpu::{
    BeyondUnits, ChoiceRule, Claim, ClaimError, ContainerKind, ContainerRequest, Gpu, GpuFilter,
    GpuIsolation, GpuOptions, GpuRequest, GpuShare, GpuShares, GpuUse, NoFit, NodeLedger, Rating,
    Strategy, Topology,
};
use placement::units::{Cores, GpuId, MiB, PodUid, Units};
use proptest::prelude::{Just, ProptestConfig, prop, prop_assert, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;

fn uuid(index: u32) -> GpuId {
    GpuId::from(format!("GPU-{index}"))
}

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

fn gpu(index: u32, units: u32) -> Gpu {
    Gpu {
        uuid: uuid(index),
        index,
        model: if index.is_multiple_of(2) { "NVIDIA A10" } else { "Tesla T4" }.into(),
        memory: MiB(u64::from(units) * 1024),
        units: Units(units),
        topology: Topology { numa_node: Some(index / 2), ..Topology::default() },
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: BTreeMap::new(),
    }
}

fn ledger(gpus: impl IntoIterator<Item = Gpu>) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(gpus.into_iter().collect());
    ledger
}

fn container(name: &str, position: usize, units: u32, gpu_use: GpuUse) -> ContainerRequest {
    let kind = ContainerKind::App;
    ContainerRequest { name: name.to_owned(), kind, position, units: Units(units), gpu_use }
}

/// The request of a pod whose namespace may take more of GPUs than units.
fn request(units: u32, gpu_use: GpuUse) -> GpuRequest {
    let request = GpuRequest::new([container("main", 0, units, gpu_use)]).unwrap().unwrap();
    request.with_beyond_units(BeyondUnits::ALL)
}

fn on(gpus: u32) -> GpuUse {
    GpuUse { gpus, ..GpuUse::default() }
}

fn exclusive(gpus: u32) -> GpuUse {
    GpuUse { gpus, exclusive: true, ..GpuUse::default() }
}

fn with_cores(cores: u32) -> GpuUse {
    GpuUse { cores: Cores(cores), ..GpuUse::default() }
}

/// The score of a node by how far its GPUs are filled.
fn points(ledger: &NodeLedger, pod: &str, request: &GpuRequest) -> u8 {
    match ledger.read().rate(&uid(pod), request, &RULE).unwrap() {
        Rating::Score(score) => score.get(),
        // No score.
        Rating::Cost(_) => u8::MAX,
    }
}

fn reserve(ledger: &mut NodeLedger, pod: &str, request: &GpuRequest) -> Result<Vec<u32>, NoFit> {
    ledger.read().fit(&uid(pod), request, &RULE)?;
    let reservation = ledger.reserve(&uid(pod), request, &RULE).unwrap();
    Ok(reservation.choice.gpus.iter().map(|gpu| gpu.index).collect())
}

fn free(ledger: &NodeLedger) -> Vec<(u32, u32)> {
    let accounts = ledger.read().accounts().iter();
    accounts.map(|account| (account.gpu.free.0, account.gpu.free_cores.0)).collect()
}

#[test]
fn equal_shares_go_to_the_gpus_that_are_filled_best() {
    let mut ledger = ledger([gpu(0, 16), gpu(2, 8), gpu(4, 4), gpu(6, 2)]);
    assert_eq!(reserve(&mut ledger, "a", &request(6, on(2))), Ok(vec![4, 2]));
    assert_eq!(free(&ledger), [(16, 100), (5, 100), (1, 100), (2, 100)]);
    assert_eq!(reserve(&mut ledger, "b", &request(18, on(3))), Err(NoFit::TooLarge));
    assert_eq!(reserve(&mut ledger, "b", &request(12, on(2))), Err(NoFit::TooFewGpus));
}

#[test]
fn several_gpus_are_of_one_numa_node_where_that_is_possible() {
    // The best filled are GPUs 1 and 2, which are not on one NUMA node.
    let mut ledger = ledger([gpu(0, 16), gpu(1, 8), gpu(2, 8), gpu(3, 16), gpu(4, 4)]);
    assert_eq!(reserve(&mut ledger, "a", &request(8, on(2))), Ok(vec![1, 0]));
    assert_eq!(reserve(&mut ledger, "b", &request(12, on(3))), Ok(vec![4, 1, 2]));
}

#[test]
fn one_gpu_is_of_the_numa_node_with_the_least_room() {
    // GPUs 0 and 1 are on one NUMA node, and stay together.
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16), gpu(2, 16)]);
    assert_eq!(reserve(&mut ledger, "a", &request(8, on(1))), Ok(vec![2]));
    ledger.release(&uid("a"));
    // Where neighbours are to be far apart, the other way round.
    assert_eq!(reserve(&mut ledger, "b", &spread(2, 1)), Ok(vec![0]));
}

fn one_unit_recorded(index: u32) -> Gpu {
    Gpu { pods: [(uid("a"), Units(1))].into(), ..gpu(index, 16) }
}

#[test]
fn a_pod_that_wants_whole_gpus_gets_idle_ones_and_is_charged_all_of_them() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16), gpu(2, 16)]);
    assert_eq!(reserve(&mut ledger, "small", &request(1, on(1))), Ok(vec![2]));
    assert_eq!(reserve(&mut ledger, "a", &request(2, exclusive(2))), Ok(vec![0, 1]));
    assert_eq!(free(&ledger), [(0, 0), (0, 0), (15, 100)]);
    assert_eq!(reserve(&mut ledger, "b", &request(1, exclusive(1))), Err(NoFit::InUse));
    // The kubelet knows the units alone.
    ledger.bind(&uid("a"), &request(2, exclusive(2)), None);
    ledger.set_gpus(vec![one_unit_recorded(0), one_unit_recorded(1), gpu(2, 16)]);
    assert_eq!(free(&ledger), [(0, 0), (0, 0), (15, 100)]);
    // Its containers still stop.
    ledger.release(&uid("a"));
    assert_eq!(free(&ledger), [(0, 0), (0, 0), (15, 100)]);
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16), gpu(2, 16)]);
    assert_eq!(free(&ledger), [(16, 100), (16, 100), (15, 100)]);
}

#[test]
fn a_gpus_compute_is_handed_out_once() {
    let mut ledger = ledger([gpu(0, 16)]);
    assert_eq!(reserve(&mut ledger, "a", &request(1, with_cores(60))), Ok(vec![0]));
    assert_eq!(reserve(&mut ledger, "b", &request(1, with_cores(50))), Err(NoFit::NoCores));
    assert_eq!(reserve(&mut ledger, "b", &request(1, with_cores(40))), Ok(vec![0]));
    assert_eq!(reserve(&mut ledger, "c", &request(1, on(1))), Ok(vec![0]));
    assert_eq!(free(&ledger), [(13, 0)]);
}

fn accepting(models: &str, uuids: &str) -> GpuRequest {
    let parse = |text: &str| if text.is_empty() { Ok(Default::default()) } else { text.parse() };
    let models = parse(models).unwrap();
    let uuids = parse(uuids).unwrap();
    let options = GpuOptions {
        filter: GpuFilter { models, uuids, ..GpuFilter::default() },
        strategy: None,
        ..GpuOptions::default()
    };
    let asks = [container("main", 0, 4, on(1))];
    GpuRequest::with_options(asks, options).unwrap().unwrap()
}

#[test]
fn a_wish_for_a_model_or_a_uuid_is_kept() {
    let ledger = ledger([gpu(0, 16), gpu(1, 16), gpu(2, 8)]);
    let fit = |models, uuids| {
        let choice = ledger.read().fit(&uid("a"), &accepting(models, uuids), &RULE);
        choice.map(|choice| choice.gpus[0].index)
    };
    assert_eq!(fit("", ""), Ok(2));
    assert_eq!(fit("tesla*", ""), Ok(1));
    assert_eq!(fit("!Tesla*", "!GPU-2"), Ok(0));
    assert_eq!(fit("H100", ""), Err(NoFit::NotAccepted));
}

fn spread(units: u32, count: u32) -> GpuRequest {
    let options = GpuOptions { strategy: Some(Strategy::Spread), ..GpuOptions::default() };
    let asks = [container("main", 0, units, on(count))];
    GpuRequest::with_options(asks, options).unwrap().unwrap()
}

#[test]
fn a_pod_is_spread_where_it_asks_for_that() {
    let mut ledger = ledger([gpu(0, 8), gpu(2, 16), gpu(4, 16)]);
    let scores = [("a", 4), ("b", 16)].map(|(pod, units)| points(&ledger, pod, &spread(units, 1)));
    assert_eq!(scores, [75, 0]);
    assert_eq!(reserve(&mut ledger, "a", &spread(4, 1)), Ok(vec![2]));
    assert_eq!(reserve(&mut ledger, "b", &spread(4, 1)), Ok(vec![4]));
    assert_eq!(reserve(&mut ledger, "c", &spread(4, 2)), Ok(vec![2, 4]));
}

#[test]
fn a_claim_over_several_gpus_is_read_back_as_bind_wrote_it() {
    let asks = [container("main", 0, 6, on(2)), container("side", 1, 1, on(1))];
    let request = GpuRequest::new(asks).unwrap().unwrap();
    let claim = Claim::on_gpus(&request, &[uuid(3), uuid(1)]);
    assert_eq!(Claim::checked(&request, claim.containers()), Ok(claim.clone()));
    let units: Vec<u32> = claim.gpus().values().map(|share| share.units.0).collect();
    assert_eq!(units, [3, 4]);
    let mut apart = claim.containers().clone();
    apart.insert("side".to_owned(), [(uuid(2), GpuShare::of(Units(1)))].into());
    assert_eq!(Claim::checked(&request, &apart), Err(ClaimError::Apart));
    let mut unequal = claim.containers().clone();
    let shares = [(uuid(1), GpuShare::of(Units(2))), (uuid(3), GpuShare::of(Units(4)))];
    unequal.insert("main".to_owned(), shares.into());
    assert_eq!(Claim::checked(&request, &unequal), Err(ClaimError::Unequal("main".to_owned())));
}

#[test]
fn a_wish_that_is_removed_after_bind_still_counts_by_the_claim() {
    let asked = request(2, exclusive(1));
    let edited = request(2, on(1));
    let claim = Claim::on_gpu(&asked, &uuid(0));
    // As after a restart of the extender: the claim is all that it knows.
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    let claim = Claim::checked(&edited, claim.containers()).unwrap();
    ledger.bind(&uid("a"), &edited, Some(&claim));
    assert_eq!(free(&ledger)[0], (0, 0));
    let recorded = Gpu { pods: [(uid("a"), Units(2))].into(), ..gpu(0, 16) };
    ledger.set_gpus(vec![recorded, gpu(1, 16)]);
    assert_eq!(free(&ledger), [(0, 0), (16, 100)]);
}

fn gpu_shares(units: &[u32]) -> GpuShares {
    (0..).zip(units).map(|(at, n)| (uuid(at), GpuShare::of(Units(*n)))).collect()
}

fn check_as_claimed(bound_use: GpuUse, now: GpuUse) {
    let limit = Some(Units(9));
    let bound = request(4, GpuUse { limit, ..bound_use });
    let more = GpuUse { cores: Cores(100), limit: Some(Units(90)), ..now };
    let gpus: Vec<GpuId> = (0..2).map(uuid).take(bound.shares().len()).collect();
    let claim = Claim::on_gpus(&bound, &gpus);
    let limits = [("main".to_owned(), Units(9))].into();
    for now in [now, more].map(|now| request(4, now)) {
        assert_eq!(now.as_claimed(claim.containers(), &limits), Some(bound.clone()));
    }
    assert_eq!(Claim::checked(&bound, claim.containers()), Ok(claim.clone()));
    assert_eq!(claim.limit_of("main"), limit);
    // A claim without a limit, and one with a limit below the request.
    for limits in [BTreeMap::new(), [("main".to_owned(), Units(3))].into()] {
        let as_claimed = request(4, more).as_claimed(claim.containers(), &limits).unwrap();
        assert_eq!(as_claimed, request(4, bound_use));
    }
}

#[test]
fn a_bound_pods_request_is_that_of_its_claim_whatever_its_annotations_say_by_now() {
    let two = on(2);
    let two_alone = exclusive(2);
    for (bound, now) in [(two_alone, on(1)), (exclusive(1), two), (on(1), exclusive(1)), (two, two)]
    {
        check_as_claimed(bound, now);
        check_as_claimed(GpuUse { cores: Cores(50), ..bound }, now);
    }
    // Nothing that Bind would have written.
    for wrong in [gpu_shares(&[3]), gpu_shares(&[3, 1]), gpu_shares(&[])] {
        let claimed = [("main".to_owned(), wrong)].into();
        assert_eq!(request(4, on(1)).as_claimed(&claimed, &BTreeMap::new()), None);
    }
}

/// What a pod asks for, and where it is.
#[derive(Debug, Clone)]
struct Pod {
    request: GpuRequest,
    claim: Claim,
    bound: bool,
    admitted: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(u8, u32, u32, bool, u32),
    Bind(u8),
    Admit(u8),
    End(u8),
    Report,
    Restart,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    let pod = 0..8_u8;
    prop_oneof![
        6 => (pod.clone(), 1..=4_u32, 1..=3_u32, prop::bool::weighted(0.2), prop::sample::select(vec![0, 30, 60]))
            .prop_map(|(pod, units, gpus, exclusive, cores)| Step::Reserve(pod, units, gpus, exclusive, cores)),
        5 => pod.clone().prop_map(Step::Bind),
        4 => pod.clone().prop_map(Step::Admit),
        2 => pod.prop_map(Step::End),
        3 => Just(Step::Report),
        1 => Just(Step::Restart),
    ]
}

#[derive(Default)]
struct World {
    ledger: NodeLedger,
    pods: BTreeMap<PodUid, Pod>,
    report: Vec<Gpu>,
    born: u32,
    names: BTreeMap<u8, PodUid>,
}

const GPUS: u32 = 4;
const UNITS: u32 = 6;

impl World {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Reserve(pod, units, gpus, exclusive, cores) if !self.names.contains_key(pod) => {
                let exclusive = *exclusive;
                let cores = Cores(*cores);
                let gpu_use = GpuUse { gpus: *gpus, exclusive, cores, ..GpuUse::default() };
                let request = request(units * gpus, gpu_use);
                self.born += 1;
                let uid = PodUid::from(format!("pod-{}", self.born));
                if let Ok(reservation) = self.ledger.reserve(&uid, &request, &RULE) {
                    let claim = reservation.claim;
                    let new = Pod { request, claim, bound: false, admitted: false };
                    self.pods.insert(uid.clone(), new);
                    self.names.insert(*pod, uid);
                }
            }
            Step::Bind(pod) => {
                if let Some((uid, pod)) = self
                    .names
                    .get(pod)
                    .cloned()
                    .and_then(|uid| self.pods.get_mut(&uid).map(|pod| (uid, pod)))
                {
                    pod.bound = true;
                    self.ledger.bind(&uid, &pod.request, Some(&pod.claim));
                }
            }
            Step::Admit(pod) => {
                let pod = self.names.get(pod).cloned().and_then(|uid| self.pods.get_mut(&uid));
                if let Some(pod) = pod.filter(|pod| pod.bound) {
                    pod.admitted = true;
                }
            }
            Step::End(pod) => {
                if let Some(uid) = self.names.remove(pod) {
                    self.pods.remove(&uid);
                    self.ledger.release(&uid);
                }
            }
            Step::Report => self.report(),
            Step::Restart => {
                self.pods.retain(|_, pod| pod.bound);
                let there = &self.pods;
                self.names.retain(|_, uid| there.contains_key(uid));
                self.ledger = ledger(self.report.clone());
                for (uid, pod) in &self.pods {
                    self.ledger.bind(uid, &pod.request, Some(&pod.claim));
                }
            }
            Step::Reserve(..) => {}
        }
    }

    fn report(&mut self) {
        let pods = |index: u32| {
            let there = self.pods.iter().filter(|(_, pod)| pod.admitted);
            there.filter_map(move |(uid, pod)| {
                Some((uid.clone(), pod.claim.gpus().get(&uuid(index))?.units))
            })
        };
        self.report = (0..GPUS)
            .map(|index| Gpu { pods: pods(index).collect(), ..gpu(index, UNITS) })
            .collect();
        self.ledger.set_gpus(self.report.clone());
    }

    /// Units, percent of compute, pods, and whether one of them has the GPU for itself.
    fn carried(&self, index: u32) -> (u32, u32, usize, bool) {
        let shares: Vec<GpuShare> = self
            .pods
            .values()
            .filter_map(|pod| pod.claim.gpus().get(&uuid(index)).copied())
            .collect();
        let units = shares.iter().map(|share| share.units.0).sum();
        let cores = shares.iter().map(|share| share.cores.0).sum();
        (units, cores, shares.len(), shares.iter().any(|share| share.exclusive))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_part_of_a_gpu_is_handed_out_twice(steps in prop::collection::vec(step(), 1..100)) {
        let mut world = World { ledger: ledger((0..GPUS).map(|index| gpu(index, UNITS))), ..World::default() };
        world.report();
        for step in steps {
            world.take(&step);
            for index in 0..GPUS {
                let (units, cores, pods, exclusive) = world.carried(index);
                prop_assert!(units <= UNITS && cores <= 100, "{step:?}: GPU {index}: {units} units, {cores} %");
                prop_assert!(!exclusive || pods == 1, "{step:?}: GPU {index}: {pods} pods");
                let free = &world.ledger.read().accounts()[index as usize].gpu;
                prop_assert!(free.free.0 + units <= UNITS && free.free_cores.0 + cores <= 100, "{step:?}");
            }
        }
    }
}
