use std::collections::BTreeSet;

use placement::gpu::GpuUse;
use placement::load::PodKind;
use placement::units::{GpuId, Units};

use super::*;
use crate::fixtures::{A, B, gpus, ids, simple};
use crate::isolation::limit::{Limit, MpsLimit};
use crate::pods::ContainerId;
use crate::processes::group::PodGroup;
use crate::processes::host::Membership;
use crate::processes::{GpuProcess, GpuProcesses, Unknown};

const GIB: u64 = 1 << 30;
/// A UID of the form that pods have, unlike those of the fixtures.
const GONE: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";

/// A node with two GPUs of four units, each of 1 GiB, and one pod `p` with a container `main`.
struct AuditBench {
    pod: NodePod,
    checkpoint: Option<Checkpoint>,
    own: Ids,
    claimed: BTreeMap<PodUid, ClaimedGpus>,
    processes: Snapshot,
}

fn id() -> ContainerId {
    ContainerId::of_status(&format!("containerd://{}", "a".repeat(64))).unwrap()
}

fn running(facts: &PodFacts) -> NodePod {
    let containers = Arc::new([(id(), "main".to_owned())].into());
    NodePod { containers, ..PodFacts { admitted: true, ..facts.clone() }.into() }
}

fn held(ids: Ids) -> Checkpoint {
    let held = HeldIds { pod: "p".into(), container: "main".to_owned(), ids, unit: None };
    Checkpoint { held: vec![held], ..Checkpoint::default() }
}

fn whole(pod: &str, gpu: &str) -> OtherPluginGpu {
    OtherPluginGpu {
        pod: pod.into(),
        container: "main".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        gpu: gpu.into(),
    }
}

fn on(uuid: &str, processes: Result<Vec<GpuProcess>, Unknown>) -> GpuProcesses {
    let gpu = nvml::Gpu { uuid: uuid.to_owned(), ..nvml::Gpu::default() };
    GpuProcesses { gpu, processes }
}

fn process(of: Membership, bytes: Option<u64>) -> GpuProcess {
    let mps = Some(true);
    let process = nvml::Process { pid: 1, used_bytes: bytes, sm_percent: None, mps };
    GpuProcess { process, of }
}

fn in_pod(pod: &str) -> Membership {
    Membership::Pod(PodGroup { pod: pod.into(), container: Some(id()) })
}

impl AuditBench {
    /// The pod holds two units of GPU A, as it claims.
    fn new() -> Self {
        let own = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        Self {
            pod: running(&simple("p", A, 2)),
            checkpoint: Some(held(own.clone())),
            own,
            claimed: BTreeMap::new(),
            processes: vec![
                on(A, Ok(vec![process(in_pod("p"), Some(2 * GIB))])),
                on(B, Ok(vec![])),
            ],
        }
    }

    fn findings(&self) -> Findings {
        compare(&Facts {
            gpus: &gpus(&[(A, 4), (B, 4)]),
            unit: MiB(1024),
            pods: &[(self.pod.facts.uid.clone(), self.pod.clone())].into(),
            checkpoint: self.checkpoint.as_ref(),
            held_by: &|_| self.own.clone(),
            claimed: &self.claimed,
            processes: &self.processes,
        })
    }

    fn kinds(&self) -> Vec<Kind> {
        self.findings().found.into_keys().map(|finding| finding.kind).collect()
    }

    /// The findings while this pod holds this GPU through another plugin's resource.
    fn kinds_with_whole(&mut self, pod: &str, gpu: &str) -> Vec<Kind> {
        self.checkpoint.as_mut().unwrap().other_plugin_gpus = vec![whole(pod, gpu)];
        self.kinds()
    }

    /// The findings while processes of the pod use 1 GiB of GPU A, and others these bytes.
    fn kinds_with_use(&mut self, bytes: Option<u64>) -> Vec<Kind> {
        let processes = vec![process(in_pod("p"), Some(GIB)), process(in_pod("p"), bytes)];
        self.processes = vec![on(A, Ok(processes))];
        self.kinds()
    }

    /// The findings where the pod uses 3 GiB of a GPU of which it holds two units in this way.
    fn kinds_with_gpu_use(gpu_use: GpuUse) -> Vec<Kind> {
        let mut bench = Self::new();
        bench.processes = vec![on(A, Ok(vec![process(in_pod("p"), Some(3 * GIB))]))];
        bench.edit(|facts| *facts = crate::fixtures::with_use("p", A, 2, gpu_use));
        bench.edit(|facts| facts.admitted = true);
        bench.kinds()
    }

    fn edit(&mut self, edit: impl FnOnce(&mut PodFacts)) {
        edit(Arc::make_mut(&mut self.pod.facts));
    }
}

#[test]
fn what_agrees_is_no_finding_and_everything_was_compared() {
    let findings = AuditBench::new().findings();
    assert_eq!(findings.found, BTreeMap::new());
    let mut compared = BTreeSet::from(Kind::ALL);
    // The driver's limits are read in a task of its own.
    compared.remove(&Kind::LimitNotHeld);
    assert_eq!(findings.checked, compared);
}

#[test]
fn a_claim_and_a_record_each_without_the_other_are_found() {
    let mut bench = AuditBench::new();
    bench.processes = vec![];
    bench.checkpoint = Some(Checkpoint::default());
    assert_eq!(bench.kinds(), [Kind::ClaimWithoutRecord]);
    let ends: [fn(&mut PodFacts); 3] = [
        |facts| facts.deleting = true,
        |facts| facts.finished = true,
        |facts| facts.admitted = false,
    ];
    for end in ends {
        bench.pod = running(&simple("p", A, 2));
        bench.edit(end);
        assert_eq!(bench.kinds(), [], "the kubelet does not hold it yet, or no longer");
    }
    let mut bench = AuditBench::new();
    bench.edit(|facts| {
        if let Ok(Some(gpu)) = &mut facts.gpu {
            gpu.claim = Ok(None);
        }
    });
    assert_eq!(bench.kinds(), [Kind::RecordWithoutClaim]);
}

#[test]
fn a_pod_on_another_gpu_and_a_record_that_is_not_known_are_found() {
    let mut bench = AuditBench::new();
    let elsewhere = ids(["bbbbbbbb-0", "bbbbbbbb-1"]);
    bench.checkpoint = Some(held(elsewhere.clone()));
    bench.processes = vec![];
    assert_eq!(bench.kinds(), [Kind::ClaimElsewhere, Kind::RecordUnknown]);
    bench.own = elsewhere;
    assert_eq!(bench.kinds(), [Kind::ClaimElsewhere]);
}

#[test]
fn a_gpu_that_pods_hold_through_two_resources_is_found() {
    let mut bench = AuditBench::new();
    let static_pod = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";
    assert_eq!(bench.kinds_with_whole(static_pod, A), [Kind::GpuHeldTwice]);
    let (_, note) = bench.findings().found.pop_first().unwrap();
    assert_eq!(
        note,
        format!(
            "pod with UID {static_pod} holds GPU {A} through nvidia.com/gpu, and pod default/p holds units of \
             it: delete one of them"
        )
    );
    assert_eq!(bench.kinds_with_whole(static_pod, B), [], "a GPU without units in use");
    assert_eq!(bench.kinds_with_whole("p", A), [], "the pod itself");
    assert_eq!(bench.kinds_with_whole(GONE, A), [], "the kubelet has not dropped it yet");
}

#[test]
fn a_gpu_that_another_resource_offers_is_found() {
    let mut bench = AuditBench::new();
    let offered = [GpuId::from(B), GpuId::from("GPU-other")];
    bench.checkpoint.as_mut().unwrap().other_plugin_offers =
        [("nvidia.com/gpu".to_owned(), offered.into())].into();
    let findings = bench.findings().found;
    let (finding, note) = findings.first_key_value().unwrap();
    assert_eq!(finding.to_string(), format!("card_offered_twice, GPU {B}"));
    assert!(note.starts_with("the resource nvidia.com/gpu offers GPU"), "{note}");
    assert_eq!(findings.len(), 1);
}

#[test]
fn a_process_on_a_gpu_that_its_container_was_not_given_is_found() {
    let mut bench = AuditBench::new();
    bench.processes[1] = on(B, Ok(vec![process(in_pod("p"), None)]));
    let findings = bench.findings().found;
    let (finding, note) = findings.first_key_value().unwrap();
    assert_eq!((findings.len(), finding.kind), (1, Kind::ProcessElsewhere));
    assert_eq!(
        finding.to_string(),
        format!("process_elsewhere, pod default/p, container main, GPU {B}")
    );
    assert_eq!(note, &format!("container main runs on GPU {B}, which it was not given"));
    bench.checkpoint.as_mut().unwrap().other_plugin_gpus = vec![whole("p", B)];
    assert_eq!(bench.kinds(), [], "it has the GPU by another resource");
}

#[test]
fn a_container_without_a_gpu_is_found_unless_it_may_have_none() {
    let mut bench = AuditBench::new();
    bench.checkpoint = Some(Checkpoint::default());
    bench.edit(|facts| facts.gpu = Ok(None));
    bench.own = Ids::default();
    assert_eq!(bench.kinds(), [Kind::ProcessElsewhere]);
    bench.pod.has_resource_claims = true;
    assert_eq!(bench.kinds(), []);
    bench.pod.has_resource_claims = false;
    bench.edit(|facts| facts.kind = PodKind::Daemon);
    assert_eq!(bench.kinds(), []);
}

#[test]
fn a_container_is_found_on_a_gpu_that_is_none_of_its_claims() {
    let mut bench = AuditBench::new();
    bench.checkpoint = Some(Checkpoint::default());
    bench.edit(|facts| facts.gpu = Ok(None));
    bench.own = Ids::default();
    bench.pod.has_resource_claims = true;
    for (gpu, known, expected) in
        [(A, "main", &[][..]), (B, "main", &[Kind::ProcessElsewhere]), (A, "other", &[])]
    {
        let containers = [known.to_owned()].into();
        let claimed = ClaimedGpus {
            gpus: vec![whole("p", gpu)],
            known: containers,
            ..ClaimedGpus::default()
        };
        bench.claimed = [("p".into(), claimed)].into();
        assert_eq!(bench.kinds(), expected, "{gpu} {known}");
    }
    bench.claimed = [("p".into(), ClaimedGpus::default())].into();
    assert_eq!(bench.kinds(), [], "an init container's");
}

#[test]
fn a_gpu_that_is_held_by_a_resource_claim_and_by_units_is_found_where_it_is_known() {
    let mut bench = AuditBench::new();
    for (known, expected) in [("main", &[Kind::GpuHeldTwice][..]), ("other", &[])] {
        let containers = [known.to_owned()].into();
        let claimed =
            ClaimedGpus { own: vec![whole("q", A)], known: containers, ..ClaimedGpus::default() };
        bench.claimed = [("q".into(), claimed)].into();
        assert_eq!(bench.kinds(), expected, "{known}");
    }
}

#[test]
fn memory_beyond_the_share_is_found_and_unknown_memory_is_not() {
    let mut bench = AuditBench::new();
    assert_eq!(bench.kinds_with_use(Some(GIB)), [], "all of it");
    assert_eq!(bench.kinds_with_use(Some(GIB + 1)), [Kind::MemoryOverShare]);
    assert_eq!(bench.kinds_with_use(None), []);
}

#[test]
fn a_process_that_left_mps_is_found_in_containers_that_mps_limits() {
    for (mps, bytes, by_mps, is_found) in [
        (Some(false), Some(1), "main", true),
        (Some(true), Some(1), "main", false),
        (Some(false), Some(1), "other", false),
        (Some(false), Some(0), "main", false),
        (Some(false), None, "main", false),
        (None, Some(1), "main", false),
    ] {
        let mut bench = AuditBench::new();
        let limit = Limit::Mps(MpsLimit { gpus: 1, limit: MiB(2), threads: 100 });
        let limits = [(("p".into(), by_mps.to_owned()), limit)].into();
        bench.checkpoint.as_mut().unwrap().container_limits = limits;
        let mut process = process(in_pod("p"), bytes);
        process.process.mps = mps;
        bench.processes = vec![on(A, Ok(vec![process]))];
        let Findings { found, checked } = bench.findings();
        let kinds: Vec<Kind> = found.keys().map(|finding| finding.kind).collect();
        let expected = if is_found { vec![Kind::ProcessOutsideMps] } else { vec![] };
        assert_eq!(kinds, expected, "{mps:?} {bytes:?}");
        assert_eq!(checked.contains(&Kind::ProcessOutsideMps), mps.is_some());
    }
}

#[test]
fn a_container_may_use_what_it_may_grow_to_and_all_of_a_gpu_of_its_own() {
    let plain = GpuUse::default();
    for (gpu_use, expected) in [
        (plain, &[Kind::MemoryOverShare][..]),
        (GpuUse { limit: Some(Units(2)), ..plain }, &[Kind::MemoryOverShare]),
        (GpuUse { limit: Some(Units(3)), ..plain }, &[]),
        (GpuUse { exclusive: true, ..plain }, &[]),
    ] {
        assert_eq!(AuditBench::kinds_with_gpu_use(gpu_use), expected, "{gpu_use:?}");
    }
}

#[test]
fn processes_of_no_pod_and_of_gone_pods_are_found_and_those_of_static_pods_are_not() {
    let mut bench = AuditBench::new();
    let gone = process(in_pod(GONE), None);
    let of_static = process(in_pod("04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e"), None);
    let unknown = process(Membership::Unknown, None);
    let outside = process(Membership::NoPod, None);
    bench.processes = vec![
        on(A, Ok(vec![gone, of_static, unknown, outside.clone()])),
        on(B, Ok(vec![outside.clone(), outside])),
    ];
    let expected = [Kind::UnmanagedProcess, Kind::UnmanagedProcess, Kind::ProcessOfGonePod];
    assert_eq!(bench.kinds(), expected, "one a GPU");
}

#[test]
fn what_cannot_be_read_is_not_compared() {
    let mut bench = AuditBench::new();
    bench.checkpoint = None;
    let checked = bench.findings().checked;
    assert_eq!(checked, [Kind::UnmanagedProcess, Kind::ProcessOfGonePod].into());
    bench.processes = vec![on(A, Err(Unknown::PidNamespace))];
    assert_eq!(bench.findings(), Findings::default());
    assert_eq!(bench.kinds(), []);
}
