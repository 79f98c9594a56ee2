//! What policies parse to, and what their authors are told when they do not.

use jiff::SignedDuration;
use placement::policy::LoadPolicy;
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
    assert_eq!(policy.metrics.len(), 6);
    assert_eq!(policy.hot_horizon(), SignedDuration::from_mins(5));
    let limits: Vec<_> =
        policy.limits.iter().map(|l| (policy.metrics[l.slot].as_str(), l.max)).collect();
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
fn a_limit_on_a_metric_nobody_fetches_never_applies() {
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
            error("maxLimitPecent: 0.75", "maxLimitPecent: 75"),
            "line 26: spec.predicate[1].maxLimitPecent: expected a fraction from 0 (off) to 1, e.g. 0.75 for 75%, found 75",
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
            "line 3: kind: expected `DynamicSchedulerPolicy`, found `Policy`",
        ),
        (
            error("- name: mem_usage_avg_5m", "- name: mem usage"),
            "line 14: spec.syncPolicy[3].name: expected 1 to 63 letters, digits, `_`, `-` or `.`: the name becomes an annotation key, found `mem usage`",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn periods_are_read_as_go_prints_them() {
    let period = |text: &str| {
        let policy = CRANE.replacen("period: 3m", &format!("period: \"{text}\""), 1);
        LoadPolicy::from_yaml(&policy).map(|policy| policy.sync[0].period.as_secs_f64())
    };
    let cases =
        [("3m", 180.0), ("3m0s", 180.0), ("1h30m", 5_400.0), ("1.5h", 5_400.0), ("250ms", 0.25)];
    for (text, seconds) in cases {
        assert_eq!(period(text), Ok(seconds), "{text}");
    }
    for text in ["", "5", "0", "0s", "-3m", "m", "3d", "..5s", "3mm", "9999999999999999999h"] {
        let error = period(text).unwrap_err().to_string();
        assert!(error.contains("expected a duration above 0"), "{text}: {error}");
    }
}

#[test]
fn an_unknown_field_is_an_error_on_its_line() {
    let error = error("maxLimitPecent: 0.65", "maxLimitPercent: 0.65");
    assert!(error.starts_with("line 24: "), "{error}");
    assert!(error.contains("maxLimitPercent") && error.contains("maxLimitPecent"), "{error}");
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
