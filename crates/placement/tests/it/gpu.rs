//! Claims, the choice of a GPU, and a node's ledger.

use std::collections::BTreeMap;

use placement::gpu::{
    Account, Basis, ChoiceRule, Claim, ClaimError, Closed, ContainerKind, ContainerRequest, Excess,
    Gpu, GpuFilter, GpuFit, GpuIsolation, GpuOptions, GpuRequest, GpuShare, GpuUse, Isolation,
    NoFit, NodeLedger, ReserveError, Stage, Topology, choose,
};
use placement::units::{GpuId, MiB, PodUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;

fn gpu(index: u32, units: u32) -> Gpu {
    Gpu {
        uuid: uuid(index),
        index,
        model: "NVIDIA A10".into(),
        memory: MiB(u64::from(units) * 1024),
        units: Units(units),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: BTreeMap::new(),
    }
}

fn uuid(index: u32) -> GpuId {
    GpuId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000"))
}

/// The kubelet's records put units of a pod on the GPU.
fn recorded(gpu: Gpu, pod: &str, units: u32) -> Gpu {
    Gpu { pods: [(uid(pod), Units(units))].into(), ..gpu }
}

fn ledger(gpus: impl IntoIterator<Item = Gpu>) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(gpus.into_iter().collect());
    ledger
}

fn ask(units: u32) -> GpuRequest {
    GpuRequest::single("app", Units(units)).unwrap()
}

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

fn ask_of(name: &str, kind: ContainerKind, position: usize, units: u32) -> ContainerRequest {
    let gpu_use = GpuUse::default();
    ContainerRequest { name: name.to_owned(), kind, position, units: Units(units), gpu_use }
}

/// The index of the GPU that is reserved.
fn reserve(ledger: &mut NodeLedger, pod: &str, units: u32) -> Result<u32, ReserveError> {
    ledger
        .reserve(&uid(pod), &ask(units), &RULE)
        .map(|reservation| reservation.choice.gpus[0].index)
}

fn bind(ledger: &mut NodeLedger, pod: &str, units: u32, claimed: Option<u32>) {
    let claim = claimed.map(|index| Claim::on_gpu(&ask(units), &uuid(index)));
    ledger.bind(&uid(pod), &ask(units), claim.as_ref());
}

/// What one pod is charged on each GPU.
fn charges(ledger: &NodeLedger, pod: &str) -> Vec<Option<(u32, Basis)>> {
    let accounts = ledger.read().accounts().iter();
    accounts
        .map(|account| {
            let charge = account.charges.iter().find(|charge| charge.pod == uid(pod));
            charge.map(|charge| (charge.units.0, charge.basis))
        })
        .collect()
}

fn free(ledger: &NodeLedger) -> Vec<u32> {
    ledger.read().accounts().iter().map(|account| account.gpu.free.0).collect()
}

#[test]
fn the_gpu_that_is_filled_best_is_chosen_and_ties_go_to_the_lowest_index() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16), gpu(2, 8)]);
    assert_eq!(reserve(&mut ledger, "a", 5), Ok(2));
    assert_eq!(reserve(&mut ledger, "b", 5), Ok(0));
    assert_eq!(reserve(&mut ledger, "c", 11), Ok(0));
    assert_eq!(reserve(&mut ledger, "d", 3), Ok(2));
}

fn place() -> impl Strategy<Value = Topology> {
    let linked = prop::collection::vec(0..7_u32, 0..4);
    (0..2_u32, linked).prop_map(|(numa_node, linked)| Topology {
        numa_node: Some(numa_node),
        linked: linked.into_iter().collect(),
    })
}

proptest! {
    #[test]
    fn the_gpu_found_by_what_is_free_is_the_one_chosen_of_all(
        gpus in prop::collection::vec((1..9_u32, 0..9_u32, prop::bool::weighted(0.8), place()), 0..7),
        asked in 1..10_u32,
        spread in prop::bool::ANY,
    ) {
        let strategy =
            if spread { placement::gpu::Strategy::Spread } else { placement::gpu::Strategy::Pack };
        let rule = ChoiceRule { strategy, measure: None };
        let other = uid("a");
        let request = ask(asked);
        let gpu = |(index, (units, held, healthy, topology)): (usize, (u32, u32, bool, Topology))| {
            let gpu = recorded(gpu(index as u32, units), "other", held.min(units));
            Gpu { healthy, topology, ..gpu }
        };
        let ledger = ledger(gpus.into_iter().enumerate().map(gpu));
        let node = ledger.read();
        let gpus = node.accounts().iter().map(|account| &account.gpu);
        let of_all = choose(gpus, None, &request, &rule);
        let score = of_all.as_ref().map(|choice| choice.rate(&request, &rule));
        prop_assert_eq!(node.rate(&other, &request, &rule), score.map_err(|why| *why));
        prop_assert_eq!(node.fit(&other, &request, &rule), of_all);
    }
}

fn unhealthy(index: u32, units: u32) -> Gpu {
    Gpu { healthy: false, ..gpu(index, units) }
}

fn cause(gpus: Vec<Gpu>, units: u32) -> NoFit {
    ledger(gpus).read().fit(&uid("a"), &ask(units), &RULE).unwrap_err()
}

#[test]
fn each_cause_has_one_text_whatever_the_numbers() {
    let full = recorded(gpu(0, 16), "other", 10);
    assert_eq!(cause(vec![], 1), NoFit::NoGpus);
    assert_eq!(cause(vec![full.clone(), gpu(1, 16)], 17), NoFit::TooLarge);
    assert_eq!(cause(vec![full.clone(), unhealthy(1, 16)], 7), NoFit::Unhealthy);
    assert_eq!(cause(vec![full.clone(), unhealthy(1, 4)], 7), NoFit::NoRoom);
    assert_eq!(cause(vec![full.clone()], 7), cause(vec![full.clone(), full.clone()], 16));
    let of_aliyun = [NoFit::TooLarge, NoFit::Unhealthy, NoFit::Closed, NoFit::NoRoom];
    let of_aliyun = of_aliyun.map(|cause| (cause, true));
    let others = [
        NoFit::NoGpus,
        NoFit::NotAccepted,
        NoFit::WeakIsolation,
        NoFit::UnknownIsolation,
        NoFit::BackedOff,
        NoFit::NoCores,
        NoFit::InUse,
        NoFit::TooFewGpus,
        NoFit::NeededByUnplaced,
        NoFit::OtherSharing,
        NoFit::TooManyClients,
        NoFit::BeyondUnits(Excess::Exclusive),
        NoFit::BeyondUnits(Excess::Cores),
        NoFit::BeyondUnits(Excess::MemoryLimit),
    ];
    for (cause, of_aliyun) in of_aliyun.into_iter().chain(others.map(|cause| (cause, false))) {
        let reason = cause.to_string();
        assert!(!reason.contains(|c: char| c == '%' || c.is_ascii_digit()), "{reason}");
        assert!(reason.ends_with(" (see: kubectl plimsoll explain pod)"), "{reason}");
        let aliyuns = reason.starts_with("Insufficient GPU Memory in one device");
        assert_eq!(aliyuns, of_aliyun, "{reason}");
    }
}

fn gpu_of(ledger: &NodeLedger, units: u32) -> Result<u32, NoFit> {
    let choice = ledger.read().fit(&uid("a"), &ask(units), &RULE);
    choice.map(|choice| choice.first_index())
}

#[test]
fn a_closed_gpu_keeps_its_pods_and_gets_no_new_one() {
    let closed = Gpu { closed: Some(Closed::Cdi), ..gpu(0, 16) };
    let mut ledger = ledger([recorded(closed, "there", 4), gpu(1, 8)]);
    assert_eq!(ledger.read().accounts()[0].gpu.free, Units(12), "its pod stays charged");
    assert_eq!(gpu_of(&ledger, 8), Ok(1));
    assert_eq!(gpu_of(&ledger, 12), Err(NoFit::Closed));
    assert_eq!(ledger.read().check(&uid("a"), &ask(12)), Err(NoFit::Closed));
    let fit = ledger.read().explain(&uid("a"), &ask(12), &RULE);
    assert_eq!(fit.gpus[0].1, GpuFit::Closed(Closed::Cdi));
    ledger.set_gpus(vec![gpu(0, 16)]);
    assert_eq!(gpu_of(&ledger, 12), Ok(0), "it is open again");
}

fn requiring(isolation: Isolation) -> GpuRequest {
    let filter = GpuFilter { isolation, ..GpuFilter::default() };
    let options = GpuOptions { filter, ..GpuOptions::default() };
    let asks = [ask_of("app", ContainerKind::App, 0, 4)];
    GpuRequest::with_options(asks, options).unwrap().unwrap()
}

fn fit_where_enforced(strongest: Option<Isolation>, required: Isolation) -> Result<(), NoFit> {
    let isolation = GpuIsolation { strongest, ..GpuIsolation::default() };
    let node = ledger([Gpu { isolation, ..gpu(0, 16) }]);
    let check = node.read().check(&uid("a"), &requiring(required));
    let choice = node.read().fit(&uid("a"), &requiring(required), &RULE).map(|_| ());
    let rated = node.read().rate(&uid("a"), &requiring(required), &RULE).map(|_| ());
    assert_eq!((check, check), (choice, rated));
    check
}

#[test]
fn a_pod_that_requires_isolation_goes_where_that_can_be_enforced_and_nowhere_else() {
    let none = Isolation::None;
    let mps = Isolation::Mps;
    let driver = Isolation::Driver;
    assert_eq!(fit_where_enforced(Some(mps), driver), Err(NoFit::WeakIsolation));
    assert_eq!(fit_where_enforced(Some(none), mps), Err(NoFit::WeakIsolation));
    assert_eq!(
        fit_where_enforced(None, mps),
        Err(NoFit::UnknownIsolation),
        "missing is not enough"
    );
    for (strongest, required) in
        [(Some(driver), driver), (Some(driver), mps), (Some(none), none), (None, none)]
    {
        assert_eq!(fit_where_enforced(strongest, required), Ok(()), "{strongest:?} {required:?}");
    }
    assert!(!NoFit::WeakIsolation.is_resolvable(), "evicting pods does not help");
}

#[test]
fn a_decision_tells_how_a_request_stands_to_every_gpu() {
    let full = recorded(gpu(0, 16), "other", 10);
    let ledger = ledger([full, Gpu { healthy: false, ..gpu(1, 16) }, gpu(2, 16)]);
    let fit = ledger.read().explain(&uid("a"), &ask(7), &RULE);
    let gpus: Vec<GpuFit> = fit.gpus.iter().map(|(_, fit)| *fit).collect();
    let short = GpuFit::TooLittleFree { free: Units(6), missing: Units(1) };
    assert_eq!(gpus, [short, GpuFit::Unhealthy, GpuFit::Fits { left: Units(9) }]);
    assert_eq!(fit.outcome, ledger.read().fit(&uid("a"), &ask(7), &RULE));
    assert_eq!(fit.outcome.unwrap().gpus[0].index, 2);
}

#[test]
fn reserving_twice_gives_the_same_gpu_once() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    assert_eq!(reserve(&mut ledger, "a", 9), Ok(0));
    assert_eq!(reserve(&mut ledger, "a", 9), Ok(0));
    assert_eq!(free(&ledger), [7, 16]);
    // What it holds itself does not stand in its way, what another pod holds does.
    assert!(ledger.read().fit(&uid("a"), &ask(9), &RULE).is_ok());
    assert_eq!(ledger.read().fit(&uid("b"), &ask(9), &RULE).unwrap().gpus[0].index, 1);
}

#[test]
fn a_bound_pod_is_neither_cancelled_nor_reserved_again() {
    let mut ledger = ledger([gpu(0, 16)]);
    reserve(&mut ledger, "a", 9).unwrap();
    bind(&mut ledger, "a", 9, Some(0));
    ledger.cancel(&uid("a"));
    assert_eq!(reserve(&mut ledger, "a", 9), Err(ReserveError::Bound));
    assert_eq!((free(&ledger), ledger.stage(&uid("a"))), (vec![7], Some(Stage::Bound)));
    ledger.release(&uid("a"));
    assert_eq!((free(&ledger), ledger.stage(&uid("a"))), (vec![16], None));
}

#[test]
fn a_pod_without_a_claim_counts_once_on_its_node_until_the_kubelet_has_admitted_it() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, None);
    bind(&mut ledger, "b", 4, None);
    assert_eq!((free(&ledger), charges(&ledger, "a")), (vec![16, 16], vec![None, None]));
    assert_eq!(ledger.read().unplaced(), [(uid("a"), Units(9)), (uid("b"), Units(4))]);
    // 13 of the 32 units are theirs, wherever they go.
    assert_eq!(reserve(&mut ledger, "c", 16), Ok(0));
    for units in [4, 3] {
        let needed = (units == 4).then_some(NoFit::NeededByUnplaced);
        let new = uid("d");
        let asked = ask(units);
        assert_eq!(ledger.read().check(&new, &asked).err(), needed);
        assert_eq!(ledger.read().fit(&new, &asked, &RULE).err(), needed);
        assert_eq!(ledger.read().rate(&new, &asked, &RULE).err(), needed);
        let gone = |pod: &PodUid| *pod == uid("b");
        assert!(ledger.read().fit_without(gone, &new, &asked, &RULE).is_ok());
        assert!(ledger.read().without(gone).fit(&new, &asked, &RULE).is_ok());
    }
    // A report shows a part of it, then all.
    ledger.set_gpus(vec![gpu(0, 16), recorded(gpu(1, 16), "a", 9)]);
    assert_eq!(charges(&ledger, "a"), [None, Some((9, Basis::Recorded))]);
    assert_eq!(ledger.read().unplaced(), [(uid("b"), Units(4))]);
    // It was never on a GPU, so nothing is left of it.
    assert!(!ledger.depart(&uid("b")));
    assert_eq!((ledger.read().unplaced(), free(&ledger)), (&[][..], vec![0, 7]));
}

#[test]
fn a_pod_of_unknown_place_counts_on_every_gpu_until_the_kubelet_tells() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, None);
    // It runs, as one that another device plugin has put on a GPU.
    ledger.admit(&uid("a"));
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::UnknownPlace)); 2]);
    ledger.set_gpus(vec![gpu(0, 16), recorded(gpu(1, 16), "a", 9)]);
    assert_eq!(charges(&ledger, "a"), [None, Some((9, Basis::Recorded))]);
    assert_eq!(ledger.stage(&uid("a")), Some(Stage::Allocated));
}

#[test]
fn a_claim_that_bind_is_not_known_to_have_written_proves_nothing() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(1));
    let unproven = Some((9, Basis::UnprovenClaim));
    let claimed = Some((9, Basis::Claimed));
    assert_eq!(charges(&ledger, "a"), [unproven, claimed]);
    let held: Vec<Units> = ledger.read().accounts().iter().map(Account::held).collect();
    assert_eq!((free(&ledger), held), (vec![7, 7], vec![Units(0), Units(9)]));
}

#[test]
fn a_claim_of_a_lost_gpu_is_an_unknown_place_for_a_while() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(7));
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::UnknownPlace)); 2]);
    assert_eq!(ledger.read().on_lost_gpus(), [uid("a")]);
    ledger.set_overdue(&uid("a"));
    assert_eq!((charges(&ledger, "a"), ledger.read().on_lost_gpus()), (vec![None, None], &[][..]));
    // The GPU is back.
    ledger.set_gpus(vec![gpu(0, 16), gpu(7, 16)]);
    assert_eq!(free(&ledger), [7, 7]);
    ledger.set_gpus(vec![gpu(0, 16), recorded(gpu(7, 16), "a", 9)]);
    assert_eq!(free(&ledger), [16, 7]);
}

#[test]
fn a_gpu_that_bind_chose_and_that_is_lost_is_charged_alone() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    assert_eq!(reserve(&mut ledger, "a", 9), Ok(0));
    ledger.set_gpus(vec![gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(0));
    assert_eq!((free(&ledger), ledger.read().on_lost_gpus()), (vec![16], &[][..]));
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16)]);
    assert_eq!(free(&ledger), [7, 16]);
}

fn two_gpus(held: u32) -> Vec<Gpu> {
    vec![recorded(gpu(0, 16), "a", held), gpu(1, 16)]
}

#[test]
fn a_record_of_all_reported_gpus_places_the_rest_on_the_lost_one() {
    let gpu_use = GpuUse { gpus: 2, ..GpuUse::default() };
    let asked = ContainerRequest { gpu_use, ..ask_of("main", ContainerKind::App, 0, 8) };
    let asked = GpuRequest::new([asked]).unwrap().unwrap();
    let claim = Claim::on_gpus(&asked, &[uuid(0), uuid(9)]);
    let mut ledger = ledger(two_gpus(0));
    ledger.bind(&uid("a"), &asked, Some(&claim));
    assert_eq!(free(&ledger), [12, 12]);
    ledger.set_gpus(two_gpus(3));
    assert_eq!(free(&ledger), [12, 12], "not all of it");
    ledger.set_gpus(two_gpus(4));
    assert_eq!(free(&ledger), [12, 16]);
    assert_eq!(ledger.stage(&uid("a")), Some(Stage::Allocated));
    ledger.set_gpus(vec![gpu(0, 16), gpu(9, 16)]);
    assert_eq!(free(&ledger), [12, 12], "the last record counts, and the lost GPU is back");
}

#[test]
fn every_gpu_that_was_claimed_counts_until_the_kubelet_tells() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16), gpu(2, 16)]);
    reserve(&mut ledger, "a", 9).unwrap();
    bind(&mut ledger, "a", 9, Some(1));
    bind(&mut ledger, "a", 9, None);
    bind(&mut ledger, "a", 9, Some(0));
    let chosen = Some((9, Basis::Chosen));
    let claimed = Some((9, Basis::Claimed));
    assert_eq!(charges(&ledger, "a"), [chosen, claimed, None]);
    ledger.set_gpus(vec![gpu(0, 16), recorded(gpu(1, 16), "a", 9), gpu(2, 16)]);
    assert_eq!(charges(&ledger, "a"), [None, Some((9, Basis::Recorded)), None]);
}

#[test]
fn a_gpu_that_was_claimed_before_the_node_reported_it_counts_once_it_does() {
    let mut ledger = ledger([gpu(0, 16)]);
    reserve(&mut ledger, "a", 9).unwrap();
    bind(&mut ledger, "a", 9, Some(1));
    bind(&mut ledger, "a", 9, Some(0));
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16)]);
    let chosen = Some((9, Basis::Chosen));
    let claimed = Some((9, Basis::Claimed));
    assert_eq!(charges(&ledger, "a"), [chosen, claimed]);
}

#[test]
fn a_pod_whose_claim_has_named_more_gpus_than_a_node_has_is_of_unknown_place() {
    let mut ledger = ledger(Vec::new());
    (100..200).for_each(|index| bind(&mut ledger, "a", 9, Some(index)));
    bind(&mut ledger, "a", 9, Some(1));
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16), gpu(2, 16)]);
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::UnknownPlace)); 3]);
    ledger.set_gpus(vec![gpu(0, 16), recorded(gpu(1, 16), "a", 9), gpu(2, 16)]);
    assert_eq!(charges(&ledger, "a"), [None, Some((9, Basis::Recorded)), None]);
}

#[test]
fn a_record_that_vanishes_still_counts_until_the_pod_ends() {
    let mut ledger = ledger([recorded(gpu(0, 16), "a", 9), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(0));
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(1));
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::Recorded)), None]);
    ledger.release(&uid("a"));
    assert_eq!(free(&ledger), [16, 16]);
}

#[test]
fn a_record_of_one_gpu_places_the_whole_pod_there() {
    // The kubelet lists no init containers: 2 of the 9 units that it has set aside.
    let mut ledger = ledger([recorded(gpu(0, 16), "a", 2), gpu(1, 16)]);
    bind(&mut ledger, "a", 9, Some(1));
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::Recorded)), None]);
}

fn on_record(units: u32) -> Option<(u32, Basis)> {
    Some((units, Basis::Recorded))
}

#[test]
fn a_record_of_a_part_over_several_gpus_places_no_pod() {
    let mut ledger = ledger([recorded(gpu(0, 16), "a", 2), recorded(gpu(1, 16), "a", 1)]);
    bind(&mut ledger, "a", 9, None);
    assert_eq!(charges(&ledger, "a"), [on_record(2), on_record(1)]);
    assert_eq!(ledger.read().unplaced(), [(uid("a"), Units(6))]);
    ledger.admit(&uid("a"));
    assert_eq!(charges(&ledger, "a"), [Some((9, Basis::UnknownPlace)); 2]);
}

#[test]
fn a_pod_that_only_the_kubelet_knows_still_holds_its_units() {
    let ledger = ledger([recorded(gpu(0, 16), "gone", 9)]);
    assert_eq!(ledger.read().fit(&uid("a"), &ask(8), &RULE), Err(NoFit::NoRoom));
}

#[test]
fn more_use_than_a_gpu_has_leaves_nothing_rather_than_wrapping() {
    assert_eq!(free(&ledger([recorded(gpu(0, 16), "a", 40)])), [0]);
}

fn gpu_without(ledger: &NodeLedger, gone: &[&str], units: u32) -> Result<u32, NoFit> {
    let gone = |pod: &PodUid| gone.contains(&pod.as_str());
    ledger
        .read()
        .fit_without(gone, &uid("new"), &ask(units), &RULE)
        .map(|choice| choice.gpus[0].index)
}

#[test]
fn a_request_may_fit_once_victims_are_gone() {
    let mut ledger = ledger([recorded(gpu(0, 16), "a", 10), recorded(gpu(1, 16), "b", 12)]);
    bind(&mut ledger, "anywhere", 4, None);
    ledger.admit(&uid("anywhere"));
    assert_eq!(gpu_without(&ledger, &[], 3), Err(NoFit::NoRoom));
    assert_eq!(gpu_without(&ledger, &["b"], 12), Ok(1));
    assert_eq!(gpu_without(&ledger, &["b"], 13), Err(NoFit::NoRoom));
    assert_eq!(gpu_without(&ledger, &["anywhere"], 6), Ok(0));
    assert_eq!(gpu_without(&ledger, &["b", "anywhere"], 16), Ok(1));
    assert_eq!(gpu_without(&ledger, &["a", "b", "anywhere"], 17), Err(NoFit::TooLarge));
}

fn mismatch(container: &str, claimed: u32, asked: u32) -> Result<Claim, ClaimError> {
    let claimed = Units(claimed);
    let asked = Units(asked);
    Err(ClaimError::Mismatch { container: container.to_owned(), claimed, asked })
}

fn checked(request: &GpuRequest, claimed: &[(&str, &[(u32, u32)])]) -> Result<Claim, ClaimError> {
    let claimed = claimed.iter().map(|(name, gpus)| {
        let shares = gpus.iter().map(|(at, units)| (uuid(*at), GpuShare::of(Units(*units))));
        ((*name).to_owned(), shares.collect())
    });
    Claim::checked(request, &claimed.collect())
}

#[test]
fn only_what_bind_would_write_is_a_claim() {
    let request = GpuRequest::new([
        ask_of("load", ContainerKind::Init, 0, 4),
        ask_of("serve", ContainerKind::App, 0, 2),
    ])
    .unwrap()
    .unwrap();
    let bound = Claim::on_gpu(&request, &uuid(1));
    assert_eq!(checked(&request, &[("load", &[(1, 4)]), ("serve", &[(1, 2)])]), Ok(bound));
    assert_eq!(checked(&request, &[]), mismatch("load", 0, 4));
    assert_eq!(
        checked(&request, &[("load", &[(1, 1)]), ("serve", &[(1, 2)])]),
        mismatch("load", 1, 4)
    );
    assert_eq!(checked(&request, &[("load", &[(1, 4)])]), mismatch("serve", 0, 2));
    let another = [("load", &[(1, 4)][..]), ("serve", &[(1, 2)]), ("other", &[(1, 1)])];
    assert_eq!(checked(&request, &another), mismatch("other", 1, 0));
    assert_eq!(
        checked(&request, &[("load", &[(1, 4)]), ("serve", &[(2, 2)])]),
        Err(ClaimError::Apart)
    );
    for two in [[(1, 2), (2, 2)], [(1, 4), (2, 0)]] {
        let container = "load".to_owned();
        let gpus = Err(ClaimError::Gpus { container, claimed: 2, asked: 1 });
        assert_eq!(checked(&request, &[("load", &two), ("serve", &[(1, 2)])]), gpus);
    }
}

#[test]
fn an_app_that_takes_over_its_init_containers_units_is_charged_once() {
    let request = GpuRequest::new([
        ask_of("load", ContainerKind::Init, 0, 4),
        ask_of("serve", ContainerKind::App, 0, 2),
        ask_of("log", ContainerKind::App, 1, 1),
    ])
    .unwrap()
    .unwrap();
    let mut ledger = ledger([gpu(0, 16)]);
    ledger.reserve(&uid("a"), &request, &RULE).unwrap();
    assert_eq!(free(&ledger), [12]);
}

#[test]
fn departed_pods_stay_charged_although_their_node_is_deleted_and_comes_back() {
    let mut ledger = ledger([gpu(0, 16), gpu(1, 16)]);
    bind(&mut ledger, "a", 13, Some(0));
    bind(&mut ledger, "b", 9, Some(0));
    assert!(ledger.depart(&uid("a")));
    ledger.set_gpus(Vec::new());
    assert!(ledger.depart(&uid("b")));
    assert!(!ledger.is_empty());
    ledger.set_gpus(vec![gpu(0, 16), gpu(1, 16)]);
    assert_eq!(ledger.read().departed(), [uid("a"), uid("b")]);
    assert_eq!(free(&ledger), [0, 0]);
    ledger.set_gpus(vec![recorded(gpu(0, 16), "a", 13), gpu(1, 16)]);
    ledger.end_departure(&uid("b"));
    assert_eq!(free(&ledger), [3, 16]);
}
