//! Annotations and the policy file, read and written.

use annotator::fleet::schedule::Schedule;
use api::allocation::Allocation;
use api::expected_use::ExpectedUse;
use api::gpus::{Gpus, MAX_GPUS};
use api::readings::PolledReadings;
use api::share::NodeShare;
use cluster::Node;
use jiff::Timestamp;
use placement::gpu::{ChoiceRule, Claim, GpuRequest, NodeLedger};
use placement::load::{MetricTable, ResolvedPolicy};
use placement::names::Names;
use placement::policy::{LoadPolicy, PolicyKind};
use placement::reading::ReadingCodec;
use placement::units::{GpuId, PodUid, Units};
use serde_json::json;

use crate::text;

/// The annotations of GPUs and of shares: what is read stays the same when it is written and read again, and there are
/// at most [`MAX_GPUS`] GPUs.
pub(crate) fn gpus(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(share) = NodeShare::from_json(text) {
        assert_eq!(NodeShare::from_json(&share.to_json()).ok(), Some(share));
    }
    let Ok(gpus) = Gpus::from_json(text) else { return };
    assert!(gpus.0.len() <= MAX_GPUS);
    assert_eq!(Gpus::from_json(&gpus.to_json()).as_ref(), Ok(&gpus));
    ledger(text);
}

/// The ledger of a node with this annotation of its GPUs never reserves more units than a GPU has.
fn ledger(gpus: &str) {
    let annotations = json!({ Names::default().gpus(): gpus });
    let node = json!({ "metadata": { "name": "a", "annotations": annotations } });
    let codec = ReadingCodec::default();
    let node = serde_json::from_value(node).ok();
    let node = node.map(|node: Node| node.facts(&Names::default(), &codec));
    let Some(Ok(gpus)) = node.and_then(|facts| facts.gpus) else { return };
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(gpus);
    let Some(request) = GpuRequest::single("app", Units(1)) else { return };
    if ledger.reserve(&PodUid::from("a"), &request, &ChoiceRule::default()).is_ok() {
        let accounts = ledger.read().accounts().iter();
        let mut held = accounts.map(|account| (account.held(), account.gpu.units));
        assert!(held.any(|(held, units)| held <= units && held > Units::ZERO));
    }
}

/// The annotation of a claim: what is read stays the same when it is written and read again. A claim that agrees with
/// the pod's spec equals the one that Bind writes for the same GPU.
pub(crate) fn claim(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(allocation) = Allocation::from_json(text) {
        assert_eq!(Allocation::from_json(&allocation.to_json()), Ok(allocation));
    }
    if let Ok(expected) = ExpectedUse::from_json(text) {
        assert_eq!(ExpectedUse::from_json(&expected.to_json()), Ok(expected));
    }
    let Ok(claim) = api::claim::Claim::from_json(text, 2) else { return };
    assert_eq!(api::claim::Claim::from_json(&claim.to_json(), 2).as_ref(), Ok(&claim));
    let Some(request) = GpuRequest::single("app", Units(3)) else { return };
    if let Ok(checked) = Claim::checked(&request, &claim.shares()) {
        assert_eq!(Claim::checked(&request, checked.containers()).as_ref(), Ok(&checked));
        assert_eq!(checked.gpus().len(), 1);
    }
}

/// What a pod asks for by annotations: each line is one of them. Either a fault that is named in a constant text, or a
/// request of at most 64 GPUs whose shares never grow and whose claim is read back as it was written.
pub(crate) fn gpu_wishes(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let names = Names::default();
    let keys = [
        names.gpu_count(),
        names.gpu_cores(),
        names.gpu_mem_limit(),
        names.gpu_model(),
        names.gpu_uuid(),
        names.gpu_placement(),
        names.gpu_processes(),
    ];
    let annotations: serde_json::Map<_, _> =
        keys.into_iter().zip(text.lines().map(|line| json!(line))).collect();
    let resources = json!({ "limits": { names.gpu_resource(): "12" } });
    let containers = ["main", "side"].map(|name| json!({ "name": name, "resources": resources }));
    let pod = json!({
        "metadata": { "name": "p", "uid": "p", "annotations": annotations },
        "spec": { "containers": containers },
    });
    let Ok(pod) = serde_json::from_value::<cluster::Pod>(pod) else { return };
    let Ok(Some(gpu)) = pod.facts(&names).gpu else { return };
    if let Some(fault) = gpu.fault {
        assert!(!fault.reason().contains('%') && fault.to_string().len() < 500);
        return;
    }
    let shares = gpu.request.shares();
    assert!((1..=MAX_GPUS).contains(&shares.len()));
    for pair in shares.windows(2) {
        assert!(pair[1].units <= pair[0].units && pair[1].cores <= pair[0].cores);
    }
    assert_eq!(gpu.request.peak(), Units(24));
    let gpus: Vec<GpuId> = (0..shares.len()).map(|n| format!("GPU-{n}").into()).collect();
    let claim = Claim::on_gpus(&gpu.request, &gpus);
    assert_eq!(Claim::checked(&gpu.request, claim.containers()), Ok(claim));
}

pub(crate) fn wishes() -> Vec<Vec<u8>> {
    [
        "2",
        "2 exclusive\n30\n24\nNVIDIA A10, !*80GB*\n!GPU-7f2a*\nspread",
        "{\"main\":3,\"side\":\"exclusive\"}\n{\"main\":50}",
    ]
    .map(Vec::from)
    .into()
}

pub(crate) fn claims() -> Vec<Vec<u8>> {
    [
        r#"{"app":{"GPU-1":3}}"#,
        r#"{"app":{"GPU-1":{"units":3,"cores":30,"exclusive":true}}}"#,
        r#"{"app":{"GPU-1":1,"GPU-2":2},"init":{"GPU-1":2}}"#,
        r#"{"0":{"1":3}}"#,
        r#"{"cpu":"500m","memory":"1Gi"}"#,
    ]
    .map(Vec::from)
    .into()
}

/// The annotation of a reading or a hot value: what is decoded stays the same when it is encoded and decoded again. So
/// does the annotator's answer with the readings of all nodes.
pub(crate) fn reading(input: &[u8]) {
    let (Some(text), codec) = (text(input), ReadingCodec::default()) else { return };
    if let Ok(polled) = PolledReadings::from_json(text) {
        assert!(polled.nodes.len() <= PolledReadings::most_nodes(polled.metrics.len()));
        for position in 0..=polled.nodes.len() {
            let readings = polled.of_node(position).flat_map(|(_, reading)| reading);
            assert!(readings.map(|reading| reading.value.get()).all(|value| value >= 0.0));
        }
        assert_eq!(PolledReadings::from_json(&polled.to_json()), Ok(polled));
    }
    if let Ok(reading) = codec.decode(text) {
        let again = codec.decode(&codec.encode(&reading)).map(|again| again.at);
        assert_eq!(again, Ok(reading.at));
    }
    if let Ok(note) = codec.decode_hot_value(text) {
        let whole = note.value as u64;
        let again = codec.decode_hot_value(&codec.encode_count(whole, note.at));
        assert_eq!(again.map(|again| (again.value, again.at)), Ok((whole as f64, note.at)));
    }
}

pub(crate) fn readings() -> Vec<Vec<u8>> {
    [
        "0.63012,2026-11-20T09:00:00Z",
        "2,2026-11-20T9:00:00.5Z",
        "1e-5,1970-01-01T00:00:00Z",
        "+Inf,2026-11-20T09:00:00Z",
    ]
    .map(Vec::from)
    .into()
}

/// A policy file: either an error with a text, or a policy from which a schedule and a resolved policy can be made. The
/// shares of the weights add up to 1, and no reason has a `%`, which kube-scheduler would read as a format. What is
/// printed of a policy of our own kind can be read, and is printed the same again.
pub(crate) fn policy(input: &[u8]) {
    match text(input).map(LoadPolicy::from_yaml) {
        None => {}
        Some(Err(error)) => assert!(!error.to_string().is_empty()),
        Some(Ok(policy)) => {
            let schedule = Schedule::new(&"a".into(), &policy);
            let now = Timestamp::UNIX_EPOCH;
            assert_eq!(schedule.next(now).is_some(), !policy.sync.is_empty());
            assert!(schedule.metrics().count() <= policy.sync.len());
            if text(input).map(PolicyKind::of) == Some(Ok(PolicyKind::Plimsoll)) {
                let printed = policy.to_yaml();
                let again = LoadPolicy::from_yaml(&printed).map(|policy| policy.to_yaml());
                assert_eq!(again, Ok(printed));
            }
            let warnings = policy.warnings();
            assert!(warnings.iter().all(|warning| !warning.to_string().is_empty()));
            let resolved = ResolvedPolicy::new(policy, &mut MetricTable::default());
            for rules in resolved.all_rules() {
                let share: f64 = rules.weights.iter().map(|weight| weight.share).sum();
                assert!(share == 0.0 || (share - 1.0).abs() < 1e-6, "{share}");
                assert!(rules.limits.iter().all(|limit| !limit.reason.contains('%')));
            }
        }
    }
}
