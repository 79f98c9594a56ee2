//! What policies parse to, and what their authors are told when they do not.

use jiff::SignedDuration;
use placement::policy::{LoadPolicy, PolicyError};
use proptest::prelude::*;

const CRANE: &str = include_str!("../golden/crane-policy.yaml");

fn error(from: &str, to: &str) -> String {
    assert!(CRANE.contains(from), "the fixture has no `{from}`");
    LoadPolicy::from_yaml(&CRANE.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn cranes_shipped_policy_parses_unchanged() {
    let policy = LoadPolicy::from_yaml(CRANE).unwrap();
    assert_eq!(policy.sync.len(), 6);
    assert_eq!(policy.metrics().len(), 6);
    assert_eq!(policy.warnings(), []);
    assert_eq!(policy.hot_horizon(), SignedDuration::from_mins(5));
    let limits: Vec<_> = policy.limits.iter().map(|l| (l.metric.as_str(), l.max)).collect();
    assert_eq!(
        limits,
        [
            ("cpu_usage_avg_5m", 0.65),
            ("cpu_usage_max_avg_1h", 0.75),
            ("mem_usage_avg_5m", 0.65),
            ("mem_usage_max_avg_1h", 0.75)
        ]
    );
}

#[test]
fn a_reading_counts_for_its_period_and_five_minutes() {
    let policy = LoadPolicy::from_yaml(CRANE).unwrap();
    assert_eq!(policy.limits[0].max_age, Some(SignedDuration::from_mins(8)));
    assert_eq!(policy.limits[1].max_age, Some(SignedDuration::from_mins(20)));
}

#[test]
fn a_limit_on_a_metric_without_a_sync_rule_never_applies() {
    let policy = LoadPolicy::from_yaml(&CRANE.replacen("name: cpu_usage_avg_5m", "name: other", 1));
    assert_eq!(policy.unwrap().limits[0].max_age, None);
}

#[test]
fn a_limit_of_zero_is_switched_off() {
    let text = CRANE.replacen("maxLimitPecent: 0.65", "maxLimitPecent: 0", 1);
    assert_eq!(LoadPolicy::from_yaml(&text).unwrap().limits.len(), 3);
}

#[test]
fn errors_name_line_field_and_fix() {
    let cases = [
        (
            error("period: 3m", "period: 3"),
            "line 8: spec.syncPolicy[0].period: expected a duration above 0 such as `3m` or `1h30m`, found `3`",
        ),
        (
            error("maxLimitPecent: 0.75", "maxLimitPecent: -1"),
            "line 26: spec.predicate[1].maxLimitPecent: expected a number of at least 0, found -1",
        ),
        (
            error("weight: 0.3", "weight: -0.3"),
            "line 39: spec.priority[1].weight: expected a number of at least 0, found -0.3",
        ),
        (
            error("count: 2", "count: 0"),
            "line 54: spec.hotValue[1].count: expected a whole number of at least 1, found 0",
        ),
        (
            error("kind: DynamicSchedulerPolicy", "kind: Policy"),
            "line 3: kind: expected `SchedulingPolicy` (of plimsoll.dev/v1alpha1) or `DynamicSchedulerPolicy` (of scheduler.policy.crane.io/v1alpha1), found `Policy`",
        ),
        (
            error("- name: mem_usage_avg_5m", "- name: mem usage"),
            "line 14: spec.syncPolicy[3].name: expected 1 to 63 letters, digits, `_`, `-` or `.`, the first and last a letter or digit: the name becomes an annotation key, found `mem usage`",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

fn period_in_seconds(text: &str) -> Result<f64, PolicyError> {
    let policy = CRANE.replacen("period: 3m", &format!("period: \"{text}\""), 1);
    LoadPolicy::from_yaml(&policy).map(|policy| policy.sync[0].period.as_secs_f64())
}

#[test]
fn periods_are_read_as_go_prints_them() {
    let cases =
        [("3m", 180.0), ("3m0s", 180.0), ("1h30m", 5_400.0), ("1.5h", 5_400.0), ("250ms", 0.25)];
    for (text, seconds) in cases {
        assert_eq!(period_in_seconds(text), Ok(seconds), "{text}");
    }
    for text in ["", "5", "0", "0s", "-3m", "m", "3d", "..5s", "3mm", "9999999999999999999h"] {
        let error = period_in_seconds(text).unwrap_err().to_string();
        assert!(error.contains("expected a duration above 0"), "{text}: {error}");
    }
}

#[test]
fn the_longest_period_there_is_is_a_period() {
    let forever = format!("period: {}s", i64::MAX);
    let policy = LoadPolicy::from_yaml(&CRANE.replacen("period: 3m", &forever, 1)).unwrap();
    assert_eq!(policy.limits[0].max_age, Some(SignedDuration::MAX));
}

#[test]
fn an_unknown_field_is_an_error_on_its_line() {
    let error = error("maxLimitPecent: 0.65", "maxLimitPercent: 0.65");
    assert!(error.starts_with("line 24: "), "{error}");
    assert!(error.contains("maxLimitPercent") && error.contains("maxLimitPecent"), "{error}");
}

/// A policy of one limit and one weight with these texts in place of the fields.
fn small(limit: &str, weight: &str) -> Result<LoadPolicy, PolicyError> {
    LoadPolicy::from_yaml(&format!(
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec:\n  \
         syncPolicy: [{{name: a, period: 3m}}]\n  predicate: [{{name: a{limit}}}]\n  \
         priority: [{{name: a{weight}}}]\n"
    ))
}

#[test]
fn numbers_are_read_in_the_forms_of_yaml_1_1_as_crane_reads_them() {
    for (text, value) in [
        ("010", 8.0),
        ("+010", 8.0),
        ("0x10", 16.0),
        ("0b11", 3.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5e-1", 0.5),
        ("08", 8.0),
        ("1", 1.0),
    ] {
        let policy = small(&format!(", maxLimitPecent: {text}"), "");
        assert_eq!(policy.map(|p| p.limits[0].max), Ok(value), "{text}");
    }
    for text in ["\"0.5\"", "yes", "half", ".inf", ".nan", "-0.1", "[1]"] {
        let error = small(&format!(", maxLimitPecent: {text}"), "").unwrap_err();
        assert_eq!(error.line, 5, "{text}: {error}");
    }
}

#[test]
fn missing_and_empty_fields_are_read_as_crane_reads_them_or_refused_with_a_word() {
    // A missing limit is 0, which is off; a missing weight is 0.
    for empty in ["", ", maxLimitPecent:", ", maxLimitPecent: ~"] {
        assert_eq!(small(empty, "").map(|policy| policy.limits.len()), Ok(0), "{empty}");
    }
    assert_eq!(small("", ", weight:").map(|policy| policy.weights[0].weight), Ok(0.0));
    let head = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\n";
    for spec in ["", "spec:\n", "spec: {}\n", "spec:\n  syncPolicy:\n  predicate: ~\n"] {
        let policy = LoadPolicy::from_yaml(&format!("{head}{spec}")).unwrap();
        assert!(policy.sync.is_empty() && policy.limits.is_empty(), "{spec}");
    }
    for (spec, wanted) in [
        (
            "syncPolicy: [{name: a}]",
            "line 4: spec.syncPolicy[0].period: expected a duration above 0",
        ),
        ("syncPolicy: [{period: 3m}]", "line 4: spec.syncPolicy[0].name: expected 1 to 63"),
        ("predicate: [{maxLimitPecent: 0.5}]", "line 4: spec.predicate[0].name: expected 1 to 63"),
        ("hotValue: [{timeRange: 5m}]", "line 4: spec.hotValue[0].count: expected a whole number"),
        ("hotValue: [{count: 5}]", "line 4: spec.hotValue[0].timeRange: expected a duration"),
        ("syncPolicy: [{name: a, period: 0}]", "line 4: spec.syncPolicy[0].period: expected"),
    ] {
        let error = LoadPolicy::from_yaml(&format!("{head}spec:\n  {spec}\n")).unwrap_err();
        assert!(error.to_string().starts_with(wanted), "{error}");
    }
}

#[test]
fn a_fault_of_the_yaml_is_one_line_that_names_its_place_once() {
    let head = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\n";
    for (text, wanted) in [
        ("sync: []\n", "line 3: policy: unknown field `sync`"),
        ("spec: {predicate: 3}\n", "line 3: policy: "),
        ("spec: [\n", "line 3: policy: expected mapping start"),
        ("kind: other\n", "line 3: policy: duplicate"),
    ] {
        let error = LoadPolicy::from_yaml(&format!("{head}{text}")).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}");
        assert_eq!(error.matches("line").count(), 1, "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_metric_that_is_no_annotation_key_is_refused() {
    for name in ["_cpu", "cpu_", "-cpu", "cpu.", "a/b", "a b", ""] {
        let text = CRANE.replacen("name: cpu_usage_avg_5m", &format!("name: \"{name}\""), 1);
        let error = LoadPolicy::from_yaml(&text).unwrap_err();
        assert!(error.to_string().contains("annotation key"), "{name}: {error}");
    }
}

fn warnings(text: &str) -> Vec<String> {
    let policy = LoadPolicy::from_yaml(text).unwrap();
    policy.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
}

#[test]
fn what_is_valid_and_probably_not_meant_is_a_warning() {
    let percent = CRANE.replacen("maxLimitPecent: 0.65", "maxLimitPecent: 65", 1);
    assert_eq!(
        warnings(&percent),
        [
            "the limit 65 on `cpu_usage_avg_5m` is above 1, which no usage reaches: for 65% write 0.65"
        ]
    );
    let renamed = warnings(&CRANE.replacen("name: cpu_usage_avg_5m", "name: cpu_usage_avg_5", 1));
    let starts = [
        "`cpu_usage_avg_5` is fetched and written on every node, and has neither",
        "`cpu_usage_avg_5` is no metric of node-exporter-plus",
        "the limit on `cpu_usage_avg_5m` never applies",
        "the weight of `cpu_usage_avg_5m` adds nothing to any node's score",
    ];
    assert_eq!(renamed.len(), starts.len(), "{renamed:?}");
    for (warning, start) in renamed.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
    let twice = CRANE.replacen("name: mem_usage_avg_5m", "name: cpu_usage_avg_5m", 1);
    assert!(warnings(&twice)[0].contains("several entries"));
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = LoadPolicy::from_yaml(&text);
    }

    #[test]
    fn no_damage_to_a_policy_makes_the_parser_panic(at in 0..CRANE.len(), with in "\\PC{0,8}") {
        let start = CRANE.floor_char_boundary(at);
        let _ = LoadPolicy::from_yaml(&format!("{}{with}{}", &CRANE[..start], &CRANE[start..]));
    }
}
