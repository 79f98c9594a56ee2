//! Inputs that the benchmarks share: clusters of made-up nodes, the same at every run. And [`results`] and [`slopes`],
//! which write down what was measured.

pub mod results;
pub mod slopes;

use std::sync::Arc;

use jiff::Timestamp;
use placement::gpu::{ChoiceRule, Gpu, GpuIsolation, GpuRequest, NodeLedger, Topology};
use placement::load::{MetricTable, NodeLoad, Readings, ResolvedPolicy};
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::units::{GpuId, MiB, PodUid, Ratio, Units};
use serde_json::{Value, json};

/// The policy that crane ships, which most users start from.
pub const POLICY: &str = include_str!("../../crates/placement/tests/golden/crane-policy.yaml");

/// The time at which all made-up readings were taken.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_795_165_200).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The policy, and the load of `nodes` nodes: every metric of it, at values that differ by node and metric.
///
/// # Panics
///
/// Where the policy is not valid.
#[expect(clippy::panic, reason = "the input is a constant")]
pub fn loads(nodes: usize) -> (ResolvedPolicy, Vec<NodeLoad>) {
    let mut table = MetricTable::default();
    let policy = LoadPolicy::from_yaml(POLICY).unwrap_or_else(|error| panic!("{error}"));
    let policy = ResolvedPolicy::new(policy, &mut table);
    let loads = (0..nodes).map(|node| node_load(&policy, &mut table, node)).collect();
    (policy, loads)
}

fn node_load(policy: &ResolvedPolicy, table: &mut MetricTable, number: usize) -> NodeLoad {
    let metrics = policy.policy.metrics().into_iter().enumerate();
    let readings = metrics.filter_map(|(position, metric)| {
        let value = f64::from((number * 37 + position * 11) as u32 % 64) / 100.0;
        Some((metric.clone(), Reading::new(Ratio::new(value)?, now())))
    });
    let readings = Arc::new(Readings::new(table, readings));
    NodeLoad { readings, ..NodeLoad::default() }
}

/// A ledger of `gpus` GPUs of 16 units with `pods` pods of 3 units reserved.
pub fn ledger(gpus: u32, pods: usize) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_gpus((0..gpus).map(gpu).collect());
    if let Some(request) = GpuRequest::single("app", Units(3)) {
        for pod in 0..pods {
            // Whatever does not fit is simply not there.
            let _ = ledger.reserve(&uid(pod), &request, &ChoiceRule::default());
        }
    }
    ledger
}

/// The UID of made-up pod `number`.
pub fn uid(number: usize) -> PodUid {
    PodUid::from(format!("00000000-0000-4000-8000-{number:012x}"))
}

/// `status.images` of a Node, which are most of its bytes: so many, as the kubelet reports them.
pub fn images(count: usize) -> Value {
    (0..count).map(image).collect()
}

fn image(number: usize) -> Value {
    let digest = format!("registry.example/team/app-{number}@sha256:{number:064x}");
    let tag = format!("registry.example/team/app-{number}:v1.2.3");
    json!({"names": [digest, tag], "sizeBytes": 123_456_789})
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        uuid: GpuId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000")),
        index,
        model: "NVIDIA A10".into(),
        memory: MiB(16 * 1024),
        units: Units(16),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: std::collections::BTreeMap::new(),
    }
}
