//! Inputs that the benchmarks share: clusters of made-up nodes, the same at every run.

use jiff::Timestamp;
use placement::gpu::{Card, GpuRequest, NodeLedger};
use placement::load::NodeLoad;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{CardId, MiB, PodUid, Units};

/// The policy that crane ships, which most users start from.
pub const POLICY: &str = include_str!("../../crates/placement/tests/golden/crane-policy.yaml");

/// The time at which all made-up readings were taken.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_795_165_200).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Load of node `number`: every metric of `policy`, at a value that differs by node and metric.
pub fn node_load(policy: &LoadPolicy, number: usize) -> NodeLoad {
    let stamp = ReadingCodec::default().encode_count(0, now()).split_off(2);
    let texts: Vec<(String, String)> = policy
        .metrics
        .iter()
        .enumerate()
        .map(|(slot, metric)| {
            let value = f64::from((number * 37 + slot * 11) as u32 % 64) / 100.0;
            (metric.to_string(), format!("{value:.5},{stamp}"))
        })
        .collect();
    let find = |key: &str| texts.iter().find(|(name, _)| name == key).map(|(_, text)| &**text);
    NodeLoad::from_annotations(policy, &ReadingCodec::default(), find, |_, _| {})
}

/// A ledger of `cards` cards of 16 units with `pods` pods of 3 units reserved.
pub fn ledger(cards: u32, pods: usize) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_cards((0..cards).map(card).collect());
    if let Some(request) = GpuRequest::single("app", Units(3)) {
        for pod in 0..pods {
            // Whatever does not fit is simply not there.
            let _ = ledger.reserve(&uid(pod), &request);
        }
    }
    ledger
}

/// The UID of made-up pod `number`.
pub fn uid(number: usize) -> PodUid {
    PodUid::from(format!("00000000-0000-4000-8000-{number:012x}"))
}

fn card(index: u32) -> Card {
    Card {
        uuid: CardId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000")),
        index,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(16 * 1024),
        units: Units(16),
        numa_node: None,
        healthy: true,
        pods: std::collections::BTreeMap::new(),
    }
}
