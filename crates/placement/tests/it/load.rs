//! Load rules as crane's users know them.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use placement::load::{self, NodeLoad, PodKind};
use placement::policy::LoadPolicy;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use proptest::prelude::*;

const CRANE: &str = include_str!("../golden/crane-policy.yaml");

fn now() -> Timestamp {
    "2026-11-20T09:10:00Z".parse().unwrap()
}

fn policy() -> LoadPolicy {
    LoadPolicy::from_yaml(CRANE).unwrap()
}

/// A node whose annotations are `texts`.
fn node(texts: &[(&str, &str)]) -> NodeLoad {
    let annotations: BTreeMap<_, _> = texts.iter().copied().collect();
    let codec = ReadingCodec::default();
    NodeLoad::from_annotations(&policy(), &codec, |key| annotations.get(key).copied(), |_, _| {})
}

fn filter(texts: &[(&str, &str)]) -> Result<(), load::Overload> {
    load::filter(&policy(), &node(texts), PodKind::Ordinary, now())
}

const FRESH: &str = "2026-11-20T09:09:00Z";

#[test]
fn a_fresh_reading_over_its_limit_rejects_the_node_and_says_why() {
    let text = format!("0.65001,{FRESH}");
    let overload = filter(&[("cpu_usage_avg_5m", &text)]).unwrap_err();
    assert_eq!(overload.to_string(), "Load[cpu_usage_avg_5m] is too high: 65.0% > 65.0%");
}

#[test]
fn a_reading_at_its_limit_is_accepted() {
    assert_eq!(filter(&[("cpu_usage_avg_5m", &format!("0.65000,{FRESH}"))]), Ok(()));
}

#[test]
fn missing_stale_or_broken_readings_never_reject_a_node() {
    let stale = "0.99000,2026-11-20T09:02:00Z";
    for text in [stale, "0.99", "x,2026-11-20T09:09:00Z", "-1,2026-11-20T09:09:00Z", "NaN,2026", ""]
    {
        assert_eq!(filter(&[("cpu_usage_avg_5m", text)]), Ok(()), "{text}");
    }
    assert_eq!(filter(&[]), Ok(()));
}

#[test]
fn a_daemonset_pod_passes_the_hottest_node() {
    let hot = node(&[("cpu_usage_avg_5m", &format!("1.00000,{FRESH}"))]);
    assert_eq!(load::filter(&policy(), &hot, PodKind::Daemon, now()), Ok(()));
    assert!(load::filter(&policy(), &hot, PodKind::Ordinary, now()).is_err());
}

/// All six metrics at one value.
fn evenly(value: &str) -> Vec<(String, String)> {
    policy().metrics.iter().map(|m| (m.to_string(), format!("{value},{FRESH}"))).collect()
}

fn score_of(texts: &[(String, String)]) -> u8 {
    let texts: Vec<_> = texts.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    load::score(&policy(), &node(&texts), now()).get()
}

#[test]
fn score_is_the_weighted_idle_share() {
    assert_eq!(score_of(&evenly("0.30000")), 70);
    assert_eq!(score_of(&evenly("0.00000")), 100);
    assert_eq!(score_of(&evenly("1.20000")), 0);
}

#[test]
fn not_knowing_costs_the_weight() {
    let mut texts = evenly("0.00000");
    texts.retain(|(metric, _)| metric.ends_with("1d"));
    // The two daily metrics carry 1.0 of the 2.0 of all weights.
    assert_eq!(score_of(&texts), 50);
    assert_eq!(score_of(&[]), 0);
}

#[test]
fn each_degree_of_heat_costs_ten_points() {
    let mut texts = evenly("0.30000");
    texts.push(("node_hot_value".to_owned(), format!("2,{FRESH}")));
    assert_eq!(score_of(&texts), 50);
}

#[test]
fn a_hot_value_older_than_five_minutes_is_ignored() {
    let mut texts = evenly("0.30000");
    texts.push(("node_hot_value".to_owned(), "2,2026-11-20T09:05:00Z".to_owned()));
    assert_eq!(score_of(&texts), 70);
}

#[test]
fn bindings_that_we_saw_ourselves_cool_a_score_at_once() {
    let mut node = node(&[("cpu_usage_avg_5m", &format!("0.00000,{FRESH}"))]);
    let before = load::score(&policy(), &node, now()).get();
    let horizon = policy().hot_horizon();
    (0..2).for_each(|_| node.bindings.record(now(), horizon));
    assert_eq!(load::score(&policy(), &node, now()).get(), before.saturating_sub(10));
}

#[test]
fn an_explanation_adds_up_to_the_score() {
    let texts = evenly("0.25000");
    let texts: Vec<_> = texts.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let explained = load::explain(&policy(), &node(&texts), now());
    assert_eq!(explained.score, load::score(&policy(), &node(&texts), now()));
    assert_eq!(explained.terms.iter().map(|t| t.points).sum::<f64>().round() as u8, 75);
    assert_eq!(explained.terms.len(), 6);
}

#[test]
fn times_are_local_with_a_literal_z() {
    let shanghai = ReadingCodec::new(TimeZone::fixed(jiff::tz::offset(8)));
    let reading = Reading::new(Ratio::new(0.63012).unwrap(), now());
    assert_eq!(shanghai.encode(&reading), "0.63012,2026-11-20T17:10:00Z");
    assert_eq!(shanghai.decode("0.63012,2026-11-20T17:10:00Z"), Ok(reading));
    assert_eq!(ReadingCodec::default().encode(&reading), "0.63012,2026-11-20T09:10:00Z");
}

#[test]
fn decode_errors_say_which_half_is_wrong() {
    let codec = ReadingCodec::default();
    let error = |text: &str| codec.decode(text).unwrap_err().to_string();
    assert!(error("0.5").starts_with("expected `<value>,<time>`"));
    assert!(error("0.5,2026-11-20T09:00:00Z,1").starts_with("expected `<value>,<time>`"));
    assert!(error("much,2026-11-20T09:00:00Z").contains("before the comma, found `much`"));
    assert!(error("0.5,yesterday").contains("after the comma, found `yesterday`"));
}

proptest! {
    #[test]
    fn readings_survive_the_round_trip(value in 0.0..10.0_f64, second in 0..4_000_000_000_i64) {
        let codec = ReadingCodec::default();
        let at = Timestamp::from_second(second).unwrap();
        let back = codec.decode(&codec.encode(&Reading::new(Ratio::new(value).unwrap(), at))).unwrap();
        prop_assert_eq!(back.at, at);
        prop_assert!((back.value.get() - value).abs() <= 0.000_005 + 1e-12);
    }

    #[test]
    fn no_text_makes_the_reading_codec_panic(text in "\\PC{0,60}") {
        let _ = ReadingCodec::default().decode(&text);
        let _ = ReadingCodec::default().decode_count(&text);
    }

    #[test]
    fn freshness_ends_exactly_at_the_age(age in 0..2_000_i64, max in 1..1_000_i64) {
        let reading = Reading::new(Ratio::new(0.5).unwrap(), now());
        let later = now() + SignedDuration::from_secs(age);
        prop_assert_eq!(reading.is_fresh(later, SignedDuration::from_secs(max)), age < max);
    }
}
