//! Load rules as crane's users know them.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use placement::load::{
    Evaluation, LimitOutcome, LoadDecision, MetricTable, NodeLoad, PodKind, PodToPlace,
    ReadingStatus, Readings, ResolvedPolicy, Score, Verdict,
};
use placement::policy::LoadPolicy;
use placement::reading::{Implausible, Reading, ReadingCodec};
use placement::resources::Amounts;
use placement::units::{MetricName, Ratio};
use proptest::prelude::*;

const CRANE: &str = include_str!("../golden/crane-policy.yaml");
const FRESH: &str = "2026-11-20T09:09:00Z";

fn now() -> Timestamp {
    "2026-11-20T09:10:00Z".parse().unwrap()
}

/// A policy and a node whose annotations are read as the extender reads them.
struct Case {
    policy: ResolvedPolicy,
    node: NodeLoad,
}

impl Case {
    fn new(policy: &str, texts: &[(&str, &str)]) -> Self {
        let mut table = MetricTable::default();
        let codec = ReadingCodec::default();
        let policy = ResolvedPolicy::new(LoadPolicy::from_yaml(policy).unwrap(), &mut table);
        let readings = texts.iter().filter_map(|(name, text)| {
            let metric = MetricName::parse(name)?;
            let reading = codec.decode(text).ok()?.check(&metric, now()).ok()?;
            Some((metric, reading))
        });
        let readings = Arc::new(Readings::new(&mut table, readings));
        Self { policy, node: NodeLoad { readings, ..NodeLoad::default() } }
    }

    fn of(texts: &[(&str, &str)]) -> Self {
        Self::new(CRANE, texts)
    }

    /// All six metrics at one value.
    fn evenly(value: &str) -> Self {
        let metrics = LoadPolicy::from_yaml(CRANE).unwrap();
        let text = format!("{value},{FRESH}");
        let texts: Vec<_> =
            metrics.metrics().into_iter().map(|m| (m.as_str(), text.as_str())).collect();
        Self::of(&texts)
    }

    fn evaluation(&self, pod: PodKind) -> Evaluation<'_, '_> {
        let pod = PodToPlace { kind: pod, ..PodToPlace::ORDINARY };
        Evaluation { policy: &self.policy, node: &self.node, pod, now: now() }
    }

    fn decide(&self) -> LoadDecision<'_> {
        self.evaluation(PodKind::Ordinary).decide()
    }

    fn accepts(&self) -> bool {
        self.evaluation(PodKind::Ordinary).verdict() == Verdict::Accepted
    }

    fn score(&self) -> u8 {
        self.evaluation(PodKind::Ordinary).score().get()
    }
}

#[test]
fn a_fresh_reading_over_its_limit_rejects_the_node() {
    let case = Case::of(&[("cpu_usage_avg_5m", &format!("0.65001,{FRESH}"))]);
    assert!(!case.accepts());
    let decision = case.decide();
    let reasons: Vec<_> = decision.reasons().collect();
    let reason =
        "Load[cpu_usage_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)";
    assert_eq!(reasons, [reason]);
}

#[test]
fn a_reading_at_its_limit_is_accepted() {
    assert!(Case::of(&[("cpu_usage_avg_5m", &format!("0.65000,{FRESH}"))]).accepts());
}

#[test]
fn a_decision_holds_every_limit_and_not_only_the_first_that_is_exceeded() {
    let high = format!("0.90000,{FRESH}");
    let low = format!("0.10000,{FRESH}");
    let case = Case::of(&[
        ("cpu_usage_avg_5m", &high),
        ("cpu_usage_max_avg_1h", &low),
        ("mem_usage_avg_5m", &high),
    ]);
    let decision = case.decide();
    let outcomes: Vec<_> = decision.limits.iter().map(|check| check.outcome).collect();
    let met = LimitOutcome::Met;
    let exceeded = LimitOutcome::Exceeded;
    assert_eq!(outcomes, [exceeded, met, exceeded, LimitOutcome::Unknown]);
    assert_eq!(decision.reasons().count(), 2);
    assert_eq!(decision.limits[3].load.reading, ReadingStatus::Missing);
    let Verdict::Overloaded(first) = decision.verdict else { panic!("accepted") };
    assert_eq!(first.metric.name.as_str(), "cpu_usage_avg_5m");
}

#[test]
fn a_reason_is_the_same_whatever_the_reading_and_no_format_string() {
    let reason = |value: &str| {
        let case = Case::of(&[("mem_usage_avg_5m", &format!("{value},{FRESH}"))]);
        case.decide().reasons().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(reason("0.70000"), reason("0.99999"));
    assert!(reason("0.70000").iter().all(|text| !text.contains('%')));
}

#[test]
fn missing_stale_or_broken_readings_never_reject_a_node() {
    let stale = "0.99000,2026-11-20T09:02:00Z";
    for text in [stale, "0.99", "x,2026-11-20T09:09:00Z", "-1,2026-11-20T09:09:00Z", "NaN,2026", ""]
    {
        assert!(Case::of(&[("cpu_usage_avg_5m", text)]).accepts(), "{text}");
    }
    assert!(Case::of(&[]).accepts());
}

#[test]
fn a_daemonset_pod_passes_the_hottest_node() {
    let hot = Case::of(&[("cpu_usage_avg_5m", &format!("1.00000,{FRESH}"))]);
    assert_eq!(hot.evaluation(PodKind::Daemon).verdict(), Verdict::Accepted);
    let exempt = hot.evaluation(PodKind::Daemon).decide();
    assert_eq!(exempt.limits[0].outcome, LimitOutcome::Exempt);
    assert!(!hot.accepts());
}

#[test]
fn score_is_the_weighted_idle_share() {
    assert_eq!(Case::evenly("0.30000").score(), 70);
    assert_eq!(Case::evenly("0.00000").score(), 100);
    assert_eq!(Case::evenly("1.10000").score(), 0);
}

#[test]
fn not_knowing_costs_the_weight() {
    let text = format!("0.00000,{FRESH}");
    // The two daily metrics carry 1.0 of the 2.0 of all weights.
    let daily = [("cpu_usage_max_avg_1d", &*text), ("mem_usage_max_avg_1d", &*text)];
    assert_eq!(Case::of(&daily).score(), 50);
    assert_eq!(Case::of(&[]).score(), 0);
}

#[test]
fn each_whole_hot_value_costs_ten_points_and_cranes_is_a_float() {
    let codec = ReadingCodec::default();
    for (text, score) in [("2", 50), ("1.5", 55), ("0.04", 70), ("9", 0)] {
        let mut case = Case::evenly("0.30000");
        case.node.crane_hot_value = codec.decode_hot_value(&format!("{text},{FRESH}")).ok();
        assert_eq!(case.score(), score, "{text}");
    }
}

#[test]
fn cranes_hot_value_counts_for_five_minutes_and_not_from_ahead() {
    let codec = ReadingCodec::default();
    for time in ["2026-11-20T09:05:00Z", "2026-11-20T09:11:01Z"] {
        let mut case = Case::evenly("0.30000");
        case.node.crane_hot_value = codec.decode_hot_value(&format!("2,{time}")).ok();
        assert_eq!(case.score(), 70, "{time}");
    }
}

#[test]
fn bindings_that_we_saw_ourselves_cool_a_score_at_once() {
    let mut case = Case::of(&[("cpu_usage_avg_5m", &format!("0.00000,{FRESH}"))]);
    let before = case.score();
    let horizon = case.policy.policy.hot_horizon();
    let recent = Arc::make_mut(&mut case.node.recent);
    for pod in ["a", "b"] {
        recent.bound(&pod.into(), now(), Amounts::default(), horizon);
    }
    assert_eq!(case.score(), before.saturating_sub(10));
}

#[test]
fn the_terms_of_a_decision_add_up_to_its_score() {
    let case = Case::evenly("0.25000");
    let evaluation = case.evaluation(PodKind::Ordinary);
    let decision = evaluation.decide();
    assert_eq!(decision.score, Score::truncated(75.0));
    assert_eq!(
        decision.terms.iter().filter_map(|t| evaluation.points(t)).sum::<f64>().round() as u8,
        75
    );
    assert_eq!(decision.terms.len(), 6);
}

#[test]
fn a_number_too_large_for_a_float_is_no_reading_and_rejects_no_node() {
    for text in ["1e400", "1e309", "+1E999", "1e1000000000"] {
        let case = Case::of(&[("cpu_usage_avg_5m", &format!("{text},{FRESH}"))]);
        assert_eq!(case.decide().verdict, Verdict::Accepted, "{text}");
    }
}

#[test]
fn infinity_rejects_as_in_crane_and_scores_nothing() {
    let case = Case::of(&[("cpu_usage_avg_5m", &format!("+Inf,{FRESH}"))]);
    assert!(!case.accepts());
    assert_eq!(case.score(), 0);
    // A weight of 0 times infinity is no number, and must not spoil the sum.
    let unweighted = CRANE.replacen("weight: 0.2", "weight: 0", 1);
    let inf = format!("+Inf,{FRESH}");
    let idle = format!("0.00000,{FRESH}");
    let case =
        Case::new(&unweighted, &[("cpu_usage_avg_5m", &inf), ("mem_usage_max_avg_1d", &idle)]);
    assert!(case.score() > 0);
}

#[test]
fn a_reading_from_more_than_a_minute_ahead_is_unknown() {
    // crane's annotator in Asia/Shanghai writes 17:09 for our 09:09.
    let leftover = "0.99000,2026-11-20T17:09:00Z";
    assert!(Case::of(&[("cpu_usage_avg_5m", leftover)]).accepts());
    let reading = ReadingCodec::default().decode(leftover).unwrap();
    let metric = MetricName::from("cpu_usage_avg_5m");
    let refused = reading.check(&metric, now()).unwrap_err();
    assert_eq!(refused, Implausible::Ahead(SignedDuration::from_mins(8 * 60 - 1)));
    assert!(refused.to_string().contains("--time-zone"), "{refused}");
    // What came in earlier does not count either, should the clock be set back.
    assert!(!reading.is_fresh(now(), SignedDuration::from_mins(8)));
    let skewed = ReadingCodec::default().decode("0.99000,2026-11-20T09:11:00Z").unwrap();
    assert!(skewed.check(&metric, now()).is_ok());
}

#[test]
fn a_percentage_where_a_fraction_belongs_is_unknown() {
    for (metric, value, believed) in [
        ("cpu_usage_avg_5m", "6.80000", false),
        ("cpu_usage_avg_5m", "1.20000", false),
        ("cpu_usage_avg_5m", "1.05000", true),
        ("cpu_usage_avg_5m", "+Inf", true),
        // The load average by CPU has no upper bound, and neither have other metrics.
        ("load_usage_avg_5m", "6.80000", true),
        ("network_receive_bytes_avg_5m", "6.80000", true),
    ] {
        let reading = ReadingCodec::default().decode(&format!("{value},{FRESH}")).unwrap();
        let checked = reading.check(&metric.into(), now());
        assert_eq!(checked.is_ok(), believed, "{metric} {value}");
    }
}

#[test]
fn a_second_policy_is_tried_on_the_same_readings() {
    let mut table = MetricTable::default();
    let codec = ReadingCodec::default();
    let resolve = |text: &str, table: &mut MetricTable| {
        ResolvedPolicy::new(LoadPolicy::from_yaml(text).unwrap(), table)
    };
    let first = resolve(CRANE, &mut table);
    let texts = [("cpu_usage_avg_5m", "0.60000"), ("fs_usage_active", "0.95000")];
    let readings = texts.map(|(metric, value)| {
        (MetricName::from(metric), codec.decode(&format!("{value},{FRESH}")).unwrap())
    });
    let readings = Arc::new(Readings::new(&mut table, readings));
    let node = NodeLoad { readings, ..NodeLoad::default() };
    let second = resolve(
        "{apiVersion: scheduler.policy.crane.io/v1alpha1, kind: DynamicSchedulerPolicy, spec: {\
          syncPolicy: [{name: fs_usage_active, period: 3m}], predicate: [{name: fs_usage_active, maxLimitPecent: 0.9}]}}",
        &mut table,
    );
    let verdict = |policy: &ResolvedPolicy| {
        let pod = PodToPlace::ORDINARY;
        (Evaluation { policy, node: &node, pod, now: now() }).verdict() == Verdict::Accepted
    };
    assert_eq!((verdict(&first), verdict(&second)), (true, false));
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

#[test]
fn times_are_read_as_go_reads_them() {
    let codec = ReadingCodec::default();
    let wanted: Timestamp = "2026-11-20T09:05:06Z".parse().unwrap();
    for time in ["2026-11-20T09:05:06Z", "2026-11-20T9:05:06Z", "2026-11-20T09:05:06.987654321Z"] {
        assert_eq!(codec.decode(&format!("0.5,{time}")).unwrap().at, wanted, "{time}");
    }
    for time in [
        "2026-11-20T09:05:06",
        "2026-11-20T09:05:06z",
        "2026-11-20 09:05:06Z",
        "2026-11-20T09:05:06+08:00Z",
        "2026-11-20T09:05Z",
        "2026-1-20T09:05:06Z",
        "2026-11-20T09:5:06Z",
        "2026-11-20T09:05:06.Z",
        "2026-11-20T09:05:06.1e1Z",
        "2026-11-20T24:00:00Z",
        "2026-02-30T09:05:06Z",
        "+2026-11-20T09:05:06Z",
        "02026-11-20T09:05:06Z",
        " 2026-11-20T09:05:06Z",
        "2026-11-20T09:05:60Z",
    ] {
        assert!(codec.decode(&format!("0.5,{time}")).is_err(), "{time}");
    }
}

proptest! {
    #[test]
    fn a_verdict_and_a_score_are_those_of_the_whole_decision(
        values in proptest::collection::vec((0.0..1.2_f64, -400..800_i64), 6),
        hot in 0..4_usize,
        daemon: bool,
    ) {
        let policy = LoadPolicy::from_yaml(CRANE).unwrap();
        let codec = ReadingCodec::default();
        let texts: Vec<_> = policy.metrics().into_iter().zip(&values).map(|(metric, (value, age))| {
            let at = now() - SignedDuration::from_secs(*age);
            (metric.to_string(), codec.encode(&Reading::new(Ratio::new(*value).unwrap(), at)))
        }).collect();
        let texts: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let mut case = Case::of(&texts);
        let recent = Arc::make_mut(&mut case.node.recent);
        (0..hot).for_each(|n| { recent.in_flight(&format!("p{n}").into(), now(), Amounts::default()); });
        let pod = if daemon { PodKind::Daemon } else { PodKind::Ordinary };
        let evaluation = case.evaluation(pod);
        let decision = evaluation.decide();
        prop_assert_eq!(decision.verdict, evaluation.verdict());
        prop_assert_eq!(decision.score, evaluation.score());
        prop_assert_eq!(decision.reasons().next().is_none(), decision.verdict == Verdict::Accepted);
    }

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
        let _ = ReadingCodec::default().decode_hot_value(&text);
    }

    #[test]
    fn freshness_ends_exactly_at_the_age(age in 0..2_000_i64, max in 1..1_000_i64) {
        let reading = Reading::new(Ratio::new(0.5).unwrap(), now());
        let later = now() + SignedDuration::from_secs(age);
        prop_assert_eq!(reading.is_fresh(later, SignedDuration::from_secs(max)), age < max);
    }
}
