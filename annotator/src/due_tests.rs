use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

const CRANE: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu_usage_avg_5m, period: 3m}
  - {name: cpu_usage_max_avg_1h, period: 15m}
  - {name: cpu_usage_max_avg_1d, period: 3h}
";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName::from(name)
}

fn crane() -> LoadPolicy {
    LoadPolicy::from_yaml(CRANE).unwrap()
}

/// Lives from `start` to `end`, writing everything wanted whenever a poll is worth it; a poll comes
/// `late` seconds after it is due. Returns the times of the polls, and of the writes per metric.
fn live(
    dues: &mut Dues,
    start: i64,
    end: i64,
    late: i64,
) -> (Vec<i64>, BTreeMap<String, Vec<i64>>) {
    let (mut polls, mut writes) = (Vec::new(), BTreeMap::<String, Vec<i64>>::new());
    let mut now = start;
    loop {
        now = dues.next(at(now)).unwrap().max(at(now)).as_second() + late;
        if now >= end {
            return (polls, writes);
        }
        polls.push(now);
        for metric in dues.wanted(at(now)) {
            dues.written(&metric, at(now));
            writes.entry(metric.to_string()).or_default().push(now);
        }
    }
}

const DAY: i64 = 24 * 3600;

#[test]
fn a_new_node_is_due_at_once_with_everything() {
    let dues = Dues::new(&node("a"), &crane());
    assert!(dues.next(at(1000)).unwrap() <= at(1000));
    assert_eq!(dues.wanted(at(1000)).len(), 3);
}

#[test]
fn rules_of_3m_15m_and_3h_share_one_poll_each_3_minutes() {
    let mut dues = Dues::new(&node("a"), &crane());
    let (polls, writes) = live(&mut dues, 1_000_000, 1_000_000 + DAY, 0);
    // The first poll is off the grid.
    assert!((480..=482).contains(&polls.len()), "{}", polls.len());
    assert!((96..=98).contains(&writes["cpu_usage_max_avg_1h"].len()));
    assert!((8..=10).contains(&writes["cpu_usage_max_avg_1d"].len()));
}

#[test]
fn a_metric_that_is_held_back_is_asked_for_when_it_can_be_there_or_at_its_next_tick() {
    let mut dues = Dues::new(&node("a"), &crane());
    for metric in ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h"] {
        dues.written(&metric.into(), at(1_000_000));
    }
    let metric = "cpu_usage_max_avg_1d".into();
    let next = |dues: &Dues| {
        dues.0.iter().find(|entry| entry.metric == metric).unwrap().worth_a_poll(at(1_000_000))
    };
    for (wait, asked) in [(0, 1), (150, 150), (12 * 3600, 3 * 3600)] {
        dues.held_back(&metric, at(1_000_000), SignedDuration::from_secs(wait));
        assert_eq!(next(&dues), at(1_000_000 + asked));
    }
    dues.clock_set_back();
    assert!(next(&dues) < at(1_000_000));
}

#[test]
fn a_restart_right_after_a_write_finds_nothing_due() {
    let mut dues = Dues::new(&node("a"), &crane());
    let (polls, _) = live(&mut dues, 1_000_000, 1_010_000, 2);
    let last = *polls.last().unwrap();
    let mut restarted = Dues::new(&node("a"), &crane());
    for entry in &dues.0 {
        restarted.written(&entry.metric, entry.written.unwrap());
    }
    assert!(restarted.next(at(last + 1)).unwrap() > at(last + 1));
    assert_eq!(restarted.next(at(last + 1)), dues.next(at(last + 1)));
}

#[test]
fn what_was_missed_during_a_long_stop_is_due_at_once_and_only_once() {
    let mut dues = Dues::new(&node("a"), &crane());
    for metric in ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h", "cpu_usage_max_avg_1d"] {
        dues.written(&MetricName::from(metric), at(1_000_000));
    }
    let (polls, _) = live(&mut dues, 1_000_000 + DAY, 1_000_000 + DAY + 180, 0);
    assert!((1..=2).contains(&polls.len()), "{polls:?}");
    assert_eq!(polls[0], 1_000_000 + DAY);
}

#[test]
fn a_time_from_the_future_counts_as_never_written() {
    let mut dues = Dues::new(&node("a"), &crane());
    let eight_hours_ahead = at(1_000_000 + 8 * 3600);
    dues.observed(&MetricName::from("cpu_usage_avg_5m"), eight_hours_ahead);
    assert!(dues.next(at(1_000_000)).unwrap() <= at(1_000_000));
    for metric in dues.wanted(at(1_000_000)) {
        dues.written(&metric, at(1_000_000));
    }
    assert!(dues.next(at(1_000_000)).unwrap() > at(1_000_000));
    let mut slightly = Dues::new(&node("a"), &crane());
    let metrics: Vec<_> = slightly.metrics().cloned().collect();
    metrics.iter().for_each(|metric| slightly.written(metric, at(1_000_030)));
    assert!(slightly.next(at(1_000_000)).unwrap() > at(1_000_000));
}

#[test]
fn an_echo_of_an_older_write_changes_nothing() {
    let mut dues = Dues::new(&node("a"), &crane());
    let metrics: Vec<_> = dues.metrics().cloned().collect();
    metrics.iter().for_each(|metric| dues.written(metric, at(1_000_000)));
    let next = dues.next(at(1_000_001));
    metrics.iter().for_each(|metric| dues.observed(metric, at(900_000)));
    assert_eq!(dues.next(at(1_000_001)), next);
}

#[test]
fn an_absent_metric_waits_for_itself_but_rides_along() {
    let mut dues = Dues::new(&node("a"), &crane());
    let (short, long) = (MetricName::from("cpu_usage_avg_5m"), "cpu_usage_max_avg_1d".into());
    dues.written(&short, at(1_000_000));
    dues.written(&"cpu_usage_max_avg_1h".into(), at(1_000_000));
    dues.absent(&long, at(1_000_000));
    assert_eq!(dues.next(at(1_000_000)), Some(at(1_000_005)));
    assert_eq!(dues.wanted(at(1_000_001)), [long]);
}

#[test]
fn another_policy_keeps_what_was_written() {
    let mut dues = Dues::new(&node("a"), &crane());
    for metric in ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h", "cpu_usage_max_avg_1d"] {
        dues.written(&MetricName::from(metric), at(1_000_000));
    }
    let more = CRANE.replace("3h}", "3h}\n  - {name: mem_usage_avg_5m, period: 3m}");
    let dues = dues.under(&node("a"), &LoadPolicy::from_yaml(&more).unwrap());
    assert_eq!(dues.wanted(at(1_000_001)), [MetricName::from("mem_usage_avg_5m")]);
}

#[test]
fn nodes_are_spread_over_the_period() {
    let mut ticks = [0_u32; 180];
    for i in 0..1800 {
        let grid = Grid::new(&node(&format!("node-{i:05}")), SignedDuration::from_mins(3));
        ticks[usize::try_from(grid.phase).unwrap()] += 1;
    }
    // 10 a second on average; a fair spread of 1,800 hardly ever puts 30 into one.
    assert!(ticks.iter().all(|count| *count < 30), "{ticks:?}");
}

proptest! {
    /// Whatever the node, the period, the start and the lateness (below a tick): never two writes
    /// for one tick, never a tick without one.
    #[test]
    fn every_tick_is_served_exactly_once(
        name in "[a-z0-9.-]{1,40}",
        period in 2_i64..20_000,
        start in 0_i64..2_000_000_000,
        late in 0_i64..1_000,
    ) {
        let late = late % (period - period / 10).max(1);
        let grid = Grid::new(&node(&name), SignedDuration::from_secs(period));
        let mut dues = Dues(vec![Entry {
            metric: "m".into(), grid, written: Some(at(start)), absent: Retry::default(),
        }]);
        let end = start + 20 * period;
        let (polls, _) = live(&mut dues, start, end, late);
        let served: Vec<i64> = polls.iter().map(|poll| grid.served(*poll)).collect();
        prop_assert!(polls.len() >= 18, "{polls:?}");
        prop_assert!(served.windows(2).all(|pair| pair[1] == pair[0] + period), "{served:?}");
        prop_assert!(polls.windows(2).all(|pair| pair[1] - pair[0] <= period + late));
    }

    /// A write is never forgotten by losing its fraction of a second in the annotation.
    #[test]
    fn cutting_a_time_to_the_second_makes_nothing_due(
        period in 1_i64..20_000,
        tick in 0_i64..1_000_000,
        millis in 0_i64..1_000,
    ) {
        let grid = Grid::new(&node("a"), SignedDuration::from_secs(period));
        let now = Timestamp::from_millisecond((grid.served(tick) + period) * 1000 + millis).unwrap();
        let cut = at(now.as_second());
        prop_assert_eq!(grid.due(Some(now)), grid.due(Some(cut)));
        prop_assert!(grid.due(Some(cut)) > now);
    }
}
