//! What pods declare of network and disk, as limits and scores count it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::demand::{PerDemand, Rates};
use placement::load::{
    DeclaredPods, Evaluation, LimitOutcome, MetricTable, NodeLoad, PodKind, PodToPlace, Readings,
    RecentPods, ResolvedPolicy, Verdict,
};
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::units::Ratio;

const OF_CPU_TOO: &str = "{name: cpu_busy_avg_5m, period: 1m, limit: 0.8, weight: 1}, ";
const SPEED: &str = "{name: network_speed_bytes_active, period: 1m}, ";
const SENT: &str = "{name: network_transmit_bytes_avg_5m, period: 1m}, ";
/// Bytes a second.
const LINK: f64 = 1e9;

fn now() -> Timestamp {
    "2026-11-20T09:10:00Z".parse().unwrap()
}

fn yaml(metrics: &str, demand: &str) -> String {
    format!(
        "{{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, spec: {{metrics: [{metrics}], demand: {demand}}}}}"
    )
}

fn refusal(metrics: &str, demand: &str) -> String {
    LoadPolicy::from_yaml(&yaml(metrics, demand)).unwrap_err().to_string()
}

fn sends(egress: u64) -> Rates {
    Rates { egress, ..Rates::NONE }
}

fn pod(egress: u64) -> PodToPlace<'static> {
    PodToPlace { declares: sends(egress), ..PodToPlace::ORDINARY }
}

struct Case {
    policy: ResolvedPolicy,
    node: NodeLoad,
}

impl Case {
    /// A node whose pods declare these bytes a second of egress, with readings.
    fn new(metrics: &str, demand: &str, pods: &[u64], readings: &[(&str, f64)]) -> Self {
        let policy = LoadPolicy::from_yaml(&yaml(metrics, demand)).unwrap();
        let mut table = MetricTable::default();
        let policy = ResolvedPolicy::new(policy, &mut table);
        let readings = readings.iter().map(|(name, value)| {
            ((*name).into(), Reading::new(Ratio::new(*value).unwrap(), now()))
        });
        let mut declared = DeclaredPods::default();
        for (key, egress) in (1..).zip(pods) {
            let started_at = now() - SignedDuration::from_hours(1);
            declared.set(key, sends(*egress), Some(started_at));
        }
        let node = NodeLoad {
            readings: Arc::new(Readings::new(&mut table, readings)),
            declared: Some(Arc::new(declared)),
            ..NodeLoad::default()
        };
        Self { policy, node }
    }

    /// The same node with an annotation of its egress.
    fn annotated(self, egress: f64) -> Self {
        let speeds = PerDemand { egress: Some(egress as u64), ..PerDemand::default() };
        Self { node: NodeLoad { speeds, ..self.node }, ..self }
    }

    fn evaluation<'a>(&'a self, pod: PodToPlace<'a>) -> Evaluation<'a, 'a> {
        Evaluation { policy: &self.policy, node: &self.node, pod, now: now() }
    }

    fn accepts(&self, egress: u64) -> bool {
        self.evaluation(pod(egress)).verdict() == Verdict::Accepted
    }
}

const LIMITED: &str = "{egress: {limit: 0.8}}";

#[test]
fn a_node_takes_pods_up_to_what_its_pods_may_declare() {
    let case = Case::new("", LIMITED, &[300_000_000, 200_000_000], &[]).annotated(LINK);
    assert!(case.accepts(300_000_000) && !case.accepts(300_000_001));
    let rejected = case.evaluation(pod(400_000_000)).decide();
    let reason = "Load[egress_demand] is too high, over 0.8 (see: kubectl plimsoll explain pod)";
    assert_eq!(rejected.reasons().collect::<Vec<_>>(), [reason]);
    assert_eq!(rejected.limits[0].load.value(), Some(0.9));
    // Other demands of the pod do not count.
    let declares = Rates { ingress: 900_000_000, ..Rates::NONE };
    let receiver = PodToPlace { declares, ..PodToPlace::ORDINARY };
    assert_eq!(case.evaluation(receiver).verdict(), Verdict::Accepted);
}

#[test]
fn what_others_declare_concerns_no_pod_that_declares_nothing() {
    let demand = "{egress: {limit: 0.8, weight: 1}}";
    let full = Case::new(OF_CPU_TOO, demand, &[5_000_000_000], &[("cpu_busy_avg_5m", 0.3)])
        .annotated(LINK);
    let empty = Case::new(OF_CPU_TOO, demand, &[], &[("cpu_busy_avg_5m", 0.3)]).annotated(LINK);
    let decisions = [&full, &empty].map(|case| case.evaluation(PodToPlace::ORDINARY).decide());
    assert_eq!(decisions[0], decisions[1]);
    assert_eq!((decisions[0].score.get(), decisions[0].limits.len()), (70, 1));
    assert_eq!(full.evaluation(PodToPlace::ORDINARY).limit_ratio(), 0.3 / 0.8);
    // Nor is a node hot by what its pods declare.
    assert_eq!(full.evaluation(pod(1_000)).measured_limit_ratio(), Some(0.3 / 0.8));
    assert!(!full.accepts(1_000) && empty.accepts(1_000));
}

#[test]
fn a_pod_takes_one_nodes_room_at_most_whatever_it_declares() {
    let case = Case::new("", "{egress: {limit: 1.5}}", &[125_000_000_000_000], &[]).annotated(LINK);
    assert!(case.accepts(500_000_000) && !case.accepts(500_000_001));
}

#[test]
fn a_node_of_unknown_speed_or_unknown_pods_is_not_judged() {
    let demand = "{egress: {limit: 0.8, weight: 1}}";
    let metrics = format!("{OF_CPU_TOO}{SPEED}");
    let cpu = ("cpu_busy_avg_5m", 0.3);
    let unknown = Case::new(&metrics, demand, &[5_000_000_000], &[cpu]);
    let decision = unknown.evaluation(pod(1_000_000_000)).decide();
    assert_eq!((decision.verdict, decision.score.get()), (Verdict::Accepted, 70));
    assert_eq!(decision.limits[1].outcome, LimitOutcome::Unknown);
    let mut unlisted = Case::new(&metrics, demand, &[], &[cpu]).annotated(LINK);
    unlisted.node.declared = None;
    assert!(unlisted.accepts(5_000_000_000));
    // The exporter's speed counts, and an annotation instead of it.
    let readings = [cpu, ("network_speed_bytes_active", LINK / 100.0)];
    let measured = Case::new(&metrics, demand, &[500_000_000], &readings);
    assert!(measured.accepts(300_000_000) && !measured.accepts(400_000_000));
    assert!(!measured.annotated(LINK / 2.0).accepts(1_000));
}

#[test]
fn the_larger_of_declared_and_measured_counts() {
    let demand = "{egress: {limit: 0.8, measured: network_transmit_bytes_avg_5m}}";
    let case = |sent: f64| {
        let readings = [("network_transmit_bytes_avg_5m", sent * LINK / 100.0)];
        Case::new(SENT, demand, &[400_000_000], &readings).annotated(LINK)
    };
    let load = |case: &Case| case.evaluation(pod(100_000_000)).decide().limits[0].load.value();
    assert_eq!(load(&case(0.1)), Some(0.5));
    assert_eq!(load(&case(0.75)), Some(0.85));
    // Of a pod that has not started, the measurement shows nothing.
    let mut young = case(0.1);
    let mut declared = DeclaredPods::default();
    declared.set(1, sends(400_000_000), None);
    young.node.declared = Some(Arc::new(declared));
    assert_eq!(load(&young), Some(0.6));
}

#[test]
fn a_pod_in_flight_counts_until_its_node_has_it_or_it_expires() {
    let mut case = Case::new("", LIMITED, &[300_000_000], &[]).annotated(LINK);
    let uid = "on its way".into();
    let mut recent = RecentPods::default();
    recent.declared(&uid, now(), sends(400_000_000));
    case.node.recent = Arc::new(recent.clone());
    assert!(case.accepts(100_000_000) && !case.accepts(200_000_000));
    let later = Evaluation {
        now: now() + SignedDuration::from_mins(1),
        ..case.evaluation(pod(200_000_000))
    };
    assert_eq!(later.verdict(), Verdict::Accepted);
    // Its binding is known before its node's pods have it.
    recent.bound(&uid, now(), Default::default(), SignedDuration::from_mins(5));
    case.node.recent = Arc::new(recent.clone());
    assert!(!case.accepts(200_000_000) && recent.has_in_flight(&uid));
    assert!(recent.forget_declared(&uid) && !recent.has_in_flight(&uid));
}

#[test]
fn scores_go_by_the_room_that_is_left() {
    let demand = "{egress: {weight: 1}}";
    let score = |pods: &[u64]| {
        let case = Case::new(OF_CPU_TOO, demand, pods, &[("cpu_busy_avg_5m", 0.3)]);
        case.annotated(LINK).evaluation(pod(100_000_000)).score().get()
    };
    assert_eq!((score(&[]), score(&[500_000_000]), score(&[950_000_000])), (70, 40, 0));
}

#[test]
fn a_node_that_is_not_measured_is_not_the_least_loaded_for_what_its_pods_declare() {
    let case = Case::new(OF_CPU_TOO, LIMITED, &[], &[]).annotated(LINK);
    assert_eq!(case.evaluation(pod(1_000)).limit_ratio(), f64::INFINITY);
    let alone = Case::new("", LIMITED, &[], &[]).annotated(LINK);
    assert_eq!(alone.evaluation(pod(400_000_000)).limit_ratio(), 0.5);
}

#[test]
fn pods_of_daemonsets_are_exempt_from_the_limits_of_demands_too() {
    let case = Case::new("", LIMITED, &[900_000_000], &[]).annotated(LINK);
    let daemon = PodToPlace { kind: PodKind::Daemon, ..pod(100_000_000) };
    assert_eq!(case.evaluation(daemon).decide().limits[0].outcome, LimitOutcome::Exempt);
}

#[test]
fn faults_name_the_field_and_what_to_do() {
    for (metrics, demand, expected) in [
        (
            "",
            "{egress: {}}",
            "spec.demand.egress: expected a `limit`, or a `weight` above 0, found neither",
        ),
        ("", "{egress: {limit: 0}}", "spec.demand.egress.limit: expected a fraction above 0"),
        (
            "",
            "{diskRead: {weight: -1}}",
            "spec.demand.diskRead.weight: expected a number of at least 0",
        ),
        ("", "{disk: {weight: 1}}", "unknown field `disk`"),
        (
            "",
            "{egress: {limit: 1, measured: network_transmit_bytes_avg_5m}}",
            "spec.demand.egress.measured: spec.metrics has no `network_transmit_bytes_avg_5m` with a period: add it there",
        ),
        (
            "{name: network_usage_avg_5m, period: 1m}",
            "{egress: {limit: 1, measured: network_usage_avg_5m}}",
            "expected a metric of the signal `network_transmit_bytes` that shows what is used, such as `network_transmit_bytes_avg_5m`",
        ),
        (
            "{name: egress_demand, period: 1m}",
            "{}",
            "spec.metrics[0].name: `egress_demand` is not fetched: remove it, and set `spec.demand.egress`",
        ),
    ] {
        let found = refusal(metrics, demand);
        assert!(found.starts_with("line 1: ") && found.contains(expected), "{found}");
    }
}
