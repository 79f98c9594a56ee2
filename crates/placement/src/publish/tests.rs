//! Which polled values are worth a write.

use super::*;
use crate::policy::LoadPolicy;
use crate::selector::Labels;
use crate::units::Ratio;

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 1m, maxAge: 8m, limit: 0.8, weight: 1}
  - {name: load_usage_avg_5m, period: 1m, maxAge: 10m, weight: 1}
  - {name: disk_usage_avg_5m, period: 3m}
  nodePools:
  - name: batch
    selector: tier=batch
    metrics: [{name: cpu_usage_avg_5m, limit: 0.5}]
";

const CPU: &str = "cpu_usage_avg_5m";
const LOAD: &str = "load_usage_avg_5m";
const DISK: &str = "disk_usage_avg_5m";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn reading(metric: &str, value: f64, second: i64) -> (MetricName, Reading) {
    (metric.into(), Reading::new(Ratio::or_infinite(value).unwrap(), at(second)))
}

fn heat(value: f64, second: i64) -> Option<HotValueNote> {
    Some(HotValueNote { value, at: at(second) })
}

struct Case {
    dead_band: f64,
    labels: Labels,
}

const PLAIN: Case = Case { dead_band: 0.05, labels: Labels::new() };

impl Case {
    /// Why a node is written at `now`, where the next chance comes 45 s later.
    fn values(
        &self,
        written: NodeValues<'_>,
        polled: NodeValues<'_>,
        now: i64,
    ) -> Option<WriteReason> {
        let rules = WriteRules::new(&LoadPolicy::from_yaml(POLICY).unwrap(), self.dead_band, None);
        rules.of(&self.labels).reason(written, polled, at(now), at(now + 45))
    }

    fn reason(
        &self,
        written: &[(MetricName, Reading)],
        polled: &[(MetricName, Reading)],
        now: i64,
    ) -> Option<WriteReason> {
        let of = |readings| NodeValues { readings, hot_value: None };
        self.values(of(written), of(polled), now)
    }

    /// The same for one metric: written at second 0, polled at second 60.
    fn moves(&self, metric: &str, from: f64, to: f64) -> Option<WriteReason> {
        self.reason(&[reading(metric, from, 0)], &[reading(metric, to, 60)], 60)
    }
}

#[test]
fn what_readers_lack_is_written() {
    let polled = [reading(CPU, 0.3, 0)];
    assert_eq!(PLAIN.reason(&[], &polled, 0), Some(WriteReason::First));
    // Expired, and from a clock that is far ahead.
    for second in [-480, 120] {
        let written = [reading(CPU, 0.3, second)];
        assert_eq!(PLAIN.reason(&written, &polled, 0), Some(WriteReason::First), "{second}");
    }
    assert_eq!(PLAIN.reason(&[reading(CPU, 0.3, -60)], &polled, 0), None);
}

#[test]
fn a_metric_that_was_not_polled_since_it_was_written_is_no_reason() {
    let written = [reading(CPU, 0.3, 0)];
    assert_eq!(PLAIN.reason(&written, &[], 470), None);
    assert_eq!(PLAIN.reason(&written, &written, 470), None);
    // Too old for its readers.
    assert_eq!(PLAIN.reason(&[], &written, 480), None);
}

#[test]
fn a_limit_that_is_crossed_either_way_is_a_reason_however_small_the_move() {
    assert_eq!(PLAIN.moves(CPU, 0.80, 0.80001), Some(WriteReason::Crossed));
    assert_eq!(PLAIN.moves(CPU, 0.80001, 0.80), Some(WriteReason::Crossed));
    assert_eq!(PLAIN.moves(CPU, 0.79, 0.80), None);
    assert_eq!(PLAIN.moves(LOAD, 0.79, 0.81), None);
}

#[test]
fn what_readers_cannot_tell_apart_crosses_no_limit() {
    // Both are written as 0.80000.
    assert_eq!(PLAIN.moves(CPU, 0.80, 0.800_001), None);
    assert_eq!(Case { dead_band: 0.0, ..PLAIN }.moves(CPU, 0.80, 0.800_004), None);
}

#[test]
fn a_pools_limits_are_its_nodes_alone() {
    let batch = Case { labels: [("tier".to_owned(), "batch".to_owned())].into(), ..PLAIN };
    assert_eq!(batch.moves(CPU, 0.49, 0.51), Some(WriteReason::Crossed));
    assert_eq!(batch.moves(CPU, 0.79, 0.81), None);
    assert_eq!(PLAIN.moves(CPU, 0.49, 0.51), None);
}

#[test]
fn a_move_within_the_dead_band_is_no_reason() {
    assert_eq!(PLAIN.moves(CPU, 0.30, 0.34), None);
    assert_eq!(PLAIN.moves(CPU, 0.30, 0.36), Some(WriteReason::Moved));
    assert_eq!(PLAIN.moves(CPU, 0.30, 0.24), Some(WriteReason::Moved));
}

#[test]
fn above_1_the_dead_band_is_a_part_of_the_value() {
    assert_eq!(PLAIN.moves(LOAD, 4.0, 4.19), None);
    assert_eq!(PLAIN.moves(LOAD, 4.0, 4.21), Some(WriteReason::Moved));
    assert_eq!(PLAIN.moves(LOAD, f64::INFINITY, f64::INFINITY), None);
}

#[test]
fn without_a_dead_band_whatever_moved_is_a_reason_and_what_did_not_is_none() {
    let each = Case { dead_band: 0.0, ..PLAIN };
    assert_eq!(each.moves(CPU, 0.30, 0.30001), Some(WriteReason::Moved));
    assert_eq!(each.moves(CPU, 0.30, 0.30), None);
}

#[test]
fn a_metric_that_no_rule_reads_is_kept_valid_and_may_move() {
    assert_eq!(PLAIN.moves(DISK, 0.1, 0.9), None);
    let written = [reading(DISK, 0.1, 0)];
    let polled = [reading(DISK, 0.1, 360)];
    // Its period and 5 minutes.
    assert_eq!(PLAIN.reason(&written, &polled, 480 - 45 - 61), None);
    let renewed = PLAIN.reason(&written, &polled, 480 - 45 - 60);
    assert_eq!(renewed, Some(WriteReason::Expiring));
}

#[test]
fn what_would_expire_before_the_next_chance_is_renewed() {
    let written = [reading(CPU, 0.3, 0)];
    let polled = [reading(CPU, 0.3, 400)];
    assert_eq!(PLAIN.reason(&written, &polled, 480 - 45 - 61), None);
    let renewed = PLAIN.reason(&written, &polled, 480 - 45 - 60);
    assert_eq!(renewed, Some(WriteReason::Expiring));
}

#[test]
fn the_most_urgent_reason_counts() {
    let written = [reading(LOAD, 0.1, 0), reading(CPU, 0.79, 0)];
    let polled = [reading(LOAD, 0.9, 60), reading(CPU, 0.81, 60)];
    assert_eq!(PLAIN.reason(&written, &polled, 60), Some(WriteReason::Crossed));
    assert_eq!(PLAIN.reason(&written[1..], &polled, 60), Some(WriteReason::First));
    assert!(WriteReason::ALL.is_sorted());
}

#[test]
fn a_hot_value_is_written_when_it_rises_and_kept_valid_while_it_is_not_0() {
    let reason = |written, polled, now| {
        let of = |hot_value| NodeValues { readings: &[], hot_value };
        PLAIN.values(of(written), of(polled), now)
    };
    let hot = Some(WriteReason::HotValue);
    assert_eq!(reason(None, heat(1.0, 0), 0), hot);
    assert_eq!(reason(heat(1.0, 0), heat(2.0, 60), 60), hot);
    assert_eq!(reason(heat(2.0, 0), heat(1.0, 60), 60), None);
    assert_eq!(reason(heat(2.0, 0), heat(1.0, 239), 239), None);
    assert_eq!(reason(heat(2.0, 0), heat(1.0, 240), 240), hot);
    // Expired, it is 0 to its readers.
    assert_eq!(reason(heat(2.0, 0), heat(1.0, 300), 300), hot);
    for now in [0, 240, 300] {
        assert_eq!(reason(heat(0.0, 0), heat(0.0, now), now), None);
        assert_eq!(reason(None, heat(0.0, now), now), None);
        assert_eq!(reason(heat(1.0, 0), None, now), None);
    }
}

#[test]
fn what_readers_lack_is_written_at_once_and_a_crossed_limit_soon() {
    use Urgency::{AtOnce, NextBurst, Soon};
    let urgencies = WriteReason::ALL.map(WriteReason::urgency);
    assert_eq!(urgencies, [AtOnce, Soon, AtOnce, NextBurst, NextBurst]);
}

#[test]
fn what_is_read_for_a_demand_is_written_before_it_expires_and_not_when_it_moves() {
    let policy = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: network_transmit_bytes_avg_5m, period: 1m, maxAge: 3m}]
  demand: {egress: {limit: 0.8, measured: network_transmit_bytes_avg_5m}}
";
    let rules = WriteRules::new(&LoadPolicy::from_yaml(policy).unwrap(), 0.05, None);
    let sent = |value, second| [reading("network_transmit_bytes_avg_5m", value, second)];
    let reason = |now| {
        let (written, polled) = (sent(10.0, 0), sent(90_000.0, now));
        let [written, polled] =
            [&written, &polled].map(|readings| NodeValues { readings, hot_value: None });
        rules.of(&Labels::new()).reason(written, polled, at(now), at(now + 45))
    };
    assert_eq!(reason(60), None);
    assert_eq!(reason(80), Some(WriteReason::Expiring));
}
