//! The values of the golden files.

use std::collections::BTreeMap;

use api::allocation::Allocation;
use api::claim::{Claim, Detailed, Share};
use api::expected_use::ExpectedUse;
use api::explain::{
    self, Basis, DecisionBasis, EstimateSource, EstimatedAmount, ExplainedCharge, Explanation,
    GpuOutcome, Limit, LimitOutcome, Load, NodeCost, ReadingStatus, Term,
};
use api::gpus::{Closed, Gpu, Gpus, Isolation};
use api::health::{Condition, ConditionState, Health};
use api::inspect::{Device, Inspected, InspectedNode, InspectedPod};
use api::pods::{NodePods, PodUse};
use api::policy_check::{Fault, PolicyCheck};
use api::readings::PolledReadings;
use api::shadow::{Choice, Difference, Shadow, ShadowedPod};
use api::share::{GpuShare, NodeShare};
use api::share_config::ShareConfig;
use api::workloads::{Workload, Workloads};
use jiff::{SignedDuration, Timestamp};
use placement::estimate::{Distribution, LearnedUse};
use placement::reading::Reading;
use placement::resources::PerResource;
use placement::units::{Cores, GpuId, MetricName, MiB, Ratio, Units};
use placement::workload::WorkloadId;

pub(crate) fn uuid(index: u32) -> GpuId {
    GpuId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000"))
}

pub(crate) fn gpu(index: u32) -> Gpu {
    Gpu {
        uuid: uuid(index),
        index,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        linked: Vec::new(),
        healthy: true,
        closed: None,
        isolation: None,
        mps_clients: None,
        mps_drain: None,
        outside_mps: Vec::new(),
        pods: [].into(),
    }
}

pub(crate) fn gpus() -> Gpus {
    Gpus(vec![
        Gpu {
            numa_node: Some(0),
            linked: vec![1],
            pods: [("2f6c".into(), Units(4))].into(),
            ..gpu(0)
        },
        Gpu {
            healthy: false,
            closed: Some(Closed::Cdi),
            isolation: Some(Isolation::Driver),
            mps_clients: Some(48),
            mps_drain: Some(true),
            outside_mps: vec!["2f6c".into()],
            ..gpu(1)
        },
    ])
}

fn unmeasured(index: u32) -> GpuShare {
    GpuShare {
        uuid: uuid(index),
        units: Units(16),
        allocated: Units(0),
        used: None,
        utilisation: None,
    }
}

pub(crate) fn share() -> NodeShare {
    let busy = GpuShare {
        allocated: Units(7),
        used: Some(MiB(5120)),
        utilisation: Some(0.4),
        ..unmeasured(0)
    };
    NodeShare { time: "2026-11-20T09:00:00Z".parse().unwrap(), gpus: vec![busy, unmeasured(1)] }
}

fn on_two(shares: [(u32, Share); 2]) -> BTreeMap<GpuId, Share> {
    shares.map(|(gpu, share)| (uuid(gpu), share)).into()
}

pub(crate) fn claim() -> Claim {
    let units = Share::Units(Units(4));
    let limit = Some(Units(9));
    let part = Detailed { units: Units(2), cores: Cores(30), exclusive: false, limit };
    let whole = Detailed { units: Units(2), cores: Cores::ZERO, exclusive: true, limit };
    let load = on_two([(3, units), (5, units)]);
    let serve = on_two([(3, Share::Detailed(part)), (5, Share::Detailed(whole))]);
    Claim { containers: [("load".to_owned(), load), ("serve".to_owned(), serve)].into() }
}

fn on_gpu_3(units: u32) -> BTreeMap<u32, Units> {
    [(3, Units(units))].into()
}

pub(crate) fn allocation() -> Allocation {
    Allocation { containers: [(0, on_gpu_3(2)), (2, on_gpu_3(1))].into() }
}

pub(crate) fn expected_use() -> ExpectedUse {
    ExpectedUse { cpu: Some("500m".to_owned()), memory: Some("1Gi".to_owned()) }
}

pub(crate) fn inspected() -> Inspected {
    let train = InspectedPod { name: "train".to_owned(), namespace: "default".to_owned(), used: 5 };
    let devs = vec![
        Device { id: 0, total: 16, used: 5, pods: vec![train], unhealthy: false },
        Device { id: 1, total: 16, used: 0, pods: Vec::new(), unhealthy: true },
    ];
    let node = InspectedNode { name: "worker-1".to_owned(), total: 32, used: 5, devs };
    Inspected { nodes: vec![node], error: String::new() }
}

fn charge(pod: &str, units: u32, basis: Basis) -> ExplainedCharge {
    ExplainedCharge { pod: pod.to_owned(), resource_claim: None, units, cores: 0, basis }
}

fn explained_gpu(
    index: u32,
    free: u32,
    outcome: GpuOutcome,
    recorded: u32,
) -> explain::ExplainedGpu {
    explain::ExplainedGpu {
        index,
        uuid: uuid(index).to_string(),
        model: "NVIDIA A10".to_owned(),
        units: 16,
        free,
        free_cores: 70,
        outcome,
        closed: None,
        charges: vec![
            charge("0a51", recorded - 2_u32, Basis::Recorded),
            charge("7be0", 4, Basis::UnprovenClaim),
            charge("", 1, Basis::Unmanaged),
            ExplainedCharge {
                resource_claim: Some("ml/share".to_owned()),
                ..charge("", 1, Basis::ResourceClaim)
            },
        ],
    }
}

fn explained_load(
    outcome: LimitOutcome,
    points: Option<f64>,
    reading: &explain::Reading,
    bindings: f64,
    score: u8,
) -> Load {
    Load {
        limits: vec![Limit {
            metric: "cpu_usage_avg_5m".to_owned(),
            max: 0.65,
            outcome,
            reading: reading.clone(),
            in_flight: Some(0.04),
            pod: Some(0.02),
        }],
        terms: vec![Term {
            metric: "cpu_usage_avg_5m".to_owned(),
            share: 1.0,
            points,
            typical: Some(0.5),
            reading: reading.clone(),
            in_flight: Some(0.04),
            pod: Some(0.02),
        }],
        costs: (bindings > 0.0)
            .then(|| NodeCost {
                name: "hotValue".to_owned(),
                value: bindings,
                points: 10.0 * bindings,
                text: "recent bindings".to_owned(),
            })
            .into_iter()
            .collect(),
        score,
    }
}

pub(crate) fn explanation() -> Explanation {
    let time: Timestamp = "2026-11-20T09:10:00Z".parse().unwrap();
    let reading = |value: f64| explain::Reading {
        status: ReadingStatus::Fresh,
        value: Some(value),
        time: Some(time - SignedDuration::from_secs(60)),
        age_seconds: Some(60),
        window_seconds: Some(300),
        cached: true,
    };
    let hot = explained_load(LimitOutcome::Exceeded, Some(20.0), &reading(0.8), 1.0, 10);
    let unknown = explained_load(
        LimitOutcome::Unknown,
        Some(0.0),
        &explain::Reading {
            status: ReadingStatus::Missing,
            value: None,
            time: None,
            age_seconds: None,
            window_seconds: Some(300),
            cached: true,
        },
        0.0,
        0,
    );
    let gpus = vec![
        explained_gpu(0, 3, GpuOutcome::TooLittleFree, 9),
        explained_gpu(1, 4, GpuOutcome::Fits, 8),
    ];
    let rejected = explain::Node {
        name: "worker-1".to_owned(),
        known: true,
        accepted: false,
        reasons: vec![
            "Load[cpu_usage_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)"
                .to_owned(),
        ],
        score: 5,
        extender_score: 1,
        passes_over_limit: false,
        cost_to_gpus: Some(40_000),
        load: Some(hot),
        gpus: Some(explain::ExplainedGpus {
            asked: 4,
            in_mib: false,
            asked_cores: 0,
            exclusive: false,
            count: 1,
            chosen: Vec::new(),
            linked: None,
            gpus: Vec::new(),
            score: 0,
            cost: None,
            free_cpu: None,
        }),
    };
    let accepted = explain::Node {
        name: "worker-2".to_owned(),
        known: true,
        accepted: true,
        reasons: Vec::new(),
        score: 50,
        extender_score: 5,
        passes_over_limit: true,
        cost_to_gpus: None,
        load: Some(unknown),
        gpus: Some(explain::ExplainedGpus {
            asked: 4,
            in_mib: false,
            asked_cores: 30,
            exclusive: true,
            count: 2,
            chosen: vec![1, 2],
            linked: Some(true),
            gpus,
            score: 100,
            cost: Some(-250_000),
            free_cpu: Some(27.5),
        }),
    };
    let pod = explain::Pod {
        namespace: "default".to_owned(),
        name: "train".to_owned(),
        uid: "2f6c0e4a-0000-4000-8000-000000000001".to_owned(),
    };
    let estimate = explain::Estimate {
        cpu: EstimatedAmount { amount: 1.7, source: EstimateSource::Request },
        memory: EstimatedAmount { amount: 209_715_200.0, source: EstimateSource::Learned },
    };
    Explanation {
        pod,
        time,
        basis: DecisionBasis::Decision,
        node: Some("worker-2".to_owned()),
        estimate: Some(estimate),
        fault: None,
        ignored: vec!["kubernetes.io/egress-bandwidth: expected another".to_owned()],
        nodes: vec![rejected, accepted],
    }
}

fn pod_of_shop(name: &str, uid: u32) -> explain::Pod {
    explain::Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("2f6c0e4a-0000-4000-8000-{uid:012}"),
    }
}

fn choice(rejected: u32, rejected_alone: u32, best: &[&str], best_score: Option<u8>) -> Choice {
    Choice {
        rejected,
        rejected_alone,
        best_nodes: u32::try_from(best.len()).unwrap(),
        best: best.iter().take(3).map(|node| (*node).to_owned()).collect(),
        best_score,
    }
}

pub(crate) fn health() -> Health {
    let condition = |id: &str, state, text: &str, remedy: Option<&str>| Condition {
        id: id.to_owned(),
        state,
        text: text.to_owned(),
        remedy: remedy.map(str::to_owned),
        since: "2026-11-20T09:10:00Z".parse().unwrap(),
    };
    let remedy = "mend it, or go back: kubectl plimsoll policy rollback";
    let conditions = vec![
        condition("leader", ConditionState::Ok, "leads", None),
        condition("policy", ConditionState::Warning, "line 3: unknown field", Some(remedy)),
    ];
    Health { program: "annotator".to_owned(), version: "1.2.3".to_owned(), conditions }
}

pub(crate) fn shadow() -> Shadow {
    let time: Timestamp = "2026-11-20T09:10:00Z".parse().unwrap();
    let differs = ShadowedPod {
        pod: pod_of_shop("web-1", 2),
        time: time - SignedDuration::from_secs(40),
        node: Some("worker-2".to_owned()),
        nodes: 5,
        policy: choice(1, 0, &["worker-2"], Some(61)),
        shadow: choice(5, 4, &[], None),
        differs: vec![Difference::Filter, Difference::Score],
    };
    let all = ["worker-1", "worker-2", "worker-3", "worker-5"];
    let agrees = ShadowedPod {
        pod: pod_of_shop("web-0", 1),
        time: time - SignedDuration::from_secs(3_000),
        node: None,
        nodes: 5,
        policy: choice(0, 0, &all, Some(48)),
        shadow: choice(0, 0, &["worker-3"], Some(52)),
        differs: Vec::new(),
    };
    Shadow { time, missing: vec!["10.0.0.7:19107".to_owned()], pods: vec![differs, agrees] }
}

pub(crate) fn policy_check() -> PolicyCheck {
    let field = "spec.predicate[0].name".to_owned();
    PolicyCheck {
        valid: true,
        refused: Some("--policy-file policy.yaml: line 5: kind: expected another".to_owned()),
        error: Some(Fault { line: 5, field, problem: "expected another".to_owned() }),
        kind: Some("SchedulingPolicy".to_owned()),
        policy: Some(
            serde_json::json!({"kind": "SchedulingPolicy", "spec": {"scoring": {"scale": 30}}}),
        ),
        when_configured: vec!["disk_usage_avg_5m".to_owned()],
        warnings: vec!["a warning".to_owned()],
    }
}

pub(crate) fn pods() -> NodePods {
    let measured = PodUse {
        uid: "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55".into(),
        cpu_seconds_total: Some(123.456_789),
        memory_used_bytes: Some(1 << 20),
    };
    let uid = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e".into();
    let unknown = PodUse { uid, cpu_seconds_total: None, memory_used_bytes: None };
    let time = "2026-11-22T07:00:00Z".parse().unwrap();
    NodePods { time, omitted: 2, pods: vec![measured, unknown] }
}

fn workload(kind: &str, name: &str) -> WorkloadId {
    WorkloadId {
        namespace: "shop".into(),
        kind: kind.into(),
        name: name.into(),
        template: 0x00c0_ffee,
    }
}

pub(crate) fn workloads() -> Workloads {
    let spread =
        |mean| Distribution { mean, p50: mean, p90: 2.0 * mean, p95: 2.5 * mean, p99: 3.0 * mean };
    let cpu = LearnedUse { amount: spread(0.123_456), by_request: Some(spread(0.5)) };
    let memory = LearnedUse { amount: spread(734_003_200.0), by_request: None };
    let both = PerResource { cpu: Some(cpu), memory: Some(memory) };
    let cpu_only = PerResource { cpu: Some(cpu), memory: None };
    let seen = "2026-11-22T06:59:00Z".parse().unwrap();
    Workloads {
        time: "2026-11-22T07:00:00Z".parse().unwrap(),
        workloads: vec![
            Workload::new(&workload("Deployment", "web"), &both, 1234.5678, seen),
            Workload::new(&workload("CronJob", "report"), &cpu_only, 5.0, seen),
            Workload::new(&workload("Job", "ci@1b857ce1094faf2a"), &cpu_only, 9.0, seen),
        ],
    }
}

pub(crate) fn share_config() -> ShareConfig {
    ShareConfig {
        isolation: Some(placement::gpu::Isolation::Driver),
        memory_limit: Some(MiB(6144)),
    }
}

pub(crate) fn readings() -> PolledReadings {
    let now: Timestamp = "2026-11-22T07:00:00.75Z".parse().unwrap();
    let reading = |metric: &str, value, ago| {
        let at = now - SignedDuration::from_secs(ago);
        (MetricName::from(metric), Reading::new(Ratio::new(value).unwrap(), at).as_written())
    };
    let worker_1 =
        [reading("cpu_busy_avg_5m", 0.630_123, 12), reading("mem_usage_avg_5m", 0.25, 12)];
    let worker_2 = [reading("mem_usage_avg_5m", 0.0, 48)];
    let mut answer = PolledReadings::new("8f14e45fceea167a-1c8".to_owned(), now);
    assert!(answer.push("worker-1".into(), &worker_1));
    assert!(answer.push("worker-2".into(), &worker_2));
    answer
}
