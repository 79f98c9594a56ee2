//! Our own kind: what it parses to, what its authors are told, and that printing and parsing agree.

use std::fs;
use std::path::Path;

use jiff::SignedDuration;
use placement::estimate::EstimateRules;
use placement::gpu::{BeyondUnits, Strategy};
use placement::policy::{
    Direction, LoadPolicy, Model, PolicyKind, PolicyWarning, Unknown, UnmanagedMemory,
    WhenAllOverloaded,
};

const FULL: &str = include_str!("../golden/scheduling-policy.yaml");
const HEAD: &str = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\n";

/// A policy with these lines below `spec:`.
fn small(spec: &str) -> LoadPolicy {
    LoadPolicy::from_yaml(&format!("{HEAD}spec:\n{spec}")).unwrap()
}

fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}

#[test]
fn a_metric_is_one_entry_of_each_list_that_it_counts_in() {
    let policy = LoadPolicy::from_yaml(FULL).unwrap();
    let fetched: Vec<_> = policy.sync.iter().map(|rule| rule.metric.as_str()).collect();
    assert_eq!(
        fetched,
        [
            "cpu_usage_avg_5m",
            "cpu_usage_max_avg_1h",
            "mem_usage_avg_5m",
            "disk_usage_avg_5m",
            "network_transmit_bytes_avg_5m",
            "network_speed_bytes_active"
        ]
    );
    let limits: Vec<_> = policy.limits.iter().map(|it| (it.metric.as_str(), it.max)).collect();
    assert_eq!(
        limits,
        [
            ("cpu_usage_avg_5m", 0.8),
            ("mem_usage_avg_5m", 0.9),
            ("gpu_power_of_another_program", 0.95)
        ]
    );
    let weights: Vec<_> = policy.weights.iter().map(|it| (it.metric.as_str(), it.weight)).collect();
    assert_eq!(
        weights,
        [("cpu_usage_avg_5m", 1.0), ("cpu_usage_max_avg_1h", 0.5), ("mem_usage_avg_5m", 1.0)]
    );
    let cpu = &policy.limits[0];
    assert_eq!((cpu.when_stale, cpu.when_missing), (Unknown::Ignore, Unknown::Reject));
    assert_eq!(policy.weights[0].when_missing, Unknown::Reject);
    assert_eq!(policy.weights[1].max_age, Some(minutes(10)));
    assert_eq!(policy.limits[2].max_age, Some(minutes(10)));
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let policy =
        small("  metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.8, weight: 2}]\n");
    assert_eq!(policy.limits[0].max_age, Some(minutes(6)));
    assert_eq!(policy.limits[0].when_missing, Unknown::Penalise);
    assert_eq!(policy.weights[0].when_stale, Unknown::Penalise);
    let of_gpus =
        small("  metrics: [{name: gpu_usage_avg_5m, period: 1m, limit: 0.8, weight: 2}]\n");
    assert_eq!(of_gpus.limits[0].when_missing, Unknown::Ignore);
    assert_eq!(of_gpus.weights[0].when_missing, Unknown::Ignore);
    assert_eq!(of_gpus.weights[0].when_stale, Unknown::Penalise);
    assert_eq!(policy.scoring.model, Model::AboveTypical);
    assert_eq!(policy.gpu.placement, Strategy::LeastFragmentation);
    assert_eq!(policy.gpu.unmanaged_memory, UnmanagedMemory::Ignore);
    assert_eq!(policy.gpu.beyond_units_of("any"), BeyondUnits::default());
    assert_eq!(policy.scoring.direction, Direction::Spread);
    assert_eq!(policy.scoring.scale.highest(), 30);
    assert_eq!(policy.overload.when_all, WhenAllOverloaded::PassLeastLoaded);
    let classes: Vec<_> = policy.overload.exempt_priority_classes.iter().map(|c| &**c).collect();
    assert_eq!(classes, ["system-node-critical", "system-cluster-critical"]);
    assert_eq!(policy.estimates, Some(EstimateRules::default()));
    assert!(policy.hot.is_empty() && policy.pools.is_empty() && policy.namespaces.is_empty());
    for empty in
        ["", "  metrics:\n", "  metrics: []\n  scoring: {}\n  limits: {}\n  estimates: {}\n"]
    {
        assert_eq!(small(empty).scoring, policy.scoring, "{empty}");
    }
}

#[test]
fn a_namespace_may_take_beyond_units_what_any_rule_for_it_allows() {
    let gpu = LoadPolicy::from_yaml(FULL).unwrap().gpu;
    let memory_limit = BeyondUnits { memory_limit: true, ..BeyondUnits::default() };
    assert_eq!(gpu.beyond_units_of("team-a"), BeyondUnits::ALL);
    assert_eq!(gpu.beyond_units_of("team-b"), memory_limit);
}

#[test]
fn scores_have_a_model_and_a_scale() {
    let scoring = |text: &str| small(&format!("  scoring: {{{text}}}\n")).scoring;
    assert_eq!(scoring("model: aboveTypical").model, Model::AboveTypical);
    let packed = scoring("model: craneLinear, direction: pack, scale: 7");
    assert_eq!((packed.model, packed.direction), (Model::CraneLinear, Direction::Pack));
    assert_eq!(packed.scale.highest(), 7);
}

fn when_all_overloaded(text: &str) -> WhenAllOverloaded {
    small(&format!("  limits: {{{text}}}\n")).overload.when_all
}

fn wait(max_wait: Option<SignedDuration>) -> WhenAllOverloaded {
    WhenAllOverloaded::Wait { max_wait }
}

#[test]
fn hard_limits_wait_for_a_time_or_for_ever() {
    assert_eq!(when_all_overloaded("mode: hard"), wait(Some(minutes(5))));
    assert_eq!(
        when_all_overloaded("mode: hard, maxWait: 90s"),
        wait(Some(SignedDuration::from_secs(90)))
    );
    assert_eq!(when_all_overloaded("mode: hard, maxWait: never"), wait(None));
    let none = small("  limits: {exemptPriorityClasses: []}\n").overload;
    assert!(none.exempt_priority_classes.is_empty());
}

#[test]
fn estimates_can_be_changed_or_switched_off() {
    assert!(LoadPolicy::from_yaml(FULL).unwrap().estimates.unwrap().learned);
    let off = small("  scoring: {model: craneLinear}\n  estimates: {enabled: false}\n");
    assert_eq!(off.estimates, None);
    let unlearned = small("  estimates: {learned: false}\n");
    assert!(!unlearned.estimates.unwrap().learned);
}

#[test]
fn a_pool_inherits_what_it_does_not_change() {
    let policy = LoadPolicy::from_yaml(FULL).unwrap();
    let batch = &policy.pools[0];
    let limits: Vec<_> = batch.limits.iter().map(|it| (it.metric.as_str(), it.max)).collect();
    assert_eq!(
        limits,
        [
            ("cpu_usage_avg_5m", 0.95),
            ("disk_usage_avg_5m", 0.9),
            ("gpu_power_of_another_program", 0.95)
        ]
    );
    let weights: Vec<_> = batch.weights.iter().map(|it| it.metric.as_str()).collect();
    assert_eq!(weights, ["cpu_usage_max_avg_1h", "mem_usage_avg_5m"]);
    let cpu = &batch.limits[0];
    assert_eq!((cpu.when_stale, cpu.when_missing), (Unknown::Ignore, Unknown::Ignore));
    assert_eq!(policy.pools[1].limits, policy.limits);
    assert_eq!(policy.namespaces[0].nodes.as_str(), "team in (a, b)");
}

#[test]
fn the_kind_decides_how_a_text_is_read() {
    assert_eq!(PolicyKind::of(FULL), Ok(PolicyKind::Plimsoll));
    let crane = include_str!("../golden/crane-policy.yaml");
    assert_eq!(PolicyKind::of(crane), Ok(PolicyKind::Crane));
    let json = r#"{"kind": "SchedulingPolicy", "apiVersion": "plimsoll.dev/v1alpha1"}"#;
    assert!(LoadPolicy::from_yaml(json).is_ok());
    // Also where the text is no YAML.
    let broken = format!("{HEAD}spec: {{metrics: [\n");
    assert_eq!(PolicyKind::of(&broken), Ok(PolicyKind::Plimsoll));
}

/// A text of the full policy in place of another.
fn error(from: &str, to: &str) -> String {
    assert!(FULL.contains(from), "the fixture has no `{from}`");
    LoadPolicy::from_yaml(&FULL.replacen(from, to, 1)).map(|_| ()).unwrap_err().to_string()
}

/// What the golden file lists: a text of the full policy, and what it is replaced by.
const FAULTS: &[(&str, &str)] = &[
    ("kind: SchedulingPolicy", "kind: Policy"),
    ("plimsoll.dev/v1alpha1", "plimsoll.dev/v2"),
    ("spec:", "Spec:"),
    ("maxAge: 6m", "maxage: 6m"),
    ("period: 1m", "period: 1"),
    ("period: 1m", "cycle: 1m"),
    ("    period: 1m\n", ""),
    ("maxAge: 6m", "maxAge: soon"),
    ("limit: 0.80", "limit: 0"),
    ("limit: 0.80", "limit: \"0.8\""),
    ("limit: 0.80", "limit: 80%"),
    ("limit: 0.80", "limit: .nan"),
    ("weight: 0.5", "weight: -1"),
    ("weight: 0.5", "weight: heavy"),
    ("weight: 0.5", "weight: [1]"),
    ("whenStale: ignore", "whenStale: penalize"),
    ("name: mem_usage_avg_5m", "name: mem usage"),
    ("name: mem_usage_avg_5m", "name: cpu_usage_avg_5m"),
    ("model: aboveTypical", "model: magic"),
    ("direction: spread", "direction: binpack"),
    ("direction: spread", "direction: pack"),
    ("scale: 50", "scale: 0"),
    ("scale: 50", "scale: 101"),
    ("scale: 50", "scale: 12.5"),
    ("mode: hard", "mode: soft"),
    ("mode: hard", "mode: firm"),
    ("maxWait: 10m", "maxWait: 10"),
    ("- system-node-critical", "- System Critical"),
    ("enabled: true", "enabled: sometimes"),
    ("limit: 1.5", "limit: 0"),
    ("diskWrite:\n      limit: 1.5", "diskWrite:\n      weight: 0"),
    ("diskWrite:", "disk:"),
    ("measured: network_transmit_bytes_avg_5m", "measured: network_usage_avg_5m"),
    ("measured: network_transmit_bytes_avg_5m", "measured: network_transmit_bytes_avg_1h"),
    ("name: disk_usage_avg_5m", "name: egress_demand"),
    ("count: 5", "count: 0"),
    ("name: batch", "name: my pool"),
    ("name: large", "name: batch"),
    ("selector: pool=batch,!spot", "selector: pool=a b"),
    ("    selector: pool=batch,!spot\n", ""),
    ("selector: pool=batch,!spot", "selector: \"\""),
    ("    - name: disk_usage_avg_5m", "    - name: disk_usage_avg_10m"),
    ("    - name: disk_usage_avg_5m", "    - name: mem_usage_avg_5m"),
    ("names: [team-a, team-b]", "names: []"),
    ("names: [team-a, team-b]", "names: [team_a]"),
    ("    nodeSelector: team in (a, b)\n", ""),
    ("nodeSelector: team in (a, b)", "nodeSelector: team within (a, b)"),
    ("placement: pack", "placement: binpack"),
    ("unmanagedMemory: count", "unmanagedMemory: yes"),
    ("namespaces: [team-a]    # or", "namespaces: []    # or"),
    ("namespaces: [team-a]    # or", "namespaces: [team-*]    # or"),
    (
        "    - namespaces: [team-a]    # or \"*\"\n      allow: [exclusive, cores]\n",
        "    - allow: [cores]\n",
    ),
    ("allow: [exclusive, cores]", "allow: []"),
    ("allow: [exclusive, cores]", "allow: [exclusive, gpus]"),
    ("      allow: [memoryLimit]\n", ""),
];

fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

/// The checked-in list of faults is what the parser says. After a change of it:
/// `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-placement errors`.
#[test]
fn errors_name_line_field_and_fix() {
    let mut found = String::from(
        "# Faults of the full policy, and what is said of them. Written anew by:\n\
         # PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-placement errors\n",
    );
    for (from, to) in FAULTS {
        let error = error(from, to);
        assert!(!error.starts_with("line 0"), "{error}");
        found += &format!("\n{} -> {}\n  {error}\n", one_line(from), one_line(to));
    }
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/scheduling-policy-errors.txt");
    if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
        fs::write(&path, &found).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), found);
}

fn many(count: usize, entry: impl Fn(usize) -> String) -> String {
    (0..count).map(entry).collect::<Vec<_>>().join(", ")
}

#[test]
fn no_list_grows_without_bound() {
    for (most, spec) in [
        (
            100,
            &(|count| {
                format!("metrics: [{}]", many(count, |n| format!("{{name: m{n}, period: 1m}}")))
            }) as &dyn Fn(usize) -> String,
        ),
        (100, &|count| {
            format!("nodePools: [{}]", many(count, |n| format!("{{name: p{n}, selector: a=b}}")))
        }),
        (1_000, &|count| {
            format!(
                "namespaces: [{{names: [{}], nodeSelector: a}}]",
                many(count, |n| format!("n{n}"))
            )
        }),
        (100, &|count| {
            format!("limits: {{exemptPriorityClasses: [{}]}}", many(count, |n| format!("n{n}")))
        }),
        (20, &|count| {
            format!(
                "hotValue: [{}]",
                many(count, |n| format!("{{timeRange: {}m, count: 1}}", n + 1))
            )
        }),
    ] {
        let parsed = |count| LoadPolicy::from_yaml(&format!("{HEAD}spec:\n  {}\n", spec(count)));
        assert!(parsed(most).is_ok(), "{most}");
        let error = parsed(most + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("expected at most {most}")), "{error}");
    }
}

fn metric(name: &str, rest: &str) -> String {
    format!("  - {{name: {name}, period: 1m{rest}}}\n")
}

#[test]
fn what_is_valid_and_probably_not_meant_is_a_warning() {
    let both =
        metric("cpu_usage_avg_5m", ", weight: 1") + &metric("mem_usage_avg_5m", ", weight: 1");
    let warnings = |spec: &str| {
        let policy = small(&format!("  metrics:\n{both}{spec}"));
        policy.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(""), [""; 0]);
    let pool = "  nodePools:\n  - {name: a, selector: x=y, metrics: [{name: cpu_usage_avg_5m";
    for (spec, start) in [
        (
            metric("disk_usage_active", ""),
            "`disk_usage_active` is fetched and written on every node, and",
        ),
        (
            metric("cpu_usge_avg_5m", ", limit: 0.8"),
            "`cpu_usge_avg_5m` is no metric of node-exporter-plus",
        ),
        (
            metric("disk_usage_active", ", limit: 80"),
            "the limit 80 on `disk_usage_active` is above 1",
        ),
        (
            metric("disk_usage_active", ", limit: 0.8, maxAge: 30s"),
            "readings of `disk_usage_active` are stale",
        ),
        (
            metric("cpu_usage_max_avg_1d", ", weight: 1"),
            "`cpu_usage_max_avg_1d` looks back more than 6 hours",
        ),
        ("  hotValue: [{timeRange: 5m, count: 5}]\n".to_owned(), "recent bindings count twice"),
        (format!("{pool}, weight: 1}}]}}\n"), "the node pool `a` changes no limit and no weight"),
        (
            format!("{pool}, weight: 0}}, {{name: mem_usage_avg_5m, weight: 0}}]}}\n"),
            "nodes of the pool `a` have no weights and score 0",
        ),
        (
            "  namespaces: [{names: [a], nodeSelector: x}, {names: [b, a], nodeSelector: y}]\n"
                .to_owned(),
            "the namespace `a` is in several rules",
        ),
        (
            "  - {name: disk_usage_active, period: never, limit: 0.8}\n".to_owned(),
            "the limit on `disk_usage_active` never applies",
        ),
        (
            "  - {name: disk_usage_active, period: never, weight: 1}\n".to_owned(),
            "the weight of `disk_usage_active` adds nothing to any node's score",
        ),
        (
            metric("gpu_usage_active", ", weight: 1, whenMissing: penalise"),
            "nodes that cannot have `gpu_usage_active` count as full in scores",
        ),
        (
            metric("psi_io_full_active", ", limit: 0.5, weight: 1, whenMissing: reject"),
            "nodes that cannot have `psi_io_full_active` take no pods",
        ),
    ] {
        let found = warnings(&spec);
        assert_eq!(found.len(), 1, "{spec}: {found:?}");
        assert!(found[0].starts_with(start), "{spec}: {found:?}");
    }
    for spec in [
        metric("gpu_usage_active", ", limit: 0.9, weight: 1"),
        metric("gpu_usage_active", ", limit: 0.9, whenMissing: penalise"),
    ] {
        assert_eq!(warnings(&spec), [""; 0], "{spec}");
    }
    let alone =
        |name: &str| small(&format!("  metrics:\n{}", metric(name, ", weight: 1"))).warnings();
    assert_eq!(
        alone("cpu_usage_avg_5m")[0].to_string(),
        "the model aboveTypical sees no memory: give `mem_usage_avg_5m` a weight"
    );
    let deviation =
        alone("mem_usage_stddev_15m").iter().map(ToString::to_string).collect::<Vec<_>>();
    let counts = "the weight of `mem_usage_stddev_15m` counts in no score: the model aboveTypical compares loads, and a \
                  deviation is none";
    assert!(deviation[0] == counts && deviation[2].contains("sees no memory"), "{deviation:?}");
}

#[test]
fn every_field_is_printed_and_read_back() {
    let policy = LoadPolicy::from_yaml(FULL).unwrap();
    let printed = policy.to_yaml();
    assert_eq!(LoadPolicy::from_yaml(&printed).unwrap(), policy, "{printed}");
}

fn kinds_of(warnings: &[PolicyWarning]) -> Vec<&'static str> {
    let names = warnings.iter().map(|warning| match warning {
        PolicyWarning::NotExported(_) => "not exported",
        PolicyWarning::LimitAboveOne { .. } => "above one",
        _ => "another",
    });
    names.collect::<Vec<_>>()
}

#[test]
fn no_warning_of_exporters_metrics_if_others_may_have_them() {
    let text = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  metrics:
  - {name: rack_heat_now, period: 1m, limit: 70}
";
    let policy = LoadPolicy::from_yaml(text).unwrap();
    assert_eq!(kinds_of(&policy.warnings()), ["not exported", "above one"]);
    assert_eq!(kinds_of(&policy.warnings_of_any_source()), ["above one"]);
}
