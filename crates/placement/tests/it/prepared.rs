//! Loads made ready: what follows from them is what follows from the readings, at any time of their span.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::demand::{PerDemand, Rates};
use placement::estimate::EstimateRules;
use placement::load::{
    DeclaredPods, Evaluation, MetricTable, NodeLoad, PodAdds, PodToPlace, PreparedNodes, Readings,
    RecentPods, ResolvedPolicy, Verdict,
};
use placement::policy::{
    DemandRule, DemandRules, Direction, FetchedMetric, GpuRules, HotRule, Limit, LoadPolicy, Model,
    NodePool, Overload, Scale, Scoring, Unknown, Weight,
};
use placement::reading::{HotValueNote, Reading};
use placement::resources::{Amounts, PerResource};
use placement::selector::Labels;
use placement::units::{PodUid, Ratio};
use proptest::prelude::*;

const METRICS: [&str; 6] = [
    "cpu_usage_avg_5m",
    "cpu_usage_stddev_15m",
    "mem_usage_avg_5m",
    "load_usage_avg_5m",
    "network_speed_bytes_active",
    "network_transmit_bytes_avg_5m",
];
/// The metrics with limits and weights.
const RATED: usize = 4;

const MAX_AGE: SignedDuration = SignedDuration::from_mins(8);

fn scoring(model: Model) -> Scoring {
    Scoring { model, scale: Scale::HUNDRED, ..Scoring::crane() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn unknown() -> impl Strategy<Value = Unknown> {
    prop::sample::select(vec![Unknown::Ignore, Unknown::Penalise, Unknown::Reject])
}

fn model() -> impl Strategy<Value = Model> {
    prop::sample::select(vec![Model::CraneLinear, Model::AboveTypical])
}

fn fetched(metric: &str) -> FetchedMetric {
    FetchedMetric { metric: metric.into(), max_age: MAX_AGE }
}

prop_compose! {
    fn demand()(
        limit in prop::option::of(0.1..1.2_f64),
        weight in 0.0..2.0_f64,
        measured in any::<bool>(),
        link_speed in any::<bool>(),
        of_disk in prop::option::of(0.1..1.2_f64),
        on in any::<bool>(),
    ) -> DemandRules {
        let measured = measured.then(|| fetched(METRICS[5]));
        let rules = PerDemand {
            egress: Some(DemandRule { limit, weight, measured }),
            disk_write: of_disk.map(|limit| DemandRule { limit: Some(limit), weight, measured: None }),
            ..PerDemand::default()
        };
        let link_speed = link_speed.then(|| fetched(METRICS[4]));
        if on { DemandRules { rules, link_speed } } else { DemandRules::default() }
    }
}

prop_compose! {
    fn policy()(
        model in model(),
        pack in any::<bool>(),
        estimates in any::<bool>(),
        hot in any::<bool>(),
        rules in prop::collection::vec((0..RATED, 0.1..1.2_f64, unknown(), unknown()), 0..5),
        of_pool in 0..3_usize,
        demand in demand(),
    ) -> LoadPolicy {
        let limits: Vec<_> = rules.iter().map(|(metric, max, when_stale, when_missing)| Limit {
            metric: METRICS[*metric].into(), max: *max, max_age: Some(MAX_AGE), when_stale: *when_stale, when_missing: *when_missing,
        }).collect();
        let weights: Vec<_> = rules.iter().map(|(metric, weight, when_missing, when_stale)| Weight {
            metric: METRICS[*metric].into(), weight: *weight, max_age: Some(MAX_AGE), when_stale: *when_stale, when_missing: *when_missing,
        }).collect();
        let pool = NodePool {
            name: "pool".into(),
            selector: "pool=a".parse().unwrap(),
            limits: limits.iter().skip(of_pool).cloned().collect(),
            weights: weights.iter().skip(of_pool).cloned().collect(),
        };
        LoadPolicy {
            sync: Vec::new(), limits, weights,
            hot: if hot { vec![HotRule { range: SignedDuration::from_mins(5), count: 1 }, HotRule { range: SignedDuration::from_secs(10), count: 2 }] } else { Vec::new() },
            scoring: Scoring { direction: if pack { Direction::Pack } else { Direction::Spread }, ..scoring(model) },
            overload: Overload::crane(),
            estimates: estimates.then(EstimateRules::default),
            demand,
            pools: vec![pool],
            namespaces: Vec::new(),
 gpu: GpuRules::default(),
        }
    }
}

/// A limit of 50% on the first metric.
fn at_half() -> Limit {
    Limit {
        metric: METRICS[0].into(),
        max: 0.5,
        max_age: Some(MAX_AGE),
        when_stale: Unknown::Ignore,
        when_missing: Unknown::Ignore,
    }
}

/// A policy without rules, by crane's model.
fn crane() -> LoadPolicy {
    LoadPolicy {
        sync: Vec::new(),
        limits: Vec::new(),
        weights: Vec::new(),
        hot: Vec::new(),
        scoring: scoring(Model::CraneLinear),
        overload: Overload::crane(),
        estimates: None,
        demand: DemandRules::default(),
        pools: Vec::new(),
        namespaces: Vec::new(),
        gpu: GpuRules::default(),
    }
}

type Pod = (u8, i64, f64);

/// Of a pod that uses so many cores: hundredths of what readings are, in bytes a second.
fn rates(cpu: f64) -> Rates {
    let rate = (cpu * 20.0) as u64;
    Rates { egress: rate, disk_write: rate / 2, ..Rates::NONE }
}

fn declared(pods: &[Pod]) -> DeclaredPods {
    let mut declared = DeclaredPods::default();
    for (key, (kind, age, cpu)) in (0..).zip(pods) {
        match kind {
            0 => declared.set(key, rates(*cpu), None),
            3 => declared.set(key, rates(*cpu), Some(at(-age))),
            _ => false,
        };
    }
    declared
}

fn recent(pods: &[Pod]) -> RecentPods {
    let mut recent = RecentPods::default();
    for (number, (kind, age, cpu)) in pods.iter().enumerate() {
        let uid = PodUid::from(format!("p{number}"));
        let uses = Amounts { cpu: *cpu, memory: *cpu };
        match kind {
            0 => {
                let _ = recent.bound(&uid, at(-age), uses, MAX_AGE);
            }
            3 => {
                let _ = recent.bound(&uid, at(-age - 500), uses, MAX_AGE);
                let _ = recent.started(&uid, at(-age));
            }
            1 => {
                let _ = recent.in_flight(&uid, at(-age), uses);
                recent.declared(&uid, at(-age), rates(*cpu));
            }
            _ => {
                let _ = recent.bound(&uid, at(-age), uses, MAX_AGE);
                let _ = recent.ended(&uid);
            }
        }
    }
    recent
}

/// Readings with their ages, pods, capacity of CPU and what is requested of it, crane's note, whether it is of the
/// pool, and its age.
type Node = (
    Vec<Option<(f64, i64)>>,
    Vec<Pod>,
    (Option<f64>, Option<f64>),
    Option<(f64, i64)>,
    bool,
    Option<i64>,
);

fn node() -> impl Strategy<Value = Node> {
    let reading = prop::option::weighted(0.8, (0.0..1.2_f64, -90..700_i64));
    let pod = (0..4_u8, -120..400_i64, 0.0..3.0_f64);
    let capacity = prop::option::weighted(0.8, prop::sample::select(vec![0.0, 4.0, 10.0]));
    let capacity = (capacity, prop::option::weighted(0.8, 0.0..12.0_f64));
    let note = prop::option::weighted(0.2, (0.0..4.0_f64, -90..400_i64));
    let readings = prop::collection::vec(reading, METRICS.len());
    let none = prop::collection::vec(Just(None), METRICS.len());
    let readings = prop_oneof![3 => readings, 1 => none];
    let age = prop::option::weighted(0.8, -90..400_i64);
    (readings, prop::collection::vec(pod, 0..6), capacity, note, any::<bool>(), age)
}

fn load(
    table: &mut MetricTable,
    (readings, pods, (cpu, requested), note, of_pool, age): &Node,
) -> NodeLoad {
    let reading = |(metric, reading): (&&str, &Option<(f64, i64)>)| {
        let (value, age) = (*reading)?;
        Some(((*metric).into(), Reading::new(Ratio::new(value)?, at(-age))))
    };
    let readings = METRICS.iter().zip(readings).filter_map(reading);
    let pool = of_pool.then(|| ("pool".to_owned(), "a".to_owned()));
    NodeLoad {
        readings: Arc::new(Readings::new(table, readings)),
        recent: Arc::new(recent(pods)),
        crane_hot_value: note.map(|(value, age)| HotValueNote { value, at: at(-age) }),
        capacity: PerResource { cpu: *cpu, memory: Some(100.0) },
        requested_cpu: *requested,
        speeds: PerDemand { disk_write: cpu.map(|cpu| cpu as u64 * 10), ..PerDemand::default() },
        declared: requested.map(|_| Arc::new(declared(pods))),
        labels: Arc::new(pool.into_iter().collect::<Labels>()),
        is_to_be_removed: age.is_some(),
        repels_pods: *of_pool,
        created_at: age.map(|age| at(-age)),
    }
}

fn typical() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0..1.2_f64, 0..5)
}

proptest! {
    #[test]
    fn ready_loads_decide_as_readings_do(
        policy in policy(),
        nodes in prop::collection::vec(node(), 1..4),
        uses in prop::collection::vec((0.0..12.0_f64, typical()), 1..3),
        later in prop::collection::vec(0..700_000_i64, 1..12),
    ) {
        let mut table = MetricTable::default();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
        let nodes: Vec<NodeLoad> = nodes.iter().map(|node| load(&mut table, node)).collect();
        let ready = PreparedNodes::new(&policy, nodes.iter().map(Some), at(0));
        prop_assert!(ready.are_valid(&policy, at(0)));
        let times = later.into_iter().map(|later| at(0) + SignedDuration::from_millis(later));
        for now in [at(0)].into_iter().chain(times) {
            let is_valid = |node: usize| ready.is_valid(&policy, node, now);
            prop_assert_eq!(ready.are_valid(&policy, now), (0..nodes.len()).all(is_valid));
            if ready.are_valid(&policy, now) {
                let each = nodes.iter().map(|node| Evaluation { policy: &policy, node, pod: PodToPlace::ORDINARY, now });
                for (position, node) in each.enumerate() {
                    for group in 0..policy.groups() {
                        prop_assert_eq!(ready.present_load(position, group), node.present_load(group));
                    }
                }
            }
            for (position, node) in nodes.iter().enumerate().filter(|(node, _)| is_valid(*node)) {
                for (cpu, typical) in &uses {
                    let uses = Amounts { cpu: *cpu, memory: *cpu };
                    for declares in [Rates::NONE, rates(*cpu)] {
                        let pod = PodToPlace { uses, declares, typical, ..PodToPlace::ORDINARY };
                        let plain = Evaluation { policy: &policy, node, pod, now };
                        prop_assert_eq!(ready.verdict(&policy, position, &pod.adds()), plain.verdict());
                        prop_assert_eq!(ready.score(&policy, position, &pod.adds(), typical), plain.score());
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn renewed_loads_are_those_of_the_nodes_now(
        policy in policy(),
        nodes in prop::collection::vec((node(), prop::option::weighted(0.3, node())), 1..4),
        cpu in 0.0..12.0_f64,
        typical in typical(),
        steps in prop::collection::vec(-60..400_i64, 1..4),
    ) {
        let mut table = MetricTable::default();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
        let mut loads: Vec<NodeLoad> = nodes.iter().map(|(node, _)| load(&mut table, node)).collect();
        let mut ready = PreparedNodes::new(&policy, loads.iter().map(Some), at(0));
        for (node, (_, other)) in loads.iter_mut().zip(&nodes) {
            if let Some(other) = other {
                *node = load(&mut table, other);
            }
        }
        let mut second = 0;
        let pod = PodAdds { uses: Amounts { cpu, memory: cpu }, declares: rates(cpu) };
        for (step, by) in steps.iter().enumerate() {
            second += by;
            let is_changed = |node: usize| step == 0 && nodes[node].1.is_some();
            ready = ready.renewed(is_changed, |node| loads.get(node), at(second));
            let anew = PreparedNodes::new(&policy, loads.iter().map(Some), at(second));
            prop_assert!(ready.are_valid(&policy, at(second)));
            prop_assert_eq!(ready.all_accept(&pod), anew.all_accept(&pod));
            for (position, group) in (0..loads.len()).flat_map(|node| (0..policy.groups()).map(move |group| (node, group))) {
                prop_assert_eq!(ready.present_load(position, group), anew.present_load(position, group));
            }
            for later in [second, second + 100] {
                prop_assert_eq!(ready.are_valid(&policy, at(later)), anew.are_valid(&policy, at(later)));
            }
            for node in 0..loads.len() {
                prop_assert_eq!(ready.verdict(&policy, node, &pod), anew.verdict(&policy, node, &pod));
                prop_assert_eq!(ready.score(&policy, node, &pod, &typical), anew.score(&policy, node, &pod, &typical));
            }
        }
    }

    #[test]
    fn where_all_accept_each_does(
        policy in policy(),
        nodes in prop::collection::vec(node(), 0..4),
        cpu in 0.0..12.0_f64,
        memory in 0.0..12.0_f64,
    ) {
        let mut table = MetricTable::default();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
        let loads: Vec<NodeLoad> = nodes.iter().map(|node| load(&mut table, node)).collect();
        let ready = PreparedNodes::new(&policy, loads.iter().map(Some), at(0));
        let pod = PodAdds { uses: Amounts { cpu, memory }, declares: rates(cpu) };
        let accepts = |node| ready.verdict(&policy, node, &pod) == Verdict::Accepted;
        prop_assert!(!ready.all_accept(&pod) || (0..loads.len()).all(accepts));
    }
}

#[test]
fn nodes_of_one_pool_with_room_all_accept() {
    let mut table = MetricTable::default();
    let estimates = Some(EstimateRules::default());
    let policy = LoadPolicy { limits: vec![at_half()], estimates, ..crane() };
    let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
    let node = |value, capacity| {
        let readings = vec![Some((value, 0)), None, None, None];
        (readings, Vec::new(), (Some(capacity), None), None, false, None)
    };
    let loads = [load(&mut table, &node(0.3, 4.0)), load(&mut table, &node(0.1, 10.0))];
    let ready = PreparedNodes::new(&policy, loads.iter().map(Some), at(0));
    let uses = |cpu| Amounts { cpu, memory: 0.0 };
    let accept = |cpu| ready.all_accept(&PodAdds { uses: uses(cpu), ..PodAdds::default() });
    assert!(accept(0.79) && !accept(0.81));
}

/// A node that is measured, and from which pods went that its readings still show: what is held against limits is then
/// below what was read.
fn emptied_node() -> impl Strategy<Value = Node> {
    let reading = (0.2..1.2_f64, 0..400_i64).prop_map(Some);
    let kind = prop_oneof![6 => Just(2_u8), 1 => 0..2_u8];
    let pod = (kind, 0..100_i64, 0.0..3.0_f64);
    let readings = prop::collection::vec(reading, METRICS.len());
    let capacity = prop::sample::select(vec![(Some(4.0), None), (Some(10.0), None)]);
    (readings, prop::collection::vec(pod, 1..4), capacity, Just(None), any::<bool>(), Just(None))
}

proptest! {
    /// So a node that pods are moved off for its measured load takes none of them back. The pod that shows it uses
    /// nothing, for what another uses is held against limits too.
    #[test]
    fn no_pod_passes_a_limit_that_the_node_is_measured_to_be_over(
        policy in policy(),
        estimates in prop::option::weighted(0.8, Just(EstimateRules::default())),
        node in prop_oneof![3 => emptied_node(), 1 => node()],
        uses in prop_oneof![4 => Just(0.0), 1 => 0.0..12.0_f64],
    ) {
        let mut table = MetricTable::default();
        let policy = ResolvedPolicy::new(LoadPolicy { estimates, ..policy }, &mut table);
        let node = load(&mut table, &node);
        let uses = Amounts { cpu: uses, memory: uses };
        let pod = PodToPlace { uses, ..PodToPlace::ORDINARY };
        let evaluation = Evaluation { policy: &policy, node: &node, pod, now: at(0) };
        if let Some(measured) = evaluation.measured_limit_ratio() {
            prop_assert!(measured <= evaluation.limit_ratio());
            prop_assert!(measured <= 1.0 || evaluation.verdict() != Verdict::Accepted);
        }
    }
}

#[test]
fn ready_loads_hold_until_the_first_reading_is_stale() {
    let mut table = MetricTable::default();
    let policy = LoadPolicy { limits: vec![at_half()], ..crane() };
    let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
    let of_age = |table: &mut MetricTable, age| {
        load(
            table,
            &(
                vec![Some((0.9, age)), None, None, None],
                Vec::new(),
                (None, None),
                None,
                false,
                None,
            ),
        )
    };
    let nodes = [of_age(&mut table, 100), of_age(&mut table, 470)];
    let ready = PreparedNodes::new(&policy, nodes.iter().map(Some), at(0));
    assert!(ready.are_valid(&policy, at(9)));
    assert!(!ready.are_valid(&policy, at(10)) && !ready.are_valid(&policy, at(-1)));
    assert!(!ready.are_valid(&Arc::new(ResolvedPolicy::clone(&policy)), at(0)));
}

#[test]
fn a_node_of_which_nothing_is_known_may_take_any_pod_and_scores_0() {
    let mut table = MetricTable::default();
    let policy = LoadPolicy { limits: vec![at_half()], ..crane() };
    let policy = Arc::new(ResolvedPolicy::new(policy, &mut table));
    let full =
        (vec![Some((0.9, 0)), None, None, None], Vec::new(), (None, None), None, false, None);
    let full = load(&mut table, &full);
    let known = [Some(&full), None];
    let unknown = [None, None];
    let pod = PodAdds { uses: Amounts { cpu: 1.0, memory: 1.0 }, declares: Rates::NONE };
    let ready = PreparedNodes::new(&policy, known, at(0));
    assert!(!ready.all_accept(&pod) && ready.is_valid(&policy, 1, at(1_000_000)));
    assert_eq!(ready.verdict(&policy, 1, &pod), Verdict::Accepted);
    assert_ne!(ready.verdict(&policy, 0, &pod), Verdict::Accepted);
    assert_eq!(ready.score(&policy, 1, &pod, &[]).get(), 0);
    // It becomes known, and unknown again.
    let joined =
        PreparedNodes::new(&policy, unknown, at(0)).renewed(|_| true, |node| known[node], at(1));
    assert_ne!(joined.verdict(&policy, 0, &pod), Verdict::Accepted);
    let left = joined.renewed(|_| true, |node| unknown[node], at(2));
    assert!(left.all_accept(&pod));
}
