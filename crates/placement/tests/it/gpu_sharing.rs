//! Clients of MPS and other pods on a GPU: which take a GPU, what is said of it, and how room is made.

use placement::gpu::{
    Candidates, ChoiceRule, ContainerKind, ContainerRequest, Evictable, Gpu, GpuFilter, GpuFit,
    GpuIsolation, GpuOptions, GpuRequest, GpuUse, Isolation, NoFit, NodeGpus, NodeLedger, Sharers,
    Sharing, Topology, victims,
};
use placement::moves::{MoveNode, PodNeeds, fewest_to_leave};
use placement::resources::{PODS, Requests};
use placement::units::{Cores, GpuId, GpuModel, MiB, PodUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;
const UNITS: u32 = 16;
const NONE: Isolation = Isolation::None;
const MPS: Isolation = Isolation::Mps;

fn uid(pod: &str) -> PodUid {
    PodUid::from(pod)
}

/// A GPU of a node that can enforce `mps` and terminates clients before they are killed, with `minimum` for pods that
/// require nothing.
fn gpu(index: u32, minimum: Isolation, clients: u16) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}").into(),
        index,
        model: "".into(),
        memory: MiB(16384),
        units: Units(UNITS),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation {
            strongest: Some(MPS),
            minimum,
            mps_clients: Some(clients),
            drains_clients: true,
        },
        outside_mps: Vec::new(),
        pods: [].into(),
    }
}

fn ledger(gpus: impl IntoIterator<Item = Gpu>) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(gpus.into_iter().collect());
    ledger
}

fn container(name: &str, kind: ContainerKind, position: usize, processes: u16) -> ContainerRequest {
    let gpu_use = GpuUse { processes, ..GpuUse::default() };
    ContainerRequest { name: name.to_owned(), kind, position, units: Units(1), gpu_use }
}

fn request_of(isolation: Isolation, asks: Vec<ContainerRequest>) -> GpuRequest {
    let filter = GpuFilter { isolation, ..GpuFilter::default() };
    GpuRequest::with_options(asks, GpuOptions { filter, ..GpuOptions::default() }).unwrap().unwrap()
}

/// A pod of one unit with one container of this many processes.
fn asking(isolation: Isolation, processes: u16) -> GpuRequest {
    request_of(isolation, vec![container("main", ContainerKind::App, 0, processes)])
}

fn reserve(ledger: &mut NodeLedger, pod: &str, request: &GpuRequest) -> Result<u32, String> {
    let reserved = ledger.reserve(&uid(pod), request, &RULE);
    reserved.map(|it| it.choice.gpus[0].index).map_err(|error| error.to_string())
}

/// What Filter, Bind, Prioritize and explain have in common.
fn no_fit(ledger: &NodeLedger, request: &GpuRequest) -> Option<NoFit> {
    let gpus = ledger.read();
    let checked = gpus.check(&uid("new"), request).err();
    assert_eq!(gpus.fit(&uid("new"), request, &RULE).err(), checked);
    assert_eq!(gpus.rate(&uid("new"), request, &RULE).err(), checked);
    assert_eq!(gpus.explain(&uid("new"), request, &RULE).outcome.err(), checked);
    checked
}

fn fit(ledger: &NodeLedger, at: usize, request: &GpuRequest) -> GpuFit {
    ledger.read().explain(&uid("new"), request, &RULE).gpus[at].1
}

#[test]
fn a_gpu_with_sharers_of_one_kind_takes_no_pod_of_the_other() {
    let mut node = ledger([gpu(0, NONE, 48), gpu(1, NONE, 48)]);
    assert_eq!(reserve(&mut node, "client", &asking(MPS, 1)), Ok(0));
    assert_eq!(reserve(&mut node, "plain", &asking(NONE, 1)), Ok(1), "GPU 0 is the fuller one");
    assert_eq!(fit(&node, 0, &asking(NONE, 1)), GpuFit::OtherSharing);
    assert_eq!(fit(&node, 1, &asking(MPS, 1)), GpuFit::OtherSharing);
    assert_eq!(reserve(&mut node, "client-2", &asking(MPS, 1)), Ok(0));
    assert_eq!(reserve(&mut node, "plain-2", &asking(NONE, 1)), Ok(1));

    let mut alone = ledger([gpu(0, NONE, 48)]);
    assert_eq!(reserve(&mut alone, "client", &asking(MPS, 1)), Ok(0));
    assert_eq!(no_fit(&alone, &asking(NONE, 1)), Some(NoFit::OtherSharing));
    alone.cancel(&uid("client"));
    assert_eq!(no_fit(&alone, &asking(NONE, 1)), None);
}

#[test]
fn where_mps_is_the_nodes_minimum_every_pod_is_a_client_that_can_be_one() {
    let mut node = ledger([gpu(0, MPS, 48)]);
    assert_eq!(reserve(&mut node, "client", &asking(MPS, 1)), Ok(0));
    assert_eq!(reserve(&mut node, "plain", &asking(NONE, 1)), Ok(0));
    let options = GpuOptions { excludes_mps: true, ..GpuOptions::default() };
    let asks = [container("main", ContainerKind::App, 0, 1)];
    let excludes_mps = GpuRequest::with_options(asks, options).unwrap().unwrap();
    assert_eq!(no_fit(&node, &excludes_mps), Some(NoFit::OtherSharing));
}

#[test]
fn a_gpu_takes_as_many_clients_as_it_serves() {
    let mut node = ledger([gpu(0, NONE, 3)]);
    assert_eq!(reserve(&mut node, "two", &asking(MPS, 2)), Ok(0));
    assert_eq!(fit(&node, 0, &asking(MPS, 2)), GpuFit::TooManyClients { left: 1 });
    assert_eq!(no_fit(&node, &asking(MPS, 2)), Some(NoFit::TooManyClients));
    assert_eq!(reserve(&mut node, "one", &asking(MPS, 1)), Ok(0));
    assert_eq!(no_fit(&node, &asking(MPS, 1)), Some(NoFit::TooManyClients));
    node.cancel(&uid("two"));
    assert_eq!(no_fit(&node, &asking(MPS, 2)), None);
    let unlimited = GpuIsolation { mps_clients: None, ..gpu(0, NONE, 3).isolation };
    let node = ledger([Gpu { isolation: unlimited, ..gpu(0, NONE, 3) }]);
    assert_eq!(no_fit(&node, &asking(MPS, 1000)), None, "a report without a limit sets none");
}

#[test]
fn pods_without_mps_are_no_clients() {
    let mut node = ledger([gpu(0, NONE, 2)]);
    for pod in ["a", "b", "c", "d"] {
        assert_eq!(reserve(&mut node, pod, &asking(NONE, 9)), Ok(0));
    }
    let gpus = node.read();
    let gpu = &gpus.accounts()[0].gpu;
    assert_eq!((gpu.sharers, gpu.clients), (Sharers::Only(Sharing::Turns), 0));
}

#[test]
fn containers_that_run_at_the_same_time_are_clients_together() {
    let asks = vec![
        container("load", ContainerKind::Init, 0, 5),
        container("log", ContainerKind::Sidecar, 1, 1),
        container("main", ContainerKind::App, 0, 2),
        container("side", ContainerKind::App, 1, 1),
    ];
    let clients = |asks: Vec<ContainerRequest>| request_of(MPS, asks).largest().processes;
    assert_eq!(clients(asks.clone()), 5, "the init container has ended when the others start");
    assert_eq!(clients(asks[1..].to_vec()), 4);
}

#[test]
fn a_nominated_pods_clients_and_kind_count() {
    let mut node = ledger([gpu(0, NONE, 2)]);
    node.nominate(&uid("waits"), &asking(MPS, 2), &[GpuId::from("GPU-0")]);
    assert_eq!(no_fit(&node, &asking(NONE, 1)), Some(NoFit::OtherSharing));
    assert_eq!(no_fit(&node, &asking(MPS, 1)), Some(NoFit::TooManyClients));
    assert_eq!(no_fit(&node, &asking(NONE, 1).with_priority(1)), None, "a more important pod");
    assert!(node.read().fit(&uid("waits"), &asking(MPS, 2), &RULE).is_ok());
}

#[test]
fn a_pod_keeps_its_kind_until_its_processes_have_ended() {
    let mut node = ledger([gpu(0, NONE, 2)]);
    let client = asking(MPS, 2);
    let claim = node.reserve(&uid("client"), &client, &RULE).unwrap().claim;
    node.bind(&uid("client"), &client, Some(&claim));
    // An edit of its annotations.
    node.bind(&uid("client"), &asking(NONE, 1), Some(&claim));
    assert_eq!(no_fit(&node, &asking(NONE, 1)), Some(NoFit::OtherSharing));
    let recorded = Gpu { pods: [(uid("client"), Units(1))].into(), ..gpu(0, NONE, 2) };
    node.set_gpus(vec![recorded]);
    node.release(&uid("client"));
    assert_eq!(no_fit(&node, &asking(NONE, 1)), Some(NoFit::OtherSharing));
    assert_eq!(no_fit(&node, &asking(MPS, 1)), Some(NoFit::TooManyClients));
    node.set_gpus(vec![gpu(0, NONE, 2)]);
    assert_eq!(no_fit(&node, &asking(NONE, 1)), None);
}

#[test]
fn what_is_of_unknown_kind_keeps_no_pod_off_and_may_be_a_client() {
    let recorded = Gpu { pods: [(uid("gone"), Units(1))].into(), ..gpu(0, NONE, 2) };
    let mut node = ledger([recorded]);
    node.set_unmanaged(vec![(GpuId::from("GPU-0"), Units(3))]);
    assert_eq!(no_fit(&node, &asking(NONE, 1)), None);
    assert_eq!(no_fit(&node, &asking(MPS, 1)), None);
    assert_eq!(fit(&node, 0, &asking(MPS, 2)), GpuFit::TooManyClients { left: 1 });
}

#[test]
fn a_claim_that_proves_nothing_closes_no_other_gpu_to_the_other_kind() {
    let mut node = ledger([gpu(0, NONE, 2), gpu(1, NONE, 2)]);
    let request = asking(MPS, 1);
    let claim = placement::gpu::Claim::on_gpu(&request, &GpuId::from("GPU-0"));
    node.bind(&uid("client"), &request, Some(&claim));
    assert_eq!(fit(&node, 0, &asking(NONE, 1)), GpuFit::OtherSharing);
    assert!(matches!(fit(&node, 1, &asking(NONE, 1)), GpuFit::Fits { .. }));
    assert_eq!(fit(&node, 1, &asking(MPS, 2)), GpuFit::TooManyClients { left: 1 });
}

fn evictable(pod: &str) -> Evictable {
    Evictable { uid: uid(pod), priority: 0, violates_budget: false, frees: Vec::new() }
}

fn evicted(node: &NodeLedger, request: &GpuRequest, pods: &[&str]) -> Option<Vec<String>> {
    evicted_instead_of(node, request, pods, &[])
}

/// As [`evicted`], where kube-scheduler's dry run would evict these.
fn evicted_instead_of(
    node: &NodeLedger,
    request: &GpuRequest,
    pods: &[&str],
    of_dry_run: &[&str],
) -> Option<Vec<String>> {
    let evictable: Vec<Evictable> = pods.iter().map(|pod| evictable(pod)).collect();
    let of_dry_run = of_dry_run.iter().map(|pod| uid(pod)).collect();
    let shortfall = Vec::new();
    let candidates =
        Candidates { evictable: &evictable, of_dry_run: &of_dry_run, shortfall: &shortfall };
    let victims = victims(node.read(), &uid("new"), request, candidates, &RULE)?;
    Some(victims.pods.iter().map(ToString::to_string).collect())
}

#[test]
fn preemption_evicts_all_of_the_other_kind_or_as_many_clients_as_are_too_many() {
    let mut node = ledger([gpu(0, NONE, 3)]);
    for pod in ["a", "b", "c"] {
        assert_eq!(reserve(&mut node, pod, &asking(MPS, 1)), Ok(0));
    }
    let important = |isolation, processes| asking(isolation, processes).with_priority(9);
    let all = ["a", "b", "c"];
    let evicted = |request: &GpuRequest, pods: &[&str]| evicted(&node, request, pods);
    assert_eq!(evicted(&important(NONE, 1), &all).map(|pods| pods.len()), Some(3));
    assert_eq!(evicted(&important(NONE, 1), &["a", "b"]), None, "one client stays");
    assert_eq!(evicted(&important(MPS, 2), &all).map(|pods| pods.len()), Some(2));
    assert_eq!(evicted(&important(MPS, 4), &all), None, "more than the GPU serves");
}

/// GPUs where nothing terminates clients before they are killed.
fn undrained(gpus: impl IntoIterator<Item = Gpu>) -> NodeLedger {
    let gpus = gpus.into_iter().map(|gpu| Gpu {
        isolation: GpuIsolation { drains_clients: false, ..gpu.isolation },
        ..gpu
    });
    ledger(gpus)
}

#[test]
fn a_client_beside_others_is_no_victim_where_nothing_terminates_it_first() {
    let mut node = undrained([gpu(0, NONE, 2), gpu(1, NONE, 2), gpu(2, NONE, 2)]);
    for (pod, isolation, processes) in
        [("a", MPS, 1), ("b", MPS, 1), ("alone", MPS, 2), ("plain", NONE, 1)]
    {
        assert!(reserve(&mut node, pod, &asking(isolation, processes)).is_ok());
    }
    let all = ["a", "b", "alone", "plain"];
    let important = asking(MPS, 2).with_priority(9);
    let undrained: Vec<String> =
        node.read().undrained_clients().into_iter().map(ToString::to_string).collect();
    assert_eq!(undrained, ["a", "b"]);
    assert_eq!(evicted(&node, &important, &all), Some(vec!["alone".to_owned()]));
    assert_eq!(evicted(&node, &important, &["a", "b"]), None);
    // Nor as a victim of kube-scheduler's dry run, alone or among others.
    for dry_run in [&["a", "b"][..], &["a", "b", "plain"]] {
        assert_eq!(evicted_instead_of(&node, &important, &["a", "b"], dry_run), None);
        let chosen = evicted_instead_of(&node, &important, &all, dry_run).unwrap();
        assert!(chosen == ["alone"] || chosen == ["plain"], "{chosen:?}");
    }
    node.release(&uid("b"));
    assert_eq!(evicted(&node, &important, &["a"]), Some(vec!["a".to_owned()]), "no other is left");
}

#[test]
fn a_pod_of_unknown_kind_counts_as_a_client_where_there_is_mps_and_nowhere_else() {
    let pods = || [(uid("a"), Units(1)), (uid("b"), Units(1))].into();
    let node = undrained([Gpu { pods: pods(), ..gpu(0, NONE, 2) }]);
    assert_eq!(node.read().undrained_clients().len(), 2);
    let isolation = GpuIsolation::default();
    let node = ledger([Gpu { pods: pods(), isolation, ..gpu(0, NONE, 2) }]);
    assert!(node.read().undrained_clients().is_empty());
}

proptest! {
    #[test]
    fn no_plan_ends_a_client_beside_others_unless_it_is_terminated_first(
        pods in prop::collection::vec((0..2_u32, 1..8_u32, any::<bool>(), any::<bool>()), 0..8),
        asked in 1..=UNITS,
        is_client: bool,
        drains_clients: bool,
    ) {
        let mut gpus = [gpu(0, NONE, 48), gpu(1, NONE, 48)];
        let mut left = [UNITS; 2];
        let mut placed = Vec::new();
        for (number, (index, units, is_client, of_dry_run)) in pods.into_iter().enumerate() {
            let at = index as usize;
            if units <= left[at] {
                left[at] -= units;
                let name = format!("p{number}");
                gpus[at].pods.insert(uid(&name), Units(units));
                placed.push((name, index, units, is_client, of_dry_run));
            }
        }
        for gpu in &mut gpus {
            gpu.isolation.drains_clients = drains_clients;
        }
        let of_units = |units: u32, is_client: bool| {
            let asks = container("main", ContainerKind::App, 0, 1);
            let asks = ContainerRequest { units: Units(units), ..asks };
            request_of(if is_client { MPS } else { NONE }, vec![asks])
        };
        let mut node = ledger(gpus);
        for (name, index, units, is_client, _) in &placed {
            let request = of_units(*units, *is_client);
            let on = GpuId::from(format!("GPU-{index}"));
            let claim = placement::gpu::Claim::on_gpu(&request, &on);
            node.bind(&uid(name), &request, Some(&claim));
        }
        let ends_others = |pod: &PodUid| {
            let (_, on, _, is_client, _) =
                placed.iter().find(|(name, ..)| uid(name) == *pod).unwrap();
            let others = placed.iter().filter(|(_, index, _, is_client, _)| index == on && *is_client);
            *is_client && !drains_clients && others.count() > 1
        };
        let request = of_units(asked, is_client).with_priority(9);
        let all: Vec<&str> = placed.iter().map(|(name, ..)| name.as_str()).collect();
        let dry_run = placed.iter().filter(|(.., of_dry_run)| *of_dry_run);
        let dry_run: Vec<&str> = dry_run.map(|(name, ..)| name.as_str()).collect();
        for victim in evicted_instead_of(&node, &request, &all, &dry_run).unwrap_or_default() {
            prop_assert!(!ends_others(&uid(&victim)), "{} is evicted", victim);
        }
        let empty = ledger([gpu(0, NONE, 48), gpu(1, NONE, 48)]);
        let nodes = [("a", &node), ("b", &empty)].map(|(name, ledger)| {
            let gpus = std::sync::Arc::clone(ledger.read());
            let free = Requests::from([("cpu", 0.0), (PODS, 9.0)].map(|(of, amount)| (of.into(), amount)));
            MoveNode { name: name.into(), gpus, free: Some(free) }
        });
        // A resource beside GPUs, of which one pod has to go.
        let cpu = || Requests::from([("cpu".to_owned(), 1.0)]);
        let movable: Vec<PodNeeds> = placed
            .iter()
            .map(|(name, _, units, is_client, _)| {
                PodNeeds::new(uid(name), Some(of_units(*units, *is_client)), cpu())
            })
            .collect();
        let wanted = PodNeeds::new(uid("new"), Some(request), cpu());
        if let Some(leaving) = fewest_to_leave(&nodes[0], &wanted, &movable.iter().collect::<Vec<_>>()) {
            prop_assert!(!leaving.is_empty());
            prop_assert!(!leaving.iter().any(|pod| ends_others(&pod.uid)));
        }
    }
}

/// As many as Filter accepts one after the other, and the largest size of one more.
fn accepted(gpus: &NodeGpus, shape: (u32, u32, u32)) -> (u64, Units) {
    let request = |units| GpuRequest::of_shape(shape.0, Units(units), Cores(shape.2)).unwrap();
    let fits = |units: &u32| gpus.check(&uid("new"), &request(*units)).is_ok();
    let largest = (1..=UNITS).rev().find(fits).unwrap_or_default();
    let (mut gpus, mut pods, asked) = (gpus.clone(), 0, request(shape.1));
    while let Ok(choice) = gpus.fit(&uid("new"), &asked, &RULE) {
        let pod = uid(&format!("new-{pods}"));
        gpus = gpus.with(&pod, &asked, &choice);
        pods += 1;
    }
    (pods, Units(largest))
}

proptest! {
    #[test]
    fn capacity_is_what_filter_accepts_one_after_the_other(
        gpus in prop::collection::vec((any::<bool>(), 0..12_u16, 0..3_usize, any::<bool>()), 1..5),
        held in prop::collection::vec((any::<bool>(), 1..5_u16, 0..9_u32), 0..6),
        unplaced in 0..20_u32,
        shape in (1..4_u32, 1..7_u32, 0..60_u32),
    ) {
        let models = ["A", "B", "C"];
        let mut of_node = Vec::new();
        for (index, (is_minimum, clients, model, is_healthy)) in gpus.into_iter().enumerate() {
            let minimum = if is_minimum { MPS } else { NONE };
            let index = u32::try_from(index).unwrap();
            let model = models[model].into();
            let healthy = is_healthy || index == 0;
            of_node.push(Gpu { model, healthy, ..gpu(index, minimum, clients) });
        }
        let mut node = ledger(of_node);
        for (at, (is_client, processes, units)) in held.into_iter().enumerate() {
            let isolation = if is_client { MPS } else { NONE };
            let ask = container("main", ContainerKind::App, 0, processes);
            let request = request_of(isolation, vec![ContainerRequest { units: Units(units + 1), ..ask }]);
            let _ = reserve(&mut node, &format!("held-{at}"), &request);
        }
        if unplaced > 0 {
            node.bind(&uid("unplaced"), &GpuRequest::single("main", Units(unplaced)).unwrap(), None);
        }
        let gpus = node.read();
        let request = GpuRequest::of_shape(shape.0, Units(shape.1), Cores(shape.2)).unwrap();
        let all = gpus.capacity(&request, None);
        prop_assert_eq!((all.pods, all.largest), accepted(gpus, shape));
        let by_model = |model: &str| gpus.capacity(&request, Some(&GpuModel::from(model))).pods;
        let of_models: u64 = models.map(by_model).iter().sum();
        if shape.0 == 1 && unplaced == 0 {
            prop_assert_eq!(of_models, all.pods);
        }
    }
}

#[test]
fn capacity_looks_at_sharers_and_not_at_units_alone() {
    let mut node = ledger([gpu(0, NONE, 3), gpu(1, NONE, 48)]);
    let plain = GpuRequest::of_shape(1, Units(1), Cores::ZERO).unwrap();
    assert_eq!(node.read().capacity(&plain, None).pods, 32);
    assert_eq!(reserve(&mut node, "client", &asking(MPS, 2)), Ok(0));
    // The 15 free units of GPU 0 are for clients alone, and it serves one more.
    assert_eq!(node.read().capacity(&plain, None).pods, 16);
    assert_eq!(reserve(&mut node, "plain", &asking(NONE, 1)), Ok(1));
    assert_eq!(node.read().capacity(&asking(MPS, 1), None).pods, 1);
    assert_eq!(node.read().capacity(&asking(MPS, 2), None).largest, Units(0));
}
