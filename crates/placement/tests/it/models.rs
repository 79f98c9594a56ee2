//! Our own policy's decisions: estimates, scoring models, node pools, namespaces, and what is done without a reading.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::estimate::EstimateRules;
use placement::load::{
    ByOtherNodes, CpuUse, Evaluation, KeptNodes, LimitOutcome, MetricTable, NodeLoad, Pairing,
    PodKind, PodToPlace, Readings, ResolvedPolicy, Verdict,
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
        scoring: Scoring {
            model,
            direction: Direction::Spread,
            scale: Scale::Hundred,
            pairing: 0.0,
            keep_for_large: 0.0,
        },
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
fn the_dominant_resource_decides() {
    let case = Case::new(policy(Model::DominantResource), &READINGS);
    // CPU (0.3 + 0.5) ÷ 2, memory 0.2, whatever memory weighs.
    assert_eq!(case.score(PodToPlace::ORDINARY), 60);
    // With the pod: CPU 0.5, memory 0.7.
    assert_eq!(case.score(using(1.0, 50.0)), 30);
}

fn paired(pairing: Pairing) -> ByOtherNodes {
    ByOtherNodes { pairing, ..ByOtherNodes::NOTHING }
}

/// As readings are 40% of CPU and 20% of memory on 10 cores, of which pods request `requested`; requests use half on
/// average.
fn paired_score(requested: Option<f64>, part: f64, uses: f64) -> u8 {
    let mut case = Case::new(policy(Model::Learned), &READINGS);
    case.node.requested_cpu = requested;
    let pairing = Pairing { average: 0.5, part, requested: 2.0 };
    case.score(PodToPlace { by_other_nodes: paired(pairing), ..using(uses, 0.0) })
}

#[test]
fn a_pod_avoids_surplus_or_seeks_it_by_what_it_uses_of_its_request() {
    // 0.5 used with the pod, 0.4 expected of requests of 0.8: 0.05 or −0.05 beside the load.
    assert_eq!((paired_score(Some(6.0), 0.5, 1.0), paired_score(Some(6.0), -0.5, 1.0)), (45, 55));
    // 0.2 expected of 0.4, and 0.6 of 1.2.
    assert_eq!((paired_score(Some(2.0), 0.5, 1.0), paired_score(Some(10.0), 0.5, 1.0)), (35, 55));
    // Of a pod of average use, and on a node of which requests are not known, the load counts alone.
    assert_eq!((paired_score(Some(2.0), 0.0, 1.0), paired_score(None, 0.5, 1.0)), (50, 50));
}

#[test]
fn a_node_that_is_kept_for_large_pods_counts_as_loaded_for_others() {
    let mut case = Case::new(policy(Model::Learned), &READINGS);
    case.node.requested_cpu = Some(2.0);
    let score = |below: f64, cores: f64, memory: f64| {
        let kept = KeptNodes { below };
        let by_other_nodes = ByOtherNodes { kept, ..ByOtherNodes::NOTHING };
        let evaluation = case.evaluation(PodToPlace { by_other_nodes, ..using(cores, memory) });
        let decision = evaluation.decide();
        assert_eq!(decision.score, evaluation.score());
        (decision.score.get(), decision.counts_as)
    };
    // Of 10 cores 4 are in use.
    assert_eq!(score(0.5, 1.0, 0.0), (35, Some(0.65)));
    assert_eq!(score(0.4, 1.0, 0.0), (50, None));
    // A large pod, and memory that is more loaded.
    assert_eq!(score(0.5, 2.5, 0.0), (35, None));
    assert_eq!(score(0.5, 1.0, 70.0), (10, Some(0.65)));
}

#[test]
fn a_kept_node_that_is_more_loaded_with_the_pod_counts_with_its_load() {
    let readings = [("cpu_usage_avg_5m", 0.6, SignedDuration::ZERO), READINGS[1], READINGS[2]];
    let mut case = Case::new(policy(Model::Learned), &readings);
    case.node.requested_cpu = Some(2.0);
    let kept = KeptNodes { below: 0.9 };
    let pairing = Pairing { average: 0.0, part: 0.5, requested: 2.0 };
    let pod =
        |pairing| PodToPlace { by_other_nodes: ByOtherNodes { pairing, kept }, ..using(2.0, 0.0) };
    // (0.6 + 0.5) ÷ 2 and 0.2 of the pod; a surplus is on top.
    assert_eq!(case.evaluation(pod(Pairing::NONE)).counts_as(), None);
    assert_eq!(case.score(pod(Pairing::NONE)), 25);
    assert_eq!(case.score(pod(pairing)), 0);
}

#[test]
fn pods_on_their_way_to_a_node_count_with_what_they_request() {
    let mut case = Case::new(policy(Model::Learned), &READINGS);
    case.node.requested_cpu = Some(2.0);
    let recent = Arc::make_mut(&mut case.node.recent);
    recent.in_flight(&"on its way".into(), now(), Amounts::default(), 4.0);
    let pairing = Pairing { average: 0.5, part: 0.5, requested: 2.0 };
    assert_eq!(
        case.score(PodToPlace { by_other_nodes: paired(pairing), ..using(1.0, 0.0) }),
        paired_score(Some(6.0), 0.5, 1.0)
    );
    assert_eq!(case.evaluation(PodToPlace::ORDINARY).cpu_use().requested, 6.0);
}

#[test]
fn no_surplus_makes_the_other_resource_count_less() {
    // CPU 0.4 − 0.5 · (1.0 − 0.4): memory decides.
    assert_eq!(paired_score(Some(18.0), 0.5, 0.0), 80);
}

#[test]
fn what_is_not_known_of_a_nodes_cpu_is_no_surplus() {
    let readings = [("cpu_usage_avg_5m", 0.3, SignedDuration::ZERO), READINGS[2]];
    let mut case = Case::new(policy(Model::Learned), &readings);
    case.node.requested_cpu = Some(2.0);
    let pairing = Pairing { average: 0.5, part: 0.5, requested: 2.0 };
    let pod = PodToPlace { by_other_nodes: paired(pairing), ..using(1.0, 0.0) };
    // Half of it counts as full: (0.4 + 1) ÷ 2.
    assert_eq!((case.score(pod), case.score(using(1.0, 0.0))), (30, 30));
    assert_eq!(case.evaluation(pod).surplus(), None);
    assert_eq!(case.evaluation(pod).cpu_use(), CpuUse::default());
}

#[test]
fn packing_prefers_the_fuller_node_and_never_one_that_would_be_over_full() {
    let mut packed = policy(Model::DominantResource);
    packed.scoring.direction = Direction::Pack;
    let case = Case::new(packed, &READINGS);
    assert_eq!((case.score(using(1.0, 0.0)), case.score(using(7.0, 0.0))), (50, 0));
}

#[test]
fn target_load_packing_is_best_at_its_target() {
    let mut at_target = policy(Model::TargetLoadPacking { target: 0.4 });
    at_target.weights = vec![weight("cpu_usage_avg_5m", 1.0)];
    let case = Case::new(at_target, &READINGS);
    // 60·0.3 ÷ 0.4 + 40 = 85; at 0.4 100; at 0.7 40·0.3 ÷ 0.6 = 20; above 1 nothing.
    let scores = [0.0, 1.0, 4.0, 8.0].map(|cpu| case.score(using(cpu, 0.0)));
    assert_eq!(scores, [85, 100, 20, 0]);
}

#[test]
fn variation_risk_counts_the_deviation_of_the_worst_resource() {
    let mut risk = policy(Model::VariationRisk { margin: 1.0, sensitivity: 1.0 });
    risk.weights = vec![weight("cpu_usage_avg_15m", 1.0), weight("cpu_usage_stddev_15m", 1.0)];
    let fresh = SignedDuration::ZERO;
    let readings = [("cpu_usage_avg_15m", 0.4, fresh), ("cpu_usage_stddev_15m", 0.2, fresh)];
    let case = Case::new(risk, &readings);
    // 1 − (0.4 + 0.2) ÷ 2.
    assert_eq!(case.score(PodToPlace::ORDINARY), 70);
    assert_eq!(case.score(using(2.0, 0.0)), 60);
}

#[test]
fn pods_that_no_reading_shows_count_in_limits_and_scores() {
    let mut case = Case::new(policy(Model::DominantResource), &READINGS);
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
    let mut without = policy(Model::DominantResource);
    without.estimates = None;
    let without = Case { node: case.node.clone(), ..Case::new(without, &READINGS) };
    assert_eq!(without.score(using(1.0, 0.0)), 60);
}

#[test]
fn a_pod_counts_less_as_a_metrics_own_window_sees_it() {
    let mut case = Case::new(policy(Model::DominantResource), &READINGS);
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
    let mut policy = policy(Model::DominantResource);
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

fn packed(model: Model, unknown: Unknown) -> u8 {
    let mut packed = policy(model);
    packed.scoring.direction = Direction::Pack;
    packed.weights = vec![weight("cpu_usage_avg_5m", 1.0), weight("mem_usage_avg_5m", 1.0)];
    packed.weights[0].when_stale = unknown;
    let readings =
        [("cpu_usage_avg_5m", 0.3, 8 * MINUTE), ("mem_usage_avg_5m", 0.9, SignedDuration::ZERO)];
    Case::new(packed, &readings).score(PodToPlace::ORDINARY)
}

fn packed_with_each(model: Model) -> [u8; 3] {
    [Unknown::Ignore, Unknown::Penalise, Unknown::Reject].map(|unknown| packed(model, unknown))
}

#[test]
fn packing_takes_a_penalised_metric_for_one_that_is_over_full() {
    assert_eq!(packed_with_each(Model::DominantResource), [90, 0, 0]);
    assert_eq!(packed_with_each(Model::CraneLinear), [90, 45, 45]);
}

fn score_in_units_of(model: Model, unit: f64) -> u8 {
    let mut policy = policy(model);
    policy.weights.iter_mut().for_each(|weight| weight.weight *= unit);
    Case::new(policy, &READINGS).score(PodToPlace::ORDINARY)
}

#[test]
fn weights_whose_sum_is_beyond_all_numbers_count_by_their_ratios() {
    for model in [Model::CraneLinear, Model::DominantResource] {
        assert_eq!(score_in_units_of(model, 5e307), score_in_units_of(model, 1.0), "{model:?}");
    }
}

#[test]
fn a_node_of_which_nothing_is_known_scores_0_in_every_model() {
    for model in [
        Model::CraneLinear,
        Model::TargetLoadPacking { target: 0.4 },
        Model::VariationRisk { margin: 1.0, sensitivity: 1.0 },
        Model::DominantResource,
        Model::Learned,
    ] {
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
    let mut pooled = policy(Model::DominantResource);
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
    let mut bound = policy(Model::DominantResource);
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
    let mut exempting = policy(Model::DominantResource);
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
    let mut two = policy(Model::DominantResource);
    two.limits.push(limit("mem_usage_avg_5m", 0.1));
    assert_eq!(
        Case::new(two.clone(), &READINGS).evaluation(PodToPlace::ORDINARY).limit_ratio(),
        2.0
    );
    assert_eq!(Case::new(two, &[]).evaluation(PodToPlace::ORDINARY).limit_ratio(), f64::INFINITY);
}

fn limit_ratio(readings: &[(&str, f64, SignedDuration)], unknown: Unknown) -> f64 {
    let mut two = policy(Model::DominantResource);
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
    let mut none = policy(Model::DominantResource);
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
    joined(age, policy(Model::DominantResource), &[])
}

fn score_of_one_core(case: &Case) -> u8 {
    case.score(using(1.0, 0.0))
}

#[test]
fn a_node_that_has_just_joined_scores_by_what_its_pods_will_use_until_it_is_measured() {
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
    let measured = joined(MINUTE, policy(Model::DominantResource), &READINGS[..1]);
    assert_eq!(score_of_one_core(&measured), 0);
    // Crane's kind estimates nothing.
    let without = LoadPolicy { estimates: None, ..policy(Model::DominantResource) };
    assert_eq!(score_of_one_core(&joined(MINUTE, without, &[])), 0);
}

#[test]
fn a_metric_that_cannot_be_estimated_is_left_out_of_the_score_of_a_node_that_has_just_joined() {
    let mut with_disk = policy(Model::DominantResource);
    with_disk.weights.push(weight("disk_usage_avg_5m", 1.0));
    assert_eq!(joined(MINUTE, with_disk.clone(), &[]).score(PodToPlace::ORDINARY), 60);
    assert_eq!(joined(6 * MINUTE, with_disk, &[]).score(PodToPlace::ORDINARY), 0);
    let mut linear = policy(Model::CraneLinear);
    linear.weights = vec![weight("cpu_usage_avg_5m", 1.0), weight("load_usage_avg_5m", 1.0)];
    assert_eq!(joined(MINUTE, linear, &[]).score(PodToPlace::ORDINARY), 60);
}

#[test]
fn no_limit_rejects_a_node_for_what_its_pods_will_probably_use() {
    let mut low = policy(Model::DominantResource);
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
    let mut policy = policy(Model::DominantResource);
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
