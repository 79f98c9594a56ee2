//! How answers of exporters are read, and which values are held back.

use super::*;
use proptest::prelude::*;
use serde_json::json;

const DATE: &str = "2026-11-20T09:00:00Z";

fn date() -> Timestamp {
    DATE.parse().unwrap()
}

fn answered_at(date: Timestamp) -> AnswerContext {
    AnswerContext { date: Some(date), since_creation: None }
}

fn flat(body: &str) -> serde_json::Result<Statistics> {
    Statistics::parse(Format::Flat, body.as_bytes(), AnswerContext::default())
}

/// An answer with one value, `x`, as it would be by default but for `change`.
fn detailed(change: &serde_json::Value) -> Statistics {
    let mut detail = json!({"value": 50, "timestamp": "2026-11-20T08:59:55.017Z", "coverage": 1, "windowSeconds": 300});
    for (key, value) in change.as_object().unwrap() {
        detail[key] = value.clone();
    }
    let answer = json!({"bootId": null, "sampleIntervalSeconds": 10, "values": {"x": detail}});
    Statistics::parse(Format::Detailed, answer.to_string().as_bytes(), answered_at(date())).unwrap()
}

fn x(change: &serde_json::Value) -> Option<MetricValue> {
    detailed(change).get(&"x".into())
}

fn value(percent: f64) -> Option<MetricValue> {
    Some(MetricValue::Usable(Ratio::from_percent(percent).unwrap()))
}

#[test]
fn percent_becomes_a_fraction() {
    let statistics = flat(r#"{"cpu_usage_avg_5m": 63.012, "mem_usage_avg_5m": 0}"#).unwrap();
    assert_eq!(statistics.get(&"cpu_usage_avg_5m".into()), value(63.012));
    assert_eq!(statistics.get(&"mem_usage_avg_5m".into()), value(0.0));
    assert_eq!(x(&json!({})), value(50.0));
}

#[test]
fn what_is_no_number_is_absent_and_never_zero() {
    let body = r#"{"a": null, "b": -1, "c": "7", "d": [7], "e": {"f": 7}, "g": true, "h": 7,
        "i": "NaN", "j": 1e300}"#;
    let statistics = flat(body).unwrap();
    assert_eq!(statistics.iter().collect::<Vec<_>>(), [("h", value(7.0).unwrap())]);
    for change in [
        json!({"value": null}),
        json!({"value": "NaN"}),
        json!({"value": -1}),
        json!({"value": 1e300}),
        json!({"timestamp": null}),
        json!({"timestamp": 1_700_000_000}),
        json!({"timestamp": "yesterday"}),
        json!({"coverage": null}),
        json!({"coverage": "1"}),
        json!({"coverage": -0.1}),
        json!({"coverage": 1.01}),
        json!({"windowSeconds": -300}),
    ] {
        assert_eq!(x(&change), None, "{change}");
    }
}

#[test]
fn a_window_less_than_half_full_is_held_back() {
    assert_eq!(x(&json!({"coverage": 0.5})), value(50.0));
    let ready_in = Some(SignedDuration::from_millis(75_000));
    let held_back = MetricValue::HeldBack(HoldReason::Coverage { coverage: 0.25, ready_in });
    assert_eq!(x(&json!({"coverage": 0.25})), Some(held_back));
    let held_back = MetricValue::HeldBack(HoldReason::Coverage { coverage: 0.25, ready_in: None });
    assert_eq!(x(&json!({"coverage": 0.25, "windowSeconds": null})), Some(held_back));
}

/// The value of a window of an hour with `covered` seconds of samples, on a node that booted `uptime` seconds ago and
/// joined `since_creation` seconds ago.
fn young(covered: u32, uptime: &serde_json::Value, since_creation: Option<i64>) -> MetricValue {
    let detail = json!({
        "value": 50, "timestamp": "2026-11-20T08:59:55.017Z", "windowSeconds": 3600,
        "coverage": f64::from(covered) / 3600.0,
    });
    let answer = json!({"uptime_seconds": uptime, "values": {"x": detail}}).to_string();
    let since_creation = since_creation.map(SignedDuration::from_secs);
    let context = AnswerContext { since_creation, ..answered_at(date()) };
    let statistics = Statistics::parse(Format::Detailed, answer.as_bytes(), context).unwrap();
    statistics.get(&"x".into()).unwrap()
}

/// After how many seconds it would be usable, or 0.
fn wait(value: MetricValue) -> i64 {
    match value {
        MetricValue::HeldBack(HoldReason::Coverage { ready_in, .. }) => {
            ready_in.unwrap().as_millis().div_euclid(1000) as i64 + 1
        }
        _ => 0,
    }
}

#[test]
fn half_of_the_nodes_age_is_enough_for_a_young_window() {
    let none = serde_json::Value::Null;
    assert_eq!(wait(young(90, &json!(180), None)), 0);
    assert_eq!(wait(young(90, &json!(180), Some(86_400))), 0);
    assert_eq!(wait(young(90, &json!(864_000), Some(180))), 0);
    assert_eq!(wait(young(90, &none, Some(180))), 0);
    // 80 s of 180 s: after 20 s more, 100 s of 200 s.
    assert_eq!(wait(young(80, &json!(180), None)), 20 + 1);
    // Not before 150 s.
    assert_eq!(wait(young(140, &json!(140), None)), 10 + 1);
    // Half of the window is enough at any age.
    assert_eq!(wait(young(1800, &json!(86_400), None)), 0);
    assert_eq!(wait(young(1700, &json!(86_400), Some(86_400))), 100 + 1);
}

#[test]
fn an_impossible_age_is_unknown() {
    for uptime in [json!(null), json!(-1), json!("180"), json!(1e300), json!([180])] {
        assert_eq!(wait(young(90, &uptime, None)), 1710 + 1);
    }
    // The annotator's clock is behind the API server's.
    assert_eq!(wait(young(90, &json!(null), Some(-180))), 1710 + 1);
}

#[test]
fn a_value_older_than_the_exporter_itself_shows_is_held_back() {
    assert_eq!(x(&json!({"timestamp": "2026-11-20T08:58:30Z"})), value(50.0));
    let age = MetricValue::HeldBack(HoldReason::Age(SignedDuration::from_secs(91)));
    assert_eq!(x(&json!({"timestamp": "2026-11-20T08:58:29Z"})), Some(age));
}

#[test]
fn a_nodes_wrong_clock_holds_nothing_back() {
    for (timestamp, date) in [
        // A clock at 1970, one that is years ahead, and one that was set back after the sample.
        ("1970-01-01T00:00:09Z", Some("1970-01-01T00:00:12Z")),
        ("2099-01-01T00:00:00Z", Some("2099-01-01T00:00:10Z")),
        ("2026-11-20T12:00:00Z", Some("2026-11-20T09:00:00Z")),
        // Without a `Date` the age is not known.
        ("1970-01-01T00:00:09Z", None),
    ] {
        let detail = json!({"value": 50, "timestamp": timestamp, "coverage": 1});
        let answer = json!({"sampleIntervalSeconds": 10, "values": {"x": detail}}).to_string();
        let date = date.map(|date| date.parse().unwrap());
        let context = AnswerContext { date, since_creation: None };
        let read = Statistics::parse(Format::Detailed, answer.as_bytes(), context).unwrap();
        assert_eq!(read.get(&"x".into()), value(50.0), "{timestamp}");
    }
}

#[test]
fn an_invalid_sample_interval_counts_as_the_longest() {
    for interval in [json!(null), json!("10"), json!(i64::MAX), json!(60)] {
        let detail = json!({"value": 50, "timestamp": "2026-11-20T08:56:00Z", "coverage": 1});
        let answer =
            json!({"sampleIntervalSeconds": interval, "values": {"x": detail}}).to_string();
        let context = answered_at(date());
        let read = Statistics::parse(Format::Detailed, answer.as_bytes(), context).unwrap();
        assert_eq!(read.get(&"x".into()), value(50.0), "{answer}");
    }
}

#[test]
fn a_body_of_another_shape_is_an_error() {
    for body in ["", "[1]", "7", "null", "{\"a\": NaN}", "{\"a\": 1", "<html>", "{\"a\": 1e999}"] {
        for format in [Format::Flat, Format::Detailed] {
            let context = AnswerContext::default();
            assert!(Statistics::parse(format, body.as_bytes(), context).is_err(), "{body}");
        }
    }
    for body in ["{}", r#"{"values": []}"#, r#"{"values": null}"#, r#"{"cpu_usage_active": 7}"#] {
        let context = AnswerContext::default();
        assert!(Statistics::parse(Format::Detailed, body.as_bytes(), context).is_err(), "{body}");
    }
}

#[test]
fn a_hold_reason_says_how_much() {
    for (change, expected) in [
        (
            json!({"coverage": 0.126}),
            "13% of its window holds samples; half of it must, or half of the node's age",
        ),
        (json!({"timestamp": "2026-11-20T08:00:00Z"}), "its newest sample is 3600 s old"),
    ] {
        let Some(MetricValue::HeldBack(reason)) = x(&change) else { panic!("{change}") };
        assert_eq!(reason.to_string(), expected);
    }
}

proptest! {
    /// A golden answer with a byte altered is read or refused, and no value is beyond its bounds.
    #[test]
    fn no_answer_panics(place in 0usize..4096, byte: u8, flat: bool) {
        let golden = include_bytes!("../../../../node-exporter-plus/tests/golden/busy.v1.json");
        let mut body = golden.to_vec();
        let place = place % body.len();
        body[place] = byte;
        let format = if flat { Format::Flat } else { Format::Detailed };
        let context = answered_at("2023-11-14T23:48:20Z".parse().unwrap());
        let read = Statistics::parse(format, &body, context).unwrap_or_default();
        for (_, value) in read.iter() {
            if let MetricValue::Usable(ratio) = value {
                prop_assert!((0.0..MAX_VALUE).contains(&ratio.get()));
            }
        }
    }
}

#[test]
fn of_an_answer_only_what_is_wanted_is_read_and_the_gpus() {
    let detail = json!({"value": 50, "timestamp": "2026-11-20T08:59:55Z", "coverage": 1});
    let mut gpu = detail.clone();
    gpu["instance"] = "GPU-a".into();
    let values = json!({"a": detail, "b": {"value": []}, "c": detail, "gpu_0_usage_active": gpu});
    // The values may come before what they are judged by.
    let answer =
        format!(r#"{{"values": {values}, "sampleIntervalSeconds": 10, "boot\u0049d": {{}}}}"#);
    let wanted = ["a".into(), "absent".into()];
    let [some, all] = [Wanted::Only(&wanted), Wanted::All].map(|wanted| {
        let context = answered_at(date());
        Statistics::parse_wanted(Format::Detailed, answer.as_bytes(), context, wanted).unwrap()
    });
    assert_eq!(some.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "gpu_0_usage_active"]);
    assert_eq!(some.get(&"a".into()), all.get(&"a".into()));
    assert!(all.get(&"c".into()).is_some() && !some.into_gpus().is_empty());
    let flat = Statistics::parse_wanted(
        Format::Flat,
        br#"{"a": 7, "c": 8}"#,
        AnswerContext::default(),
        Wanted::Only(&wanted),
    );
    assert_eq!(flat.unwrap().iter().collect::<Vec<_>>(), [("a", value(7.0).unwrap())]);
}

#[test]
fn a_body_that_goes_on_after_its_end_is_refused() {
    for (format, body) in [(Format::Detailed, r#"{"values": {}} {}"#), (Format::Flat, "{} x")] {
        assert!(Statistics::parse(format, body.as_bytes(), AnswerContext::default()).is_err());
    }
}
