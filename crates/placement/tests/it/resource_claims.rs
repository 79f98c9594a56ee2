//! ResourceClaims in a node's ledger.

use std::collections::BTreeMap;

use placement::gpu::{
    Account, Basis, ChoiceRule, ClaimedDevice, Closed, Gpu, GpuFit, GpuIsolation, GpuRequest,
    Isolation, NoFit, NodeLedger, ResourceClaim, Topology, fewest_on_gpus,
};
use placement::units::{Cores, GpuId, MiB, PodUid, ResourceClaimUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;
const GPUS: u32 = 3;

fn uuid(index: u32) -> GpuId {
    GpuId::from(format!("GPU-{index:08X}-0000-0000-0000-000000000000"))
}

fn gpu(index: u32, memory: u64, units: u32) -> Gpu {
    Gpu {
        uuid: uuid(index),
        index,
        model: "NVIDIA A10".into(),
        memory: MiB(memory),
        units: Units(units),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: BTreeMap::new(),
    }
}

fn two_gpus() -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(vec![gpu(0, 24_576, 24), gpu(1, 24_576, 24)]);
    ledger
}

fn device(index: u32, memory: Option<u64>, cores: Option<u32>) -> ClaimedDevice {
    let name = uuid(index).as_str().to_ascii_lowercase();
    ClaimedDevice { name, memory: memory.map(MiB), cores: cores.map(Cores) }
}

fn claim(uid: &str, devices: impl IntoIterator<Item = ClaimedDevice>) -> ResourceClaim {
    ResourceClaim {
        uid: uid.into(),
        namespace: "ml".to_owned(),
        name: format!("claim-{uid}"),
        pods: vec![PodUid::from("a")],
        ends_with_pods: true,
        devices: devices.into_iter().collect(),
    }
}

fn free(ledger: &NodeLedger) -> Vec<(u32, u32)> {
    let free = |account: &Account| (account.gpu.free.0, account.gpu.free_cores.0);
    ledger.read().accounts().iter().map(free).collect()
}

fn ask(units: u32) -> GpuRequest {
    GpuRequest::single("app", Units(units)).unwrap()
}

#[test]
fn a_claim_takes_whole_units_and_keeps_its_mebibytes() {
    let mut ledger = two_gpus();
    ledger.set_resource_claim(claim("c", [device(1, Some(4_097), Some(30))]));
    assert_eq!(free(&ledger), [(24, 100), (19, 70)]);
    let account = &ledger.read().accounts()[1];
    let charge = &account.charges[0];
    assert_eq!((charge.basis, charge.units), (Basis::ResourceClaim, Units(5)));
    assert_eq!(account.held(), Units(5));
    assert!(charge.is_of(&PodUid::from("a")) && !charge.is_of(&PodUid::from("b")));
    let shown = charge.claim.as_ref().unwrap();
    assert_eq!((&*shown.name, shown.memory_on(&uuid(1))), ("claim-c", Some(MiB(4_097))));
    assert_eq!(shown.memory_on(&uuid(0)), None);
    ledger.release_resource_claim(&"c".into());
    assert_eq!(free(&ledger), [(24, 100), (24, 100)]);
}

#[test]
fn an_allocation_replaces_the_one_before() {
    let mut ledger = two_gpus();
    ledger.set_resource_claim(claim("c", [device(0, Some(8_192), None)]));
    ledger.set_resource_claim(claim("c", [device(1, Some(4_096), None)]));
    assert_eq!(free(&ledger), [(24, 100), (20, 100)]);
    let same = std::sync::Arc::clone(ledger.read());
    ledger.set_resource_claim(claim("c", [device(1, Some(4_096), None)]));
    assert!(std::sync::Arc::ptr_eq(&same, ledger.read()), "nothing has changed");
}

#[test]
fn a_claim_on_several_gpus_and_several_shares_of_one_gpu_add_up() {
    let mut ledger = two_gpus();
    let devices = [
        device(0, Some(1_024), Some(10)),
        device(1, Some(2_048), None),
        device(0, Some(512), Some(5)),
    ];
    ledger.set_resource_claim(claim("c", devices));
    assert_eq!(free(&ledger), [(22, 85), (22, 100)]);
}

#[test]
fn what_is_missing_or_unknown_counts_as_the_whole_gpu() {
    let mut ledger = two_gpus();
    ledger.set_resource_claim(claim("c", [device(0, None, None)]));
    assert_eq!(free(&ledger), [(0, 0), (24, 100)]);
    ledger.set_resource_claim(claim("c", [device(7, Some(1_024), None)]));
    assert_eq!(free(&ledger), [(0, 0), (0, 0)]);
    assert_eq!(ledger.read().accounts()[0].charges[0].basis, Basis::UnknownPlace);
    // The GPU is reported again.
    ledger.set_gpus(vec![gpu(0, 24_576, 24), gpu(7, 24_576, 24)]);
    assert_eq!(free(&ledger), [(24, 100), (23, 100)]);
}

#[test]
fn claims_that_share_a_unit_do_not_overbook_it() {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(vec![gpu(0, 4_096, 4)]);
    for number in 0..8 {
        ledger.set_resource_claim(claim(&number.to_string(), [device(0, Some(512), None)]));
    }
    let overbooked = |ledger: &NodeLedger| ledger.read().accounts()[0].overbooked();
    assert_eq!((free(&ledger), overbooked(&ledger)), (vec![(0, 100)], Units(0)));
    ledger.set_resource_claim(claim("more", [device(0, Some(4_096), None)]));
    ledger.set_resource_claim(claim("most", [device(0, Some(4_096), None)]));
    assert_eq!(overbooked(&ledger), Units(2));
}

#[test]
fn memory_that_claims_use_is_not_unmanaged_as_well() {
    let mut ledger = two_gpus();
    ledger.set_resource_claim(claim("c", [device(0, Some(8_192), None)]));
    ledger.set_unmanaged(vec![(uuid(0), Units(6)), (uuid(1), Units(6))]);
    assert_eq!(free(&ledger), [(16, 100), (18, 100)]);
    ledger.set_unmanaged(vec![(uuid(0), Units(10))]);
    assert_eq!(free(&ledger), [(14, 100), (24, 100)]);
}

#[test]
fn a_claim_ends_with_the_last_of_the_pods_that_it_is_reserved_for() {
    let (pod, request) = (PodUid::from("b"), ask(8));
    for (pods, ends_with_pods, fewest) in [
        (&["a"][..], true, Some(1)),
        (&["a", "c"], true, Some(2)),
        (&[], true, None),
        (&["a"], false, None),
    ] {
        let mut ledger = NodeLedger::default();
        ledger.set_gpus(vec![gpu(0, 24_576, 24)]);
        let of_claim = claim("c", [device(0, Some(20_480), None)]);
        let pods: Vec<PodUid> = pods.iter().copied().map(PodUid::from).collect();
        let of_claim = ResourceClaim { pods: pods.clone(), ends_with_pods, ..of_claim };
        ledger.set_resource_claim(of_claim);
        let gpus = ledger.read();
        assert_eq!(gpus.check(&pod, &request), Err(NoFit::NoRoom));
        assert_eq!(fewest_on_gpus(gpus, &pod, &request, &RULE), fewest);
        let without_a = gpus.without(|uid| uid.as_str() == "a");
        assert_eq!(without_a.check(&pod, &request).is_ok(), fewest == Some(1));
        let without_any = gpus.without(|uid| pods.contains(uid));
        assert_eq!(without_any.check(&pod, &request).is_ok(), fewest.is_some());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, Vec<(u32, Option<u64>)>),
    Release(u8),
    Reserve(u8, u32),
    Forget(u8),
    Report(Vec<u32>),
    Unmanaged(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let memory = prop::option::weighted(0.9, 1..20_000_u64);
    // One more than the node reports.
    let devices = prop::collection::vec((0..=GPUS, memory), 1..3);
    let reported = prop::sample::subsequence((0..GPUS).collect::<Vec<_>>(), 0..=GPUS as usize);
    prop_oneof![
        4 => (0..4_u8, devices).prop_map(|(claim, devices)| Step::Set(claim, devices)),
        2 => (0..4_u8).prop_map(Step::Release),
        3 => (0..4_u8, 1..12_u32).prop_map(|(pod, units)| Step::Reserve(pod, units)),
        1 => (0..4_u8).prop_map(Step::Forget),
        1 => reported.prop_map(Step::Report),
        1 => (0..GPUS, 0..30_u32).prop_map(|(gpu, units)| Step::Unmanaged(gpu, units)),
    ]
}

proptest! {
    /// Whatever else happens: in MiB, and with units of any size.
    #[test]
    fn no_gpu_looks_emptier_than_its_claims(
        size in prop::sample::select(vec![(24_576_u64, 24_u32), (23_028, 22), (16_384, 16_384), (16_384, 15), (0, 8)]),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let (memory, units) = size;
        let report = |gpus: &[u32]| gpus.iter().map(|index| gpu(*index, memory, units)).collect();
        let mut ledger = NodeLedger::default();
        ledger.set_gpus(report(&[0, 1, 2]));
        let mut claims: BTreeMap<ResourceClaimUid, ResourceClaim> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(uid, devices) => {
                    let devices = devices.into_iter().map(|(gpu, memory)| device(gpu, memory, None));
                    let claim = claim(&uid.to_string(), devices);
                    ledger.set_resource_claim(claim.clone());
                    claims.insert(claim.uid.clone(), claim);
                }
                Step::Release(uid) => {
                    let uid = ResourceClaimUid::from(uid.to_string());
                    ledger.release_resource_claim(&uid);
                    claims.remove(&uid);
                }
                Step::Reserve(pod, units) => {
                    let before = free(&ledger);
                    let reserved = ledger.reserve(&PodUid::from(format!("p{pod}")), &ask(units), &RULE);
                    let is_new = free(&ledger) != before;
                    if let (Ok(reserved), true) = (reserved, is_new) {
                        let index = reserved.choice.gpus[0].index;
                        let at = ledger.gpus().iter().position(|gpu| gpu.index == index).unwrap();
                        prop_assert!(before[at].0 >= units);
                    }
                }
                Step::Forget(pod) => ledger.release(&PodUid::from(format!("p{pod}"))),
                Step::Report(gpus) => ledger.set_gpus(report(&gpus)),
                Step::Unmanaged(gpu, units) => ledger.set_unmanaged(vec![(uuid(gpu), Units(units))]),
            }
            let names: Vec<String> =
                ledger.gpus().iter().map(|gpu| gpu.uuid.as_str().to_ascii_lowercase()).collect();
            for (account, name) in ledger.read().accounts().iter().zip(&names) {
                let gpu = &account.gpu;
                let mut taken = Some(0);
                for ResourceClaim { devices, .. } in claims.values() {
                    let here: Vec<_> = devices.iter().filter(|it| it.name == *name).collect();
                    let is_elsewhere = devices.iter().all(|it| names.contains(&it.name));
                    if here.is_empty() && !is_elsewhere {
                        taken = None;
                    }
                    for device in here {
                        taken = taken.zip(device.memory).map(|(sum, memory)| sum + memory.0);
                    }
                }
                match taken {
                    // In parts of the GPU, without rounding.
                    Some(taken) => {
                        let held = u64::from(gpu.units.0 - gpu.free.0);
                        let all = u64::from(gpu.units.0);
                        prop_assert!(held == all || held * memory >= taken * all, "{account:?}");
                    }
                    None => prop_assert_eq!(gpu.free, Units(0)),
                }
            }
        }
    }
}

fn by_claims(closed: &[Option<Closed>]) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    let gpus = closed.iter().zip(0..);
    let gpu =
        |(closed, index): (&Option<Closed>, u32)| Gpu { closed: *closed, ..gpu(index, 16_384, 16) };
    ledger.set_gpus(gpus.map(gpu).collect());
    ledger
}

fn of_claim(gpus: u32, memory: Option<u64>) -> GpuRequest {
    GpuRequest::of_claim(gpus, memory.map(MiB), Cores::ZERO, Isolation::None).unwrap()
}

/// Whether so much of one GPU fits, as a pod with a claim finds it.
fn fits(ledger: &NodeLedger, memory: Option<u64>) -> Result<(), NoFit> {
    ledger.read().for_claims().unwrap().check(&"p".into(), &of_claim(1, memory))
}

#[test]
fn claims_of_parts_of_units_leave_the_rest_to_others() {
    let mut ledger = by_claims(&[Some(Closed::Claims)]);
    assert_eq!(fits(&ledger, None), Ok(()));
    for uid in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        ledger.set_resource_claim(claim(uid, [device(0, Some(1_536), None)]));
    }
    assert_eq!(free(&ledger), [(0, 100)], "two units each");
    assert_eq!(fits(&ledger, Some(1_024)), Ok(()));
    assert_eq!(fits(&ledger, Some(1_025)), Err(NoFit::NoRoom));
    assert_eq!(fits(&ledger, None), Err(NoFit::InUse));
    ledger.set_resource_claim(claim("k", [device(0, None, None)]));
    assert_eq!(fits(&ledger, Some(1)), Err(NoFit::NoRoom), "it may have all");
}

#[test]
fn what_is_recorded_in_units_counts_for_claims_too() {
    let mut ledger = NodeLedger::default();
    let pods = BTreeMap::from([(PodUid::from("ends"), Units(4))]);
    ledger.set_gpus(vec![Gpu { closed: Some(Closed::Claims), pods, ..gpu(0, 16_384, 16) }]);
    assert_eq!(fits(&ledger, Some(12 * 1_024)), Ok(()));
    assert_eq!(fits(&ledger, Some(12 * 1_024 + 1)), Err(NoFit::NoRoom));
    ledger.set_resource_claim(claim("ends", [device(0, Some(3_072), None)]));
    assert_eq!(fits(&ledger, Some(13 * 1_024)), Ok(()), "it is the claim's, and counts once");
    assert_eq!(free(&ledger), [(13, 100)]);
    ledger.set_unmanaged(vec![(uuid(0), Units(9))]);
    ledger.set_resource_claim(claim("lost", [device(7, Some(1), None)]));
    assert_eq!(fits(&ledger, Some(13 * 1_024)), Ok(()), "as kube-scheduler counts");
    let unread = ClaimedDevice { name: String::new(), ..device(0, None, None) };
    ledger.set_resource_claim(claim("unread", [unread]));
    assert_eq!(fits(&ledger, Some(1)), Err(NoFit::NoRoom), "it may be on any GPU");
}

#[test]
fn only_gpus_that_are_given_out_by_claims_take_some() {
    for by_units in [&[None][..], &[Some(Closed::Claims), None], &[Some(Closed::Cdi)]] {
        assert!(by_claims(by_units).read().for_claims().is_none(), "{by_units:?}");
    }
    let ledger = by_claims(&[Some(Closed::Cdi), Some(Closed::Claims)]);
    let for_claims = ledger.read().for_claims().unwrap();
    assert_eq!(for_claims.check(&"p".into(), &of_claim(1, Some(16_384))), Ok(()));
    let fit = for_claims.explain(&"p".into(), &of_claim(2, Some(1)), &RULE);
    assert_eq!(fit.outcome, Err(NoFit::Closed));
    assert_eq!(fit.gpus[0].1, GpuFit::Closed(Closed::Cdi));
    // Pods with units find neither.
    assert!(ledger.read().check(&"p".into(), &ask(1)).is_err());
}

#[test]
fn a_claim_that_cannot_be_counted_is_no_request() {
    let of =
        |gpus, memory| GpuRequest::of_claim(gpus, Some(MiB(memory)), Cores::ZERO, Isolation::None);
    for (gpus, memory) in [(0, 1), (65, 1), (u32::MAX, 1), (2, 1 << 31), (1, 1 << 32)] {
        assert_eq!(of(gpus, memory), None, "{gpus} of {memory}");
    }
    assert_eq!(of(1, 0), of(1, 1), "the least that kube-scheduler gives");
}
