//! When hot nodes carry a taint.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::taint::{Heat, Overheating, TaintRules, unknown_loads};
use placement::units::{MetricName, Ratio};
use proptest::prelude::*;

const RULES: TaintRules = TaintRules { after: SignedDuration::from_secs(60), margin: 0.05 };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// CPU to 0.8 and memory to 0.9; of pool `small` CPU to 0.5. Readings count for 6 minutes.
fn policy() -> LoadPolicy {
    LoadPolicy::from_yaml(
        "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 1m, limit: 0.8}
  - {name: mem_usage_avg_5m, period: 1m, limit: 0.9}
  nodePools:
  - {name: small, selector: size=small, metrics: [{name: cpu_usage_avg_5m, limit: 0.5}]}
",
    )
    .unwrap()
}

fn heat_of(labels: &[(&str, &str)], cpu: Option<f64>, memory: Option<f64>, now: i64) -> Heat {
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let reading = |metric: &MetricName| {
        let value = if metric.as_str().starts_with("cpu") { cpu } else { memory };
        value.and_then(Ratio::new).map(|value| Reading::new(value, at(0)))
    };
    RULES.heat(&policy(), &labels, reading, at(now))
}

fn heat_at(cpu: f64, memory: f64) -> Heat {
    heat_of(&[], Some(cpu), Some(memory), 0)
}

#[test]
fn one_limit_that_is_passed_is_enough_and_the_margin_keeps_a_node_near_it() {
    assert_eq!(heat_at(0.81, 0.1), Heat::Over);
    assert_eq!(heat_at(0.1, 0.91), Heat::Over);
    assert_eq!(heat_at(0.8, 0.1), Heat::Near);
    assert_eq!(heat_at(0.76, 0.1), Heat::Near);
    assert_eq!(heat_at(0.74, 0.84), Heat::Cool);
}

#[test]
fn a_load_that_is_missing_or_stale_is_unknown() {
    let unknown = |labels: &BTreeMap<String, String>, now| {
        let cpu = |metric: &MetricName| {
            let value = metric.as_str().starts_with("cpu").then(|| Ratio::new(0.1)).flatten();
            value.map(|value| Reading::new(value, at(0)))
        };
        let policy = policy();
        let found = unknown_loads(&policy, labels, cpu, at(now));
        found.into_iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(unknown(&BTreeMap::new(), 359), ["mem_usage_avg_5m"]);
    assert_eq!(unknown(&BTreeMap::new(), 361), ["cpu_usage_avg_5m", "mem_usage_avg_5m"]);
    // A pool has the limits of other nodes where it sets none of its own.
    let small = [("size".to_owned(), "small".to_owned())].into();
    assert_eq!(unknown(&small, 359), ["mem_usage_avg_5m"]);
}

#[test]
fn a_node_pools_own_limit_counts() {
    assert_eq!(heat_of(&[("size", "small")], Some(0.6), None, 0), Heat::Over);
    assert_eq!(heat_of(&[("size", "large")], Some(0.6), None, 0), Heat::Cool);
}

#[test]
fn a_low_load_is_below_every_limit_however_wide_the_margin() {
    let wide = TaintRules { margin: 0.9, ..RULES };
    let heat = |load| {
        let reading = |_: &MetricName| Ratio::new(load).map(|value| Reading::new(value, at(0)));
        wide.heat(&policy(), &BTreeMap::new(), reading, at(0))
    };
    assert_eq!((heat(0.0), heat(0.39), heat(0.41)), (Heat::Cool, Heat::Cool, Heat::Near));
}

#[test]
fn what_is_unknown_or_stale_is_no_reason() {
    assert_eq!(heat_of(&[], None, None, 0), Heat::Cool);
    assert_eq!(heat_of(&[], Some(0.95), None, 359), Heat::Over);
    assert_eq!(heat_of(&[], Some(0.95), None, 360), Heat::Cool);
    assert_eq!(heat_of(&[], Some(95.0), None, 0), Heat::Cool);
}

#[test]
fn it_is_set_after_a_while_over_the_limit_and_cleared_at_once_below_the_margin() {
    let mut node = Overheating::default();
    let mut wanted = |heat, tainted, second| RULES.is_wanted(&mut node, heat, tainted, at(second));
    assert!(!wanted(Heat::Over, false, 0));
    assert!(!wanted(Heat::Over, false, 59));
    assert!(wanted(Heat::Over, false, 60));
    assert!(wanted(Heat::Near, true, 61));
    assert!(!wanted(Heat::Cool, true, 62));
    // The time begins anew, also after a moment near the limit.
    assert!(!wanted(Heat::Over, false, 63));
    assert!(!wanted(Heat::Near, false, 64));
    assert!(!wanted(Heat::Over, false, 123));
    assert!(!wanted(Heat::Over, false, 20));
    assert!(wanted(Heat::Over, false, 80));
}

#[test]
fn a_taint_that_is_found_stays_while_the_load_is_over_the_limit() {
    assert!(RULES.is_wanted(&mut Overheating::default(), Heat::Over, true, at(0)));
}

fn heats() -> impl Strategy<Value = Vec<Heat>> {
    prop::collection::vec(prop_oneof![Just(Heat::Over), Just(Heat::Near), Just(Heat::Cool)], 1..60)
}

fn rank(heat: Heat) -> Option<usize> {
    [Heat::Cool, Heat::Near, Heat::Over].iter().position(|it| *it == heat)
}

proptest! {
    #[test]
    fn a_taint_never_outlives_its_reason_and_never_comes_without_one(heats in heats()) {
        let mut node = Overheating::default();
        let mut tainted = false;
        let mut over = 0;
        for (step, heat) in (0i64..).step_by(20).zip(heats) {
            let before = tainted;
            tainted = RULES.is_wanted(&mut node, heat, tainted, at(step));
            over = if heat == Heat::Over { over + 1 } else { 0 };
            prop_assert!(heat != Heat::Cool || !tainted);
            prop_assert!(before || tainted == (over > 3));
            prop_assert!(heat == Heat::Cool || !before || tainted);
        }
    }

    #[test]
    fn more_load_is_never_less_heat(low in 0.0..1.0f64, more in 0.0..0.5f64) {
        let of = |load: f64| rank(heat_of(&[], Some(load.min(1.0)), None, 0));
        prop_assert!(of(low) <= of(low + more));
    }
}
