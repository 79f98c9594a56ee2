//! What pods take of GPUs is what their units are of them, unless the policy gives their namespace a right to more.

use placement::gpu::{
    BeyondUnits, ChoiceRule, ContainerKind, ContainerRequest, Excess, Gpu, GpuIsolation,
    GpuRequest, GpuUse, NoFit, NodeLedger, Topology,
};
use placement::units::{Cores, MiB, PodUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;

fn gpu(index: u32, units: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}").into(),
        index,
        model: "NVIDIA A10".into(),
        memory: MiB(u64::from(units) * 1024),
        units: Units(units),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: [].into(),
    }
}

fn ledger(units: &[u32]) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    let gpus = (0..).zip(units).map(|(index, units)| gpu(index, *units));
    ledger.set_gpus(gpus.collect());
    ledger
}

fn container(name: &str, kind: ContainerKind, units: u32, gpu_use: GpuUse) -> ContainerRequest {
    ContainerRequest { name: name.to_owned(), kind, position: 0, units: Units(units), gpu_use }
}

fn request(units: u32, gpu_use: GpuUse) -> GpuRequest {
    GpuRequest::new([container("main", ContainerKind::App, units, gpu_use)]).unwrap().unwrap()
}

/// The GPUs that the request gets, the same by every way to ask for them.
fn gpus(ledger: &NodeLedger, request: &GpuRequest) -> Result<Vec<u32>, NoFit> {
    let read = ledger.read();
    let pod = PodUid::from("new");
    let chosen = read.fit(&pod, request, &RULE);
    assert_eq!(read.check(&pod, request).err(), chosen.as_ref().err().copied());
    assert_eq!(read.rate(&pod, request, &RULE).err(), chosen.as_ref().err().copied());
    assert_eq!(read.explain(&pod, request, &RULE).outcome, chosen);
    chosen.map(|choice| choice.gpus.iter().map(|gpu| gpu.index).collect())
}

const EXCLUSIVE: GpuUse =
    GpuUse { gpus: 1, exclusive: true, cores: Cores::ZERO, limit: None, processes: 1 };

fn cores(percent: u32) -> GpuUse {
    GpuUse { cores: Cores(percent), ..GpuUse::default() }
}

fn limit(units: u32) -> GpuUse {
    GpuUse { limit: Some(Units(units)), ..GpuUse::default() }
}

#[test]
fn an_exclusive_gpu_costs_all_its_units() {
    let ledger = ledger(&[16, 24]);
    let beyond = Err(NoFit::BeyondUnits(Excess::Exclusive));
    assert_eq!(gpus(&ledger, &request(1, EXCLUSIVE)), beyond);
    assert_eq!(gpus(&ledger, &request(15, EXCLUSIVE)), beyond);
    assert_eq!(gpus(&ledger, &request(16, EXCLUSIVE)), Ok(vec![0]));
    assert_eq!(gpus(&ledger, &request(24, EXCLUSIVE)), Ok(vec![1]));
    assert_eq!(gpus(&ledger, &request(25, EXCLUSIVE)), Err(NoFit::TooLarge));
    let two = GpuUse { gpus: 2, ..EXCLUSIVE };
    assert_eq!(gpus(&ledger, &request(32, two)), beyond, "one of the GPUs has more units");
    let allowed = BeyondUnits { exclusive: true, ..BeyondUnits::default() };
    assert_eq!(gpus(&ledger, &request(2, two).with_beyond_units(allowed)), Ok(vec![0, 1]));
}

#[test]
fn a_part_of_the_compute_is_at_most_the_part_of_the_memory() {
    let ledger = ledger(&[16, 24]);
    // 13% of 16 units and 9% of 24, rounded up.
    for (percent, fits) in [(9, vec![0]), (10, vec![0]), (13, vec![0])] {
        assert_eq!(gpus(&ledger, &request(2, cores(percent))), Ok(fits));
    }
    assert_eq!(gpus(&ledger, &request(2, cores(14))), Err(NoFit::BeyondUnits(Excess::Cores)));
    assert_eq!(gpus(&ledger, &request(16, cores(100))), Ok(vec![0]));
    let allowed = BeyondUnits { cores: true, ..BeyondUnits::default() };
    assert_eq!(gpus(&ledger, &request(1, cores(100)).with_beyond_units(allowed)), Ok(vec![0]));
}

#[test]
fn a_memory_limit_is_at_most_the_request() {
    let ledger = ledger(&[16]);
    assert_eq!(gpus(&ledger, &request(4, limit(4))), Ok(vec![0]));
    let beyond = Err(NoFit::BeyondUnits(Excess::MemoryLimit));
    assert_eq!(gpus(&ledger, &request(4, limit(5))), beyond);
    let allowed = BeyondUnits { memory_limit: true, ..BeyondUnits::default() };
    assert_eq!(gpus(&ledger, &request(4, limit(80)).with_beyond_units(allowed)), Ok(vec![0]));
}

#[test]
fn no_eviction_helps_against_what_is_not_allowed() {
    for excess in [Excess::Exclusive, Excess::Cores, Excess::MemoryLimit] {
        assert!(!NoFit::BeyondUnits(excess).is_resolvable());
    }
}

#[test]
fn requests_of_namespaces_with_other_rights_are_rated_apart() {
    let (plain, allowed) =
        (request(1, EXCLUSIVE), request(1, EXCLUSIVE).with_beyond_units(BeyondUnits::ALL));
    assert!(!plain.is_rated_as(&allowed, false) && plain.is_rated_as(&plain, false));
    assert!(!request(4, limit(4)).is_rated_as(&request(4, limit(5)), false));
}

/// Equal shares of GPUs, of which one pod's are to be clients of MPS.
#[test]
fn requests_that_share_gpus_in_other_ways_are_rated_apart() {
    let whole = container("load", ContainerKind::Init, 4, cores(100));
    let half = container("main", ContainerKind::App, 4, cores(50));
    let turns = request(4, cores(100));
    let client = GpuRequest::new([whole, half]).unwrap().unwrap();
    assert_eq!(turns.shares(), client.shares());
    assert!(!turns.is_rated_as(&client, false));
}

#[test]
fn a_share_gives_way_to_one_that_fits_fewer_gpus() {
    // 50% of the compute for 8 units fit both GPUs; for 4 units only the small one, which best fit takes first.
    let half = |gpus| GpuUse { gpus, ..cores(25) };
    let asks = [
        container("both", ContainerKind::App, 8, half(2)),
        container("first", ContainerKind::App, 4, half(1)),
    ];
    let request = GpuRequest::new(asks).unwrap().unwrap();
    assert_eq!(gpus(&ledger(&[8, 16]), &request), Ok(vec![0, 1]));
    let asks = [container("a", ContainerKind::App, 8, GpuUse { gpus: 2, ..cores(50) })];
    let request = GpuRequest::new(asks).unwrap().unwrap();
    assert_eq!(gpus(&ledger(&[8, 16]), &request), Err(NoFit::BeyondUnits(Excess::Cores)));
    assert_eq!(gpus(&ledger(&[8, 8]), &request), Ok(vec![0, 1]));
}

#[test]
fn a_pod_without_a_claim_has_what_the_kubelet_counts_alone() {
    let mut ledger = ledger(&[16, 16]);
    let asked = request(2, GpuUse { cores: Cores(100), ..EXCLUSIVE });
    let asked = asked.with_beyond_units(BeyondUnits::ALL);
    let pod = PodUid::from("bound");
    ledger.bind(&pod, &asked, None);
    let free = |ledger: &NodeLedger| -> Vec<(u32, u32)> {
        let accounts = ledger.read().accounts().iter();
        accounts.map(|account| (account.gpu.free.0, account.gpu.free_cores.0)).collect()
    };
    assert_eq!(free(&ledger), [(16, 100), (16, 100)]);
    let recorded = Gpu { pods: [(pod.clone(), Units(2))].into(), ..gpu(0, 16) };
    ledger.set_gpus(vec![recorded, gpu(1, 16)]);
    assert_eq!(free(&ledger), [(14, 100), (16, 100)]);
    ledger.release(&pod);
    assert_eq!(free(&ledger), [(14, 100), (16, 100)]);
}

/// What the author of a container writes.
#[derive(Debug, Clone)]
struct Wish {
    kind: ContainerKind,
    units: u32,
    gpu_use: GpuUse,
}

fn wish() -> impl Strategy<Value = Wish> {
    let kind = prop::sample::select(vec![
        ContainerKind::Init,
        ContainerKind::Sidecar,
        ContainerKind::App,
        ContainerKind::App,
    ]);
    let limit = prop::option::weighted(0.2, 1..40_u32);
    (kind, 1..9_u32, 1..4_u32, prop::bool::weighted(0.4), 0..101_u32, limit).prop_map(
        |(kind, units, gpus, exclusive, cores, limit)| {
            let limit = limit.map(|more| Units(units * gpus + more - 1));
            let cores = Cores(cores / 3);
            let gpu_use = GpuUse { gpus, exclusive, cores, limit, processes: 1 };
            Wish { kind, units: units * gpus, gpu_use }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_a_pods_annotations_say_it_takes_what_its_units_pay_for(
        wishes in prop::collection::vec(wish(), 1..4),
        sizes in prop::collection::vec(1..17_u32, 1..6),
        (allowed, bound, reported) in any::<(bool, bool, bool)>(),
    ) {
        let asks = wishes.iter().enumerate().map(|(at, wish)| ContainerRequest {
            position: at,
            ..container(&format!("c{at}"), wish.kind, wish.units, wish.gpu_use)
        });
        let Ok(Some(request)) = GpuRequest::new(asks) else { return Ok(()) };
        let pod = PodUid::from("new");
        let mut ledger = ledger(&sizes);
        let _ = gpus(&ledger, &request);
        let Ok(reservation) = ledger.reserve(&pod, &request, &RULE) else {
            // With the right it is placed as before.
            let all = request.clone().with_beyond_units(BeyondUnits::ALL);
            let needs = all.shares().len();
            let fits = sizes.iter().filter(|size| **size >= all.largest().units.0).count() >= needs;
            prop_assert!(!fits || !allowed || ledger.reserve(&pod, &all, &RULE).is_ok());
            return Ok(());
        };
        if bound {
            ledger.bind(&pod, &request, Some(&reservation.claim));
        }
        if reported {
            let mut gpus = ledger.gpus().to_vec();
            for gpu in &mut gpus {
                let held = reservation.claim.gpus().get(&gpu.uuid);
                gpu.pods = held.map(|share| (pod.clone(), share.units)).into_iter().collect();
            }
            ledger.set_gpus(gpus);
        }
        let mut charged = Units(0);
        for account in ledger.read().accounts() {
            for charge in &account.charges {
                charged = charged.saturating_add(charge.units);
                let part = (charge.units.0 * 100).div_ceil(account.gpu.units.0);
                prop_assert!(charge.cores.0 <= part, "{charge:?}");
            }
        }
        prop_assert!(charged <= request.peak(), "{charged} charged of {}", request.peak());
        for ask in request.containers() {
            prop_assert_eq!(reservation.claim.limit_of(&ask.name), None);
        }
    }
}
