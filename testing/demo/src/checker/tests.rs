//! Each thing that must not happen is counted, and what may happen is not.

use super::*;
use serde_json::json;
use sim::scheduler::Candidate;

use crate::model::pods::{daemon, gpu, plain};

const GPU: &str = "GPU-07005a1e-c0de-4000-8000-000000070000";

/// A checker, with the true CPU load of cpu-1.
fn checker(cpu: f64) -> (Checker, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let loads = Loads::new(root.path(), false).unwrap();
    loads.set_cpu("cpu-1", cpu);
    (Checker::new(loads), root)
}

fn pod(mut pod: Value, node: &str, phase: &str) -> Value {
    pod["metadata"]["uid"] = pod["metadata"]["name"].clone();
    pod["spec"]["nodeName"] = node.into();
    pod["status"]["phase"] = phase.into();
    pod
}

fn pod_with_claim(name: &str, units: u64) -> Value {
    let mut pod = pod(gpu(name, &[units]), "gpu-1", "Running");
    let claim = json!({"main-0": {GPU: units}}).to_string();
    pod["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-claim": claim});
    pod
}

fn process(name: &str, device: &str) -> ProcessEvent {
    let env = [("NVIDIA_VISIBLE_DEVICES", "void"), ("PLIMSOLL_GPU_UUID", GPU)];
    ProcessEvent::Started(Process {
        node: "gpu-1".to_owned(),
        uid: name.to_owned(),
        pod: name.to_owned(),
        container: "main-0".to_owned(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        devices: vec![device.to_owned()],
    })
}

#[test]
fn a_gpu_that_is_promised_twice_is_counted_in_mib() {
    let (mut checker, _root) = checker(0.2);
    checker.pod_applied(&pod_with_claim("a", 10), Instant::now());
    assert_eq!(checker.counts().double_booked_mib, 0);
    checker.pod_applied(&pod_with_claim("b", 9), Instant::now());
    assert_eq!(checker.counts().double_booked_mib, 3 * 1024);
}

#[test]
fn a_container_that_sees_another_gpu_is_counted() {
    let (mut checker, _root) = checker(0.2);
    let pod = pod_with_claim("a", 10);
    checker.process(&process("a", "/dev/nvidia0"), Some(&pod));
    assert_eq!(checker.counts().gpu_mismatches, 0);
    checker.process(&process("a", "/dev/nvidia1"), Some(&pod));
    assert_eq!(checker.counts().gpu_mismatches, 1);
}

/// The overload of cpu-2 is a minute old when the demo begins; that of `this-host` is known by its annotations only.
#[test]
fn a_pod_on_a_node_that_is_overloaded_in_truth_or_by_its_annotations_is_counted() {
    let (mut checker, _root) = checker(0.2);
    let now = Instant::now();
    checker.pod_applied(&pod(plain("a"), "cpu-2", "Pending"), now);
    assert_eq!(checker.counts().hot_node_placements, 1);
    checker.node_applied(&node("this-host", "0.9"), now);
    checker.pod_applied(&pod(plain("b"), "this-host", "Pending"), now + DELIVERY);
    assert_eq!(checker.counts().hot_node_placements, 1);
    checker.pod_applied(&pod(plain("c"), "this-host", "Pending"), now + DELIVERY * 2);
    assert_eq!(checker.counts().hot_node_placements, 2);
    checker.node_applied(&node("this-host", "0.2"), now);
    checker.pod_applied(&pod(plain("d"), "this-host", "Pending"), now + DELIVERY * 3);
    assert_eq!(checker.counts().hot_node_placements, 2);
}

#[test]
fn a_node_between_the_limits_of_two_policies_is_overloaded_under_the_stricter_one_alone() {
    for (policy, expected) in [(Policy::Shipped, 0), (Policy::Crane, 1)] {
        let (mut checker, _root) = checker(0.2);
        let now = Instant::now();
        checker.loads.set_policy(policy);
        checker.node_applied(&node("this-host", "0.72"), now);
        checker.pod_applied(&pod(plain("a"), "this-host", "Pending"), now + DELIVERY * 2);
        assert_eq!(checker.counts().hot_node_placements, expected, "{policy:?}");
    }
}

fn node(name: &str, cpu: &str) -> Value {
    let reading = format!("{cpu},2026-01-01T00:00:00Z");
    json!({"metadata": {"name": name, "annotations": {"cpu_shared_busy_active": reading}}})
}

#[test]
fn a_pod_of_a_daemon_set_may_be_on_its_own_overloaded_node_and_on_no_other() {
    let (mut checker, _root) = checker(0.2);
    checker.pod_applied(&pod(daemon("a", "cpu-2"), "cpu-2", "Running"), Instant::now());
    assert_eq!((checker.counts().hot_node_placements, checker.findings.len()), (0, 0));
    checker.pod_applied(&pod(daemon("b", "cpu-1"), "cpu-2", "Running"), Instant::now());
    assert_eq!(checker.findings, ["b of a DaemonSet was placed on cpu-2"]);
}

#[test]
fn a_pod_that_is_placed_by_no_points_is_reported() {
    let (mut checker, _root) = checker(0.2);
    checker.decided(&decision_with(30));
    assert_eq!(checker.findings.len(), 0);
    checker.decided(&decision_with(0));
    let expected = ["web-1 was placed though no node had a point for its load"];
    assert_eq!(checker.findings, expected);
    checker.loads.set_policy(Policy::Crane);
    checker.decided(&decision_with(0));
    assert_eq!(checker.findings.len(), 1);
}

fn candidate(node: &str, points: i64) -> Candidate {
    Candidate { node: node.to_owned(), verdict: Verdict::Fits, score: 7, extender_score: points }
}

fn decision_with(points: i64) -> Decision {
    Decision {
        uid: "u".to_owned(),
        pod: "web-1".to_owned(),
        outcome: Ok("a".to_owned()),
        candidates: vec![candidate("a", 0), candidate("b", points)],
    }
}

#[test]
fn a_pod_that_did_not_run_or_ended_is_named() {
    let (mut checker, _root) = checker(0.2);
    let now = Instant::now();
    checker.pod_applied(&pod(plain("ran"), "cpu-1", "Running"), now);
    checker.pod_applied(&pod(plain("big"), "", "Pending"), now);
    assert_eq!(checker.unfinished(2, "big"), Vec::<String>::new());
    assert_eq!(checker.unfinished(3, "big"), ["3 pods were made, 2 were seen"]);
    checker.pod_applied(&pod(plain("slow"), "cpu-1", "Pending"), now);
    checker.process(&ProcessEvent::Ended { uid: "ran".to_owned() }, None);
    checker.pod_applied(&pod(plain("big"), "gpu-1", "Pending"), now);
    let expected = [
        "big was placed, on gpu-1",
        "ran ended on cpu-1, though it was not deleted",
        "slow is on cpu-1 and did not run",
    ];
    assert_eq!(checker.unfinished(3, "big"), expected);
}

#[test]
fn at_the_end_pods_that_were_refused_or_wait_for_too_long_are_reported() {
    let (mut checker, _root) = checker(0.2);
    let now = Instant::now();
    for (name, node, phase) in [
        ("big", "", "Pending"),
        ("deleted", "", "Pending"),
        ("refused", "cpu-1", "Failed"),
        ("runs", "cpu-1", "Running"),
        ("made-by-a-user", "", "Pending"),
        ("stuck", "", "Pending"),
    ] {
        checker.pod_applied(&pod(plain(name), node, phase), now);
    }
    checker.pod_deleted(&pod(plain("deleted"), "", "Pending"));
    let made: BTreeSet<String> =
        ["big", "deleted", "refused", "runs", "stuck"].map(str::to_owned).into();
    checker.check_at_end(&made, "big", now + START_LIMIT);
    assert_eq!(checker.findings, ["refused was refused by cpu-1: "]);
    checker.findings.clear();
    checker.check_at_end(&made, "big", now + START_LIMIT * 2);
    let expected = ["refused was refused by cpu-1: ", "stuck is on no node and did not run"];
    assert_eq!(checker.findings, expected);
}

#[test]
fn a_pod_on_a_node_that_the_extender_rejects_is_counted_at_once() {
    let (mut checker, _root) = checker(0.2);
    let now = Instant::now();
    checker.node_applied(&node("cpu-1", "0.9"), now);
    checker.pod_applied(&pod(plain("a"), "cpu-1", "Pending"), now);
    assert_eq!(checker.counts().hot_node_placements, 0);
    assert!(checker.extender_rejects("cpu-1"));
    checker.pod_applied(&pod(plain("b"), "cpu-1", "Pending"), now);
    assert_eq!(checker.counts().hot_node_placements, 1);
    checker.node_applied(&node("cpu-1", "0.3"), now);
    assert!(!checker.extender_rejects("cpu-1"));
    checker.pod_applied(&pod(plain("c"), "cpu-1", "Pending"), now);
    assert_eq!(checker.counts().hot_node_placements, 1);
}

#[test]
fn a_running_pod_is_seen_once_its_version_and_each_start_are() {
    let (mut checker, _root) = checker(0.2);
    let mut pod = pod_with_claim("a", 10);
    pod["metadata"]["resourceVersion"] = "7".into();
    assert!(!checker.has_seen(&pod));
    checker.pod_applied(&pod, Instant::now());
    assert!(!checker.has_seen(&pod));
    checker.process(&process("a", "/dev/nvidia0"), Some(&pod));
    assert!(checker.has_seen(&pod));
    pod["metadata"]["resourceVersion"] = "8".into();
    assert!(!checker.has_seen(&pod));
}
