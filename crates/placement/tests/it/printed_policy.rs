//! Policies of any content: what is printed is read back the same, and crane's decide the same once converted.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::demand::{Demand, PerDemand};
use placement::estimate::EstimateRules;
use placement::gpu::BeyondUnits;
use placement::gpu::Strategy as Placement;
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy, Verdict,
};
use placement::policy::{
    BeyondUnitsRule, DemandRule, DemandRules, Direction, FetchedMetric, GpuRules, HotRule,
    LINK_SPEED, Limit, LoadPolicy, Model, NamespaceRule, NodePool, Overload, Scale, Scoring,
    SyncRule, Unknown, UnmanagedMemory, Weight, WhenAllOverloaded,
};
use placement::reading::Reading;
use placement::resources::{Amounts, PerResource};
use placement::units::{MetricName, Ratio};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Names that YAML could read as something else are among them.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]([a-z0-9_]{0,8}[a-z0-9])?",
        select(vec!["1e5", "true", "0x1f", "null", "12", "never", "1.0"]).prop_map(str::to_owned)
    ]
}

fn fraction() -> impl Strategy<Value = f64> {
    prop_oneof![1e-9..2.0, select(vec![0.65, 1.0, 80.0, 1e300, f64::MIN_POSITIVE])]
}

fn span() -> impl Strategy<Value = SignedDuration> {
    prop_oneof![
        (1_i64..100_000).prop_map(SignedDuration::from_secs),
        (1_i64..i64::MAX).prop_map(SignedDuration::from_nanos),
        Just(SignedDuration::MAX)
    ]
}

fn unknown() -> impl Strategy<Value = Unknown> {
    select(vec![Unknown::Ignore, Unknown::Penalise, Unknown::Reject])
}

fn scoring() -> impl Strategy<Value = Scoring> {
    let models = select(vec![Model::CraneLinear, Model::AboveTypical]);
    let scale = (1..=100_u8).prop_map(|highest| Scale::new(highest).unwrap());
    (models, any::<bool>(), scale).prop_map(|(model, pack, scale)| {
        let packs = pack && model == Model::CraneLinear;
        Scoring { model, direction: if packs { Direction::Pack } else { Direction::Spread }, scale }
    })
}

fn overload() -> impl Strategy<Value = Overload> {
    let hard =
        proptest::option::of(span()).prop_map(|max_wait| WhenAllOverloaded::Wait { max_wait });
    let when_all = prop_oneof![Just(WhenAllOverloaded::PassLeastLoaded), hard];
    let classes = vec("[a-z0-9.-]{1,9}".prop_map(Arc::from), 0..3);
    (when_all, classes).prop_map(|(when_all, exempt_priority_classes)| Overload {
        when_all,
        exempt_priority_classes,
    })
}

fn estimates() -> impl Strategy<Value = EstimateRules> {
    any::<bool>().prop_map(|learned| EstimateRules { learned })
}

/// One metric of a policy of our kind: period, maximum age, and what some nodes do with it.
#[derive(Debug, Clone)]
struct Metric {
    period: Option<SignedDuration>,
    max_age: SignedDuration,
    common: Rules,
    in_pool: Option<Rules>,
}

#[derive(Debug, Clone)]
struct Rules(Option<f64>, Option<f64>, Unknown, Unknown);

fn rules() -> impl Strategy<Value = Rules> {
    let maybe = || proptest::option::of(fraction());
    (maybe(), maybe(), unknown(), unknown())
        .prop_map(|(limit, weight, stale, missing)| Rules(limit, weight, stale, missing))
}

fn metric() -> impl Strategy<Value = Metric> {
    let period = proptest::option::of(span());
    (period, span(), rules(), proptest::option::of(rules()))
        .prop_map(|(period, max_age, common, in_pool)| Metric { period, max_age, common, in_pool })
}

impl Metric {
    fn limit(&self, name: &str, rules: &Rules) -> Option<Limit> {
        let Rules(limit, _, when_stale, when_missing) = *rules;
        let metric = name.into();
        let max_age = Some(self.max_age);
        limit.map(|max| Limit { metric, max, max_age, when_stale, when_missing })
    }

    fn weight(&self, name: &str, rules: &Rules) -> Option<Weight> {
        let Rules(_, weight, when_stale, when_missing) = *rules;
        let metric = name.into();
        let max_age = Some(self.max_age);
        weight.map(|weight| Weight { metric, weight, max_age, when_stale, when_missing })
    }

    /// What the pool does, where the common rules say nothing that is written down.
    fn here(&self) -> Rules {
        self.in_pool.clone().unwrap_or_else(|| self.common.clone())
    }
}

fn demand_rule(demand: Demand) -> impl Strategy<Value = Option<DemandRule>> {
    let rule = (
        proptest::option::of(fraction()),
        prop_oneof![Just(0.0), fraction()],
        proptest::option::of(span()),
    );
    rule.prop_map(move |(limit, weight, max_age)| {
        let metric = format!("{}_avg_5m", demand.signal()).as_str().into();
        let measured = max_age.map(|max_age| FetchedMetric { metric, max_age });
        let counts = limit.is_some() || weight > 0.0;
        counts.then_some(DemandRule { limit, weight, measured })
    })
}

fn demand() -> impl Strategy<Value = DemandRules> {
    let [ingress, egress, disk_read, disk_write] = Demand::ALL.map(demand_rule);
    let rules = (ingress, egress, disk_read, disk_write, proptest::option::of(span()));
    rules.prop_map(|(ingress, egress, disk_read, disk_write, max_age)| {
        let rules = PerDemand { ingress, egress, disk_read, disk_write };
        let is_of_network = rules.ingress.is_some() || rules.egress.is_some();
        let link_speed = max_age.filter(|_| is_of_network);
        let link_speed =
            link_speed.map(|max_age| FetchedMetric { metric: LINK_SPEED.into(), max_age });
        DemandRules { rules, link_speed }
    })
}

/// The sync rules of the metrics that are read for demands.
fn read_for(demand: &DemandRules, period: SignedDuration) -> Vec<SyncRule> {
    let measured = demand.all().filter_map(|(_, rule)| rule.measured.as_ref());
    let read = measured.chain(&demand.link_speed);
    read.map(|read| SyncRule { metric: read.metric.clone(), period }).collect()
}

prop_compose! {
    fn ours()(
        metrics in proptest::collection::btree_map(name(), metric(), 0..5),
        scoring in scoring(),
        overload in overload(),
        estimates in proptest::option::of(estimates()),
        hot in vec((span(), 1_u32..), 0..3),
        pool in proptest::option::of(select(vec!["a=b", "x in (y, z),!w", "\tspot "])),
        namespaces in vec(vec("[a-z0-9-]{1,5}", 1..3), 0..3),
        (placement, unmanaged_memory) in (0..3_usize, prop_oneof![Just(UnmanagedMemory::Ignore), Just(UnmanagedMemory::Count)]),
        demand in demand(),
        measured_every in span(),
        beyond_units in vec((vec("[*]|[a-z0-9-]{1,5}", 1..3), 1..8_u8), 0..3),
    ) -> LoadPolicy {
        let mut metrics: Vec<(String, Metric)> = metrics.into_iter().collect();
        // Printed are first the metrics that are fetched, then those with limits, then those with weights.
        metrics.sort_by_key(|(_, metric)| {
            (metric.period.is_none(), metric.common.0.is_none(), metric.in_pool.is_some())
        });
        let limits = |rules: fn(&Metric) -> Rules| {
            metrics.iter().filter_map(|(name, it)| it.limit(name, &rules(it))).collect::<Vec<_>>()
        };
        let weights = |rules: fn(&Metric) -> Rules| {
            metrics.iter().filter_map(|(name, it)| it.weight(name, &rules(it))).collect::<Vec<_>>()
        };
        let pool = pool.map(|selector| NodePool {
            name: "p".into(),
            selector: selector.parse().unwrap(),
            limits: limits(Metric::here),
            weights: weights(Metric::here),
        });
        let sync = |(name, metric): &(String, Metric)| {
            metric.period.map(|period| SyncRule { metric: name.as_str().into(), period })
        };
        let sync: Vec<SyncRule> =
            metrics.iter().filter_map(sync).chain(read_for(&demand, measured_every)).collect();
        LoadPolicy {
            demand,
            sync,
            limits: limits(|metric| metric.common.clone()),
            weights: weights(|metric| metric.common.clone()),
            hot: hot.into_iter().map(|(range, count)| HotRule { range, count }).collect(),
            scoring,
            overload,
            estimates,
            pools: pool.into_iter().collect(),
            namespaces: namespaces.into_iter().map(|names| NamespaceRule {
                namespaces: names.into_iter().map(Arc::from).collect(),
                nodes: "team=a".parse().unwrap(),
            }).collect(),
            gpu: GpuRules {
                placement: Placement::ALL[placement],
                unmanaged_memory,
                beyond_units: beyond_units.into_iter().map(|(names, bits)| BeyondUnitsRule {
                    namespaces: names.into_iter().map(Arc::from).collect(),
                    allowed: BeyondUnits {
                        exclusive: bits & 1 > 0,
                        cores: bits & 2 > 0,
                        memory_limit: bits & 4 > 0,
                    },
                }).collect(),
            },
        }
    }
}

fn sort_by_name(limits: &mut [Limit], weights: &mut [Weight]) {
    limits.sort_by(|a, b| a.metric.cmp(&b.metric));
    weights.sort_by(|a, b| a.metric.cmp(&b.metric));
}

/// The same rules in the order of one list of metrics, as a text has them.
fn in_order(mut policy: LoadPolicy) -> LoadPolicy {
    sort_by_name(&mut policy.limits, &mut policy.weights);
    policy.pools.iter_mut().for_each(|pool| sort_by_name(&mut pool.limits, &mut pool.weights));
    policy
}

const METRICS: [&str; 4] =
    ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h", "mem_usage_avg_5m", "disk_usage_active"];

/// A policy of crane as people write them: metrics several times, limits of 0, weights that nothing fetches.
fn crane() -> impl Strategy<Value = String> {
    let metric = || select(METRICS.to_vec());
    let sync =
        (metric(), 1_u32..20).prop_map(|(name, m)| format!("{{name: {name}, period: {m}m}}"));
    let limit = (metric(), 0_u32..12).prop_map(|(name, max)| {
        format!("{{name: {name}, maxLimitPecent: {}}}", f64::from(max) / 10.0)
    });
    let weight =
        (metric(), 0_u32..4).prop_map(|(name, w)| format!("{{name: {name}, weight: {w}}}"));
    let hot = (1_u32..6, 1_u32..4).prop_map(|(m, c)| format!("{{timeRange: {m}m, count: {c}}}"));
    (vec(sync, 0..6), vec(limit, 0..6), vec(weight, 0..6), vec(hot, 0..3)).prop_map(
        move |(sync, limits, weights, hot)| {
            format!(
                "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec:\n  \
                 syncPolicy: [{}]\n  predicate: [{}]\n  priority: [{}]\n  hotValue: [{}]\n",
                sync.join(", "),
                limits.join(", "),
                weights.join(", "),
                hot.join(", ")
            )
        },
    )
}

/// A node of 10 cores and 100 bytes: some readings of some age, and pods that came of late.
#[derive(Debug, Clone)]
struct Facts {
    readings: Vec<Option<(f64, i64)>>,
    bound: Vec<i64>,
}

fn facts() -> impl Strategy<Value = Facts> {
    let reading = proptest::option::of((0.0..1.2_f64, 0_i64..1_500));
    let readings = vec(reading, METRICS.len());
    (readings, vec(0_i64..400, 0..8)).prop_map(|(readings, bound)| Facts { readings, bound })
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

/// Whether the node may take a pod that uses 1 core and 10 bytes, its score, and how near it is to its limits.
fn decide(policy: LoadPolicy, facts: &Facts) -> (bool, u8, f64) {
    let mut table = MetricTable::default();
    let hot_horizon = policy.binding_horizon();
    let policy = ResolvedPolicy::new(policy, &mut table);
    let reading = |(metric, reading): (&&str, &Option<(f64, i64)>)| {
        let (value, age) = (*reading)?;
        let at = now() - SignedDuration::from_secs(age);
        Some((MetricName::from(*metric), Reading::new(Ratio::new(value)?, at)))
    };
    let readings = METRICS.iter().zip(&facts.readings).filter_map(reading);
    let readings = Arc::new(Readings::new(&mut table, readings));
    let capacity = PerResource { cpu: Some(10.0), memory: Some(100.0) };
    let mut node = NodeLoad { readings, capacity, ..NodeLoad::default() };
    let uses = Amounts { cpu: 1.0, memory: 10.0 };
    for (n, age) in facts.bound.iter().enumerate() {
        let at = now() - SignedDuration::from_secs(*age);
        Arc::make_mut(&mut node.recent).bound(&format!("p{n}").into(), at, uses, hot_horizon);
    }
    let pod = PodToPlace { uses, ..PodToPlace::ORDINARY };
    let evaluation = Evaluation { policy: &policy, node: &node, pod, now: now() };
    (evaluation.verdict() == Verdict::Accepted, evaluation.score().get(), evaluation.limit_ratio())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_printed_of_a_policy_is_read_as_the_same_policy(policy in ours()) {
        let printed = policy.to_yaml();
        let read = LoadPolicy::from_yaml(&printed);
        prop_assert!(read.is_ok(), "{}\n{printed}", read.unwrap_err());
        prop_assert_eq!(in_order(read.unwrap()), in_order(policy), "{}", printed);
    }

    #[test]
    fn a_policy_of_crane_decides_the_same_once_it_is_converted(
        text in crane(),
        nodes in vec(facts(), 1..5),
    ) {
        let before = LoadPolicy::from_yaml(&text).unwrap();
        let converted = before.to_yaml();
        let after = LoadPolicy::from_yaml(&converted).unwrap();
        prop_assert_eq!(&after.overload, &before.overload);
        prop_assert_eq!(&after.scoring, &before.scoring);
        for facts in &nodes {
            let before = decide(before.clone(), facts);
            let after = decide(after.clone(), facts);
            prop_assert_eq!(before, after, "{}\n{}", text, converted);
        }
    }
}
