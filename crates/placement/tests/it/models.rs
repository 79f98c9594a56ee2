//! Our own policy's decisions: estimates, scoring models, node pools, namespaces, and what is done without a reading.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::estimate::EstimateRules;
use placement::load::{
    Evaluation, LimitOutcome, MetricTable, NodeLoad, PodKind, PodToPlace, Readings, ResolvedPolicy,
    Verdict,
};
use placement::policy::{
    Direction, GpuRules, Limit, LoadPolicy, Model, NamespaceRule, NodePool, Overload, Scale,
    Scoring, Unknown, Weight,
};
use placement::reading::Reading;
use placement::resources::{Amounts, PerResource};
use placement::units::Ratio;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn limit(metric: &str, max: f64) -> Limit {
    let max_age = Some(SignedDuration::from_mins(8));
    let when_stale = Unknown::Ignore;
    let when_missing = Unknown::Ignore;
    Limit { metric: metric.into(), max, max_age, when_stale, when_missing }
}

fn weight(metric: &str, weight: f64) -> Weight {
    let max_age = Some(SignedDuration::from_mins(8));
    let when_stale = Unknown::Penalise;
    let when_missing = Unknown::Penalise;
    Weight { metric: metric.into(), weight, max_age, when_stale, when_missing }
}

fn policy(model: Model) -> LoadPolicy {
    LoadPolicy {
        sync: Vec::new(),
        limits: vec![limit("cpu_usage_avg_5m", 0.8)],
        weights: vec![
            weight("cpu_usage_avg_5m", 1.0),
            weight("cpu_usage_max_avg_1h", 1.0),
            weight("mem_usage_avg_5m", 3.0),
        ],
        hot: Vec::new(),
        scoring: Scoring { model, scale: Scale::HUNDRED, ..Scoring::crane() },
        overload: Overload::crane(),
        estimates: Some(EstimateRules::default()),
        demand: Default::default(),
        pools: Vec::new(),
        namespaces: Vec::new(),
        gpu: GpuRules::default(),
    }
}

/// A node of 10 cores and 100 bytes, with readings of that age.
struct Case {
    policy: ResolvedPolicy,
    node: NodeLoad,
}

impl Case {
    fn new(policy: LoadPolicy, readings: &[(&str, f64, SignedDuration)]) -> Self {
        let mut table = MetricTable::default();
        let policy = ResolvedPolicy::new(policy, &mut table);
        let reading = |(metric, value, age): &(&str, f64, SignedDuration)| {
            ((*metric).into(), Reading::new(Ratio::new(*value).unwrap(), now() - *age))
        };
        let readings = Arc::new(Readings::new(&mut table, readings.iter().map(reading)));
        let capacity = PerResource { cpu: Some(10.0), memory: Some(100.0) };
        Self { policy, node: NodeLoad { readings, capacity, ..NodeLoad::default() } }
    }

    fn evaluation<'a>(&'a self, pod: PodToPlace<'a>) -> Evaluation<'a, 'a> {
        Evaluation { policy: &self.policy, node: &self.node, pod, now: now() }
    }

    fn score(&self, pod: PodToPlace<'_>) -> u8 {
        self.evaluation(pod).score().get()
    }
}

fn using(cpu: f64, memory: f64) -> PodToPlace<'static> {
    PodToPlace { uses: Amounts { cpu, memory }, ..PodToPlace::ORDINARY }
}

const READINGS: [(&str, f64, SignedDuration); 3] = [
    ("cpu_usage_avg_5m", 0.3, SignedDuration::ZERO),
    ("cpu_usage_max_avg_1h", 0.5, SignedDuration::ZERO),
    ("mem_usage_avg_5m", 0.2, SignedDuration::ZERO),
];

#[test]
fn the_most_loaded_resource_decides_where_nothing_is_typical() {
    let case = Case::new(policy(Model::AboveTypical), &READINGS);
    // CPU (0.3 + 0.5) ÷ 2, memory 0.2, whatever memory weighs.
    assert_eq!(case.score(PodToPlace::ORDINARY), 60);
    // With the pod: CPU 0.5, memory 0.7.
    assert_eq!(case.score(using(1.0, 50.0)), 30);
}

#[test]
fn only_what_a_resource_would_be_above_what_is_typical_of_it_costs_points() {
    let case = Case::new(policy(Model::AboveTypical), &READINGS);
    let score =
        |typical: &[f64], cpu, memory| case.score(PodToPlace { typical, ..using(cpu, memory) });
    // CPU is 0.4 and memory 0.2 without the pod.
    assert_eq!(score(&[0.4, 0.2], 0.0, 0.0), 100);
    assert_eq!(score(&[0.7, 0.9], 2.0, 10.0), 100);
    assert_eq!(score(&[0.4, 0.2], 2.0, 10.0), 80);
    // Memory is the fuller resource everywhere, and CPU decides.
    assert_eq!(score(&[0.2, 0.7], 0.0, 50.0), 80);
    assert_eq!(score(&[0.4, 0.1], 0.0, 0.0), 90);
}

#[test]
fn a_node_about_to_be_removed_says_nothing_of_what_is_typical() {
    let mut case = Case::new(policy(Model::AboveTypical), &READINGS);
    let present =
        |case: &Case| [0, 1].map(|group| case.evaluation(using(1.0, 9.0)).present_load(group));
    assert_eq!(present(&case), [Some(0.4), Some(0.2)]);
    case.node.is_to_be_removed = true;
    assert_eq!(present(&case), [None, None]);
}

#[test]
fn packing_prefers_the_fuller_node_and_never_one_that_would_be_over_full() {
    let mut packed = policy(Model::CraneLinear);
    packed.scoring.direction = Direction::Pack;
    packed.weights = vec![weight("cpu_usage_avg_5m", 1.0)];
    let case = Case::new(packed, &READINGS);
    assert_eq!((case.score(using(1.0, 0.0)), case.score(using(7.1, 0.0))), (40, 0));
}

#[test]
fn pods_that_no_reading_shows_count_in_limits_and_scores() {
    let mut case = Case::new(policy(Model::AboveTypical), &READINGS);
    let recent = Arc::make_mut(&mut case.node.recent);
    let uses = Amounts { cpu: 4.0, memory: 0.0 };
    recent.bound(&"new".into(), now(), uses, SignedDuration::from_hours(1));
    // CPU 0.4 + 0.4.
    assert_eq!(case.score(PodToPlace::ORDINARY), 20);
    let verdict = |cpu| case.evaluation(using(cpu, 0.0)).verdict();
    assert_eq!(verdict(1.0), Verdict::Accepted);
    // 0.3 + 0.4 + 0.11 is over 0.8.
    assert!(matches!(verdict(1.1), Verdict::Overloaded(_)));
    // Crane's own kind with a hot value counts no estimates.
    let mut without = policy(Model::AboveTypical);
    without.estimates = None;
    let without = Case { node: case.node.clone(), ..Case::new(without, &READINGS) };
    assert_eq!(without.score(using(1.0, 0.0)), 60);
}

#[test]
fn a_pod_counts_less_as_a_metrics_own_window_sees_it() {
    let mut case = Case::new(policy(Model::AboveTypical), &READINGS);
    let recent = Arc::make_mut(&mut case.node.recent);
    let uses = Amounts { cpu: 4.0, memory: 0.0 };
    // 160 of the 320 s that a mean of 5 minutes takes to show it.
    let bound_at = now() - SignedDuration::from_secs(160);
    recent.bound(&"new".into(), bound_at, uses, SignedDuration::from_hours(1));
    // Its image is still pulled.
    assert_eq!(case.score(PodToPlace::ORDINARY), 20);
    let recent = Arc::make_mut(&mut case.node.recent);
    recent.started(&"new".into(), bound_at);
    assert_eq!(case.score(PodToPlace::ORDINARY), 40);
}

fn with_unknown(unknown: Unknown, age: SignedDuration) -> (LimitOutcome, bool, u8) {
    let mut policy = policy(Model::AboveTypical);
    policy.limits[0].when_stale = unknown;
    policy.weights[0].when_stale = unknown;
    let mut readings = READINGS;
    readings[0].2 = age;
    let case = Case::new(policy, &readings);
    let evaluation = case.evaluation(PodToPlace::ORDINARY);
    let outcome = evaluation.limits().next().unwrap().outcome;
    (outcome, evaluation.verdict() == Verdict::Accepted, evaluation.score().get())
}

#[test]
fn a_metric_without_a_reading_is_left_out_or_penalised_or_rejected() {
    assert_eq!(with_unknown(Unknown::Ignore, 7 * MINUTE), (LimitOutcome::Met, true, 60));
    // CPU is 0.5 alone, or (1 + 0.5) ÷ 2.
    assert_eq!(with_unknown(Unknown::Ignore, 8 * MINUTE), (LimitOutcome::Unknown, true, 50));
    assert_eq!(with_unknown(Unknown::Penalise, 8 * MINUTE), (LimitOutcome::Unknown, true, 25));
    let rejected = LimitOutcome::UnknownRejected;
    assert_eq!(with_unknown(Unknown::Reject, 8 * MINUTE), (rejected, false, 25));
}

fn packed(unknown: Unknown) -> u8 {
    let mut packed = policy(Model::CraneLinear);
    packed.scoring.direction = Direction::Pack;
    packed.weights = vec![weight("cpu_usage_avg_5m", 1.0), weight("mem_usage_avg_5m", 1.0)];
    packed.weights[0].when_stale = unknown;
    let readings =
        [("cpu_usage_avg_5m", 0.3, 8 * MINUTE), ("mem_usage_avg_5m", 0.9, SignedDuration::ZERO)];
    Case::new(packed, &readings).score(PodToPlace::ORDINARY)
}

#[test]
fn packing_takes_a_penalised_metric_for_an_idle_one() {
    let packed = [Unknown::Ignore, Unknown::Penalise, Unknown::Reject].map(packed);
    assert_eq!(packed, [90, 45, 45]);
}

fn score_in_units_of(model: Model, unit: f64) -> u8 {
    let mut policy = policy(model);
    policy.weights.iter_mut().for_each(|weight| weight.weight *= unit);
    Case::new(policy, &READINGS).score(PodToPlace::ORDINARY)
}

#[test]
fn weights_whose_sum_is_beyond_all_numbers_count_by_their_ratios() {
    for model in [Model::CraneLinear, Model::AboveTypical] {
        assert_eq!(score_in_units_of(model, 5e307), score_in_units_of(model, 1.0), "{model:?}");
    }
}

#[test]
fn a_node_of_which_nothing_is_known_scores_0_in_every_model() {
    for model in [Model::CraneLinear, Model::AboveTypical] {
        for unknown in [Unknown::Ignore, Unknown::Penalise, Unknown::Reject] {
            for direction in [Direction::Spread, Direction::Pack] {
                let mut policy = policy(model);
                policy.scoring.direction = direction;
                policy.weights.iter_mut().for_each(|weight| weight.when_missing = unknown);
                let score = Case::new(policy, &[]).score(PodToPlace::ORDINARY);
                assert_eq!(score, 0, "{model:?} {unknown:?} {direction:?}");
            }
        }
    }
}

fn decide(case: &Case) -> (bool, u8) {
    let evaluation = case.evaluation(PodToPlace::ORDINARY);
    (evaluation.verdict() == Verdict::Accepted, evaluation.score().get())
}

#[test]
fn a_pool_has_limits_and_weights_of_its_own() {
    let mut pooled = policy(Model::AboveTypical);
    pooled.pools = vec![NodePool {
        name: "batch".into(),
        selector: "pool=batch".parse().unwrap(),
        limits: vec![limit("cpu_usage_avg_5m", 0.2)],
        weights: vec![weight("mem_usage_avg_5m", 1.0)],
    }];
    let mut case = Case::new(pooled, &READINGS);
    assert_eq!(decide(&case), (true, 60));
    case.node.labels = Arc::new([("pool".to_owned(), "batch".to_owned())].into());
    assert_eq!(decide(&case), (false, 80));
}

fn accepts(case: &Case, namespace: &'static str, kind: PodKind) -> bool {
    let pod = PodToPlace { namespace, kind, ..PodToPlace::ORDINARY };
    let decision = case.evaluation(pod).decide();
    assert_eq!(decision.reasons().count(), usize::from(decision.verdict != Verdict::Accepted));
    decision.verdict == Verdict::Accepted
}

#[test]
fn pods_of_a_namespace_with_nodes_of_its_own_go_there_alone() {
    let mut bound = policy(Model::AboveTypical);
    bound.namespaces =
        vec![NamespaceRule { namespaces: vec!["team-a".into()], nodes: "team=a".parse().unwrap() }];
    let mut case = Case::new(bound, &READINGS);
    assert!(!accepts(&case, "team-a", PodKind::Ordinary));
    assert!(accepts(&case, "team-a", PodKind::Daemon));
    assert!(accepts(&case, "team-b", PodKind::Ordinary));
    case.node.labels = Arc::new([("team".to_owned(), "a".to_owned())].into());
    assert!(accepts(&case, "team-a", PodKind::Ordinary));
}

#[test]
fn pods_of_an_exempt_priority_class_pass_every_limit() {
    let mut exempting = policy(Model::AboveTypical);
    exempting.limits[0].max = 0.1;
    exempting.overload.exempt_priority_classes = vec!["system-node-critical".into()];
    let case = Case::new(exempting, &READINGS);
    let verdict = |priority_class| {
        case.evaluation(PodToPlace { priority_class, ..PodToPlace::ORDINARY }).verdict()
    };
    assert!(matches!(verdict("batch"), Verdict::Overloaded(_)));
    assert_eq!(verdict("system-node-critical"), Verdict::Accepted);
}

#[test]
fn overload_ranks_nodes_by_their_nearest_limit_and_unknown_ones_last() {
    let mut two = policy(Model::AboveTypical);
    two.limits.push(limit("mem_usage_avg_5m", 0.1));
    assert_eq!(
        Case::new(two.clone(), &READINGS).evaluation(PodToPlace::ORDINARY).limit_ratio(),
        2.0
    );
    assert_eq!(Case::new(two, &[]).evaluation(PodToPlace::ORDINARY).limit_ratio(), f64::INFINITY);
}

fn limit_ratio(readings: &[(&str, f64, SignedDuration)], unknown: Unknown) -> f64 {
    let mut two = policy(Model::AboveTypical);
    two.limits.push(limit("gpu_usage_avg_5m", 0.9));
    two.limits[1].when_missing = unknown;
    two.limits[1].when_stale = unknown;
    Case::new(two, readings).evaluation(PodToPlace::ORDINARY).limit_ratio()
}

#[test]
fn overload_is_judged_by_the_limits_that_are_known() {
    let stale = ("gpu_usage_avg_5m", 0.1, 8 * MINUTE);
    for unknown in [Unknown::Ignore, Unknown::Penalise] {
        assert_eq!(limit_ratio(&READINGS[..1], unknown), 0.3 / 0.8, "{unknown:?}");
        assert_eq!(limit_ratio(&[READINGS[0], stale], unknown), 0.3 / 0.8, "{unknown:?}");
        assert_eq!(limit_ratio(&[stale], unknown), f64::INFINITY, "{unknown:?}");
    }
    assert_eq!(limit_ratio(&READINGS[..1], Unknown::Reject), f64::INFINITY);
    assert_eq!(limit_ratio(&[READINGS[0], stale], Unknown::Reject), f64::INFINITY);
    let mut none = policy(Model::AboveTypical);
    none.limits.clear();
    assert_eq!(Case::new(none, &[]).evaluation(PodToPlace::ORDINARY).limit_ratio(), 0.0);
}

/// A node that was created so long ago, on which a pod of 4 cores and 30 bytes was bound since.
fn joined(
    age: SignedDuration,
    policy: LoadPolicy,
    readings: &[(&str, f64, SignedDuration)],
) -> Case {
    let mut case = Case::new(policy, readings);
    case.node.created_at = Some(now() - age);
    let uses = Amounts { cpu: 4.0, memory: 30.0 };
    let recent = Arc::make_mut(&mut case.node.recent);
    recent.bound(&"first".into(), now() - age, uses, SignedDuration::from_hours(1));
    recent.started(&"first".into(), now() - age);
    case
}

fn of_age(age: SignedDuration) -> Case {
    joined(age, policy(Model::AboveTypical), &[])
}

fn score_of_one_core(case: &Case) -> u8 {
    case.score(using(1.0, 0.0))
}

#[test]
fn a_new_node_scores_by_its_pods_estimates_until_it_is_measured() {
    // CPU 0.4 + 0.1.
    assert_eq!(
        (
            score_of_one_core(&of_age(MINUTE)),
            score_of_one_core(&of_age(5 * MINUTE - SignedDuration::from_secs(1)))
        ),
        (50, 50)
    );
    assert_eq!(
        (score_of_one_core(&of_age(5 * MINUTE)), score_of_one_core(&of_age(-2 * MINUTE))),
        (0, 0)
    );
    // What the exporter has served counts, and what it lacks is missing.
    let measured = joined(MINUTE, policy(Model::AboveTypical), &READINGS[..1]);
    assert_eq!(score_of_one_core(&measured), 0);
    // Crane's kind estimates nothing.
    let without = LoadPolicy { estimates: None, ..policy(Model::AboveTypical) };
    assert_eq!(score_of_one_core(&joined(MINUTE, without, &[])), 0);
}

#[test]
fn a_new_nodes_score_leaves_out_metrics_without_an_estimate() {
    let mut with_disk = policy(Model::AboveTypical);
    with_disk.weights.push(weight("disk_usage_avg_5m", 1.0));
    assert_eq!(joined(MINUTE, with_disk.clone(), &[]).score(PodToPlace::ORDINARY), 60);
    assert_eq!(joined(6 * MINUTE, with_disk, &[]).score(PodToPlace::ORDINARY), 0);
    let mut linear = policy(Model::CraneLinear);
    linear.weights = vec![weight("cpu_usage_avg_5m", 1.0), weight("load_usage_avg_5m", 1.0)];
    assert_eq!(joined(MINUTE, linear, &[]).score(PodToPlace::ORDINARY), 60);
}

#[test]
fn no_limit_rejects_a_node_for_what_its_pods_will_probably_use() {
    let mut low = policy(Model::AboveTypical);
    low.limits[0].max = 0.2;
    let case = joined(MINUTE, low.clone(), &[]);
    let evaluation = case.evaluation(PodToPlace::ORDINARY);
    assert_eq!((evaluation.verdict(), evaluation.limit_ratio()), (Verdict::Accepted, 2.0));
    assert_eq!(evaluation.measured_limit_ratio(), None);
    low.limits[0].when_missing = Unknown::Reject;
    let case = joined(MINUTE, low, &[]);
    let evaluation = case.evaluation(PodToPlace::ORDINARY);
    assert!(matches!(evaluation.verdict(), Verdict::Unmeasured(_)));
    assert_eq!(evaluation.limit_ratio(), f64::INFINITY);
}

fn measured_ratio(
    unknown: Unknown,
    limits: &[(&str, f64)],
    readings: &[(&str, f64)],
) -> Option<f64> {
    let mut policy = policy(Model::AboveTypical);
    policy.limits = limits.iter().map(|(metric, max)| limit(metric, *max)).collect();
    policy.limits.iter_mut().for_each(|limit| limit.when_missing = unknown);
    let readings = readings.iter().map(|(metric, value)| (*metric, *value, MINUTE));
    let case = Case::new(policy, &readings.collect::<Vec<_>>());
    case.evaluation(PodToPlace::ORDINARY).measured_limit_ratio()
}

fn measured_ratio_ignoring_unknown(
    limits: &[(&str, f64)],
    readings: &[(&str, f64)],
) -> Option<f64> {
    measured_ratio(Unknown::Ignore, limits, readings)
}

#[test]
fn measured_overload_is_judged_by_the_limits_that_are_measured() {
    let both = [("cpu_usage_avg_5m", 0.8), ("mem_usage_avg_5m", 0.5)];
    let (cpu, memory, full) =
        (("cpu_usage_avg_5m", 0.4), ("mem_usage_avg_5m", 0.1), ("mem_usage_avg_5m", 1.0));
    assert_eq!(measured_ratio_ignoring_unknown(&both, &[cpu, memory]), Some(0.5));
    assert_eq!(
        (
            measured_ratio_ignoring_unknown(&both, &[cpu]),
            measured_ratio_ignoring_unknown(&both, &[full])
        ),
        (Some(0.5), Some(2.0))
    );
    let rejected = |readings: &[_]| measured_ratio(Unknown::Reject, &both, readings);
    assert_eq!((rejected(&[cpu]), rejected(&[full])), (None, Some(2.0)));
    assert_eq!(rejected(&[cpu, memory]), Some(0.5));
    assert_eq!(
        (measured_ratio_ignoring_unknown(&both, &[]), measured_ratio_ignoring_unknown(&[], &[cpu])),
        (None, None)
    );
}

/// An empty node would not do better.
#[test]
fn a_pod_that_alone_is_over_a_limit_is_judged_by_what_else_the_node_carries() {
    let decided = |cpu: f64, load: f64| {
        let case = Case::new(
            policy(Model::CraneLinear),
            &[("cpu_usage_avg_5m", load, SignedDuration::ZERO)],
        );
        let decision = case.evaluation(using(cpu, 0.0)).decide();
        let ratio = case.evaluation(using(cpu, 0.0)).limit_ratio();
        (decision.limits[0].outcome, (ratio * 100.0).round())
    };
    // The limit is 80% of 10 cores.
    assert_eq!(decided(8.0, 0.2), (LimitOutcome::Exceeded, 125.0));
    assert_eq!(decided(8.1, 0.2), (LimitOutcome::MetWithoutPod, 25.0));
    assert_eq!(decided(8.1, 0.9), (LimitOutcome::Exceeded, 113.0));
}
