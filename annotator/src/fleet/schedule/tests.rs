//! When each metric of a node is due.

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

/// Simulates polls from `start` to `end`, each `late` seconds after it is due, which give every metric. Returns their
/// times.
fn simulate(schedule: &mut Schedule, start: i64, end: i64, late: i64) -> Vec<i64> {
    let metrics: Vec<_> = schedule.metrics().cloned().collect();
    let mut polls = Vec::new();
    let mut now = start;
    loop {
        now = schedule.next(at(now)).unwrap().max(at(now)).as_second() + late;
        if now >= end {
            return polls;
        }
        polls.push(now);
        metrics.iter().for_each(|metric| schedule.record_poll(metric, at(now)));
    }
}

/// The metrics that are due at `now`.
fn due(schedule: &Schedule, now: Timestamp) -> Vec<MetricName> {
    let due = schedule.entries.iter().filter(|entry| schedule.due(entry, now) <= now);
    due.map(|entry| entry.metric.clone()).collect()
}

const DAY: i64 = 24 * 3600;

#[test]
fn a_new_node_is_due_at_once_with_everything() {
    let schedule = Schedule::new(&node("a"), &crane());
    assert!(schedule.next(at(1000)).unwrap() <= at(1000));
    assert_eq!(due(&schedule, at(1000)).len(), 3);
}

#[test]
fn rules_of_3m_15m_and_3h_share_one_poll_each_3_minutes() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let polls = simulate(&mut schedule, 1_000_000, 1_000_000 + DAY, 0);
    // The first poll is off the grid.
    assert!((480..=482).contains(&polls.len()), "{}", polls.len());
}

/// Half of the samples of an exporter's window are lost, so that 49% of it stays covered.
#[test]
fn a_wait_that_passes_in_vain_again_and_again_grows_to_two_minutes() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let mut now = at(1_000_000);
    let mut polls = 0;
    while now < at(1_003_600) {
        for metric in due(&schedule, now) {
            schedule.hold_back(&metric, now, SignedDuration::from_secs(3));
        }
        polls += 1;
        now = schedule.next(now).unwrap();
    }
    assert!((30..=40).contains(&polls), "{polls} polls in an hour");
}

#[test]
fn a_held_back_metric_is_polled_for_when_it_can_be_usable_or_one_period_later() {
    let metric = MetricName::from("cpu_usage_max_avg_1d");
    let mut policy = crane();
    policy.sync.retain(|rule| rule.metric == metric);
    let mut schedule = Schedule::new(&node("a"), &policy);
    for (wait, asked) in [(0, 1), (150, 150), (12 * 3600, 3 * 3600)] {
        schedule.hold_back(&metric, at(1_000_000), SignedDuration::from_secs(wait));
        assert_eq!(schedule.next(at(1_000_000)), Some(at(1_000_000 + asked)));
    }
    schedule.drop_waits();
    assert!(schedule.next(at(1_000_000)).unwrap() < at(1_000_000));
}

#[test]
fn after_a_restart_nothing_is_due_that_was_read_before() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let polls = simulate(&mut schedule, 1_000_000, 1_010_000, 2);
    let last = *polls.last().unwrap();
    let mut restarted = Schedule::new(&node("a"), &crane());
    for entry in &schedule.entries {
        restarted.record_poll(&entry.metric, entry.read_at.unwrap());
    }
    assert!(restarted.next(at(last + 1)).unwrap() > at(last + 1));
    assert_eq!(restarted.next(at(last + 1)), schedule.next(at(last + 1)));
}

#[test]
fn ticks_missed_during_a_long_stop_are_served_by_one_poll() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    for metric in ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h", "cpu_usage_max_avg_1d"] {
        schedule.record_poll(&MetricName::from(metric), at(1_000_000));
    }
    let polls = simulate(&mut schedule, 1_000_000 + DAY, 1_000_000 + DAY + 180, 0);
    assert!((1..=2).contains(&polls.len()), "{polls:?}");
    assert_eq!(polls[0], 1_000_000 + DAY);
}

#[test]
fn a_time_far_ahead_counts_as_never_read() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let eight_hours_ahead = at(1_000_000 + 8 * 3600);
    schedule.observe(&MetricName::from("cpu_usage_avg_5m"), eight_hours_ahead, at(1_000_000));
    assert!(schedule.next(at(1_000_000)).unwrap() <= at(1_000_000));
    for metric in due(&schedule, at(1_000_000)) {
        schedule.record_poll(&metric, at(1_000_000));
    }
    assert!(schedule.next(at(1_000_000)).unwrap() > at(1_000_000));
    let mut slightly = Schedule::new(&node("a"), &crane());
    let metrics: Vec<_> = slightly.metrics().cloned().collect();
    metrics.iter().for_each(|metric| slightly.record_poll(metric, at(1_000_030)));
    assert!(slightly.next(at(1_000_000)).unwrap() > at(1_000_000));
}

#[test]
fn observing_a_time_far_ahead_changes_nothing() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let metrics: Vec<_> = schedule.metrics().cloned().collect();
    metrics.iter().for_each(|metric| schedule.record_poll(metric, at(1_000_000)));
    let next = schedule.next(at(1_000_001));
    // The watch shows the Node as it was before the write, with times of another time zone.
    let ahead = at(1_000_000 + 8 * 3600);
    metrics.iter().for_each(|metric| schedule.observe(metric, ahead, at(1_000_001)));
    assert_eq!(schedule.next(at(1_000_001)), next);
}

#[test]
fn observing_an_older_reading_changes_nothing() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let metrics: Vec<_> = schedule.metrics().cloned().collect();
    metrics.iter().for_each(|metric| schedule.record_poll(metric, at(1_000_000)));
    let next = schedule.next(at(1_000_001));
    metrics.iter().for_each(|metric| schedule.observe(metric, at(900_000), at(1_000_001)));
    assert_eq!(schedule.next(at(1_000_001)), next);
}

#[test]
fn a_missing_metric_has_its_own_back_off() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let short = MetricName::from("cpu_usage_avg_5m");
    let long = MetricName::from("cpu_usage_max_avg_1d");
    schedule.record_poll(&short, at(1_000_000));
    schedule.record_poll(&"cpu_usage_max_avg_1h".into(), at(1_000_000));
    schedule.record_missing(&long, at(1_000_000), None);
    assert_eq!(schedule.next(at(1_000_000)), Some(at(1_000_005)));
    assert_eq!(due(&schedule, at(1_000_001)), [long]);
}

#[test]
fn a_boot_makes_readings_from_before_due_and_no_others() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let short = MetricName::from("cpu_usage_avg_5m");
    let long = MetricName::from("cpu_usage_max_avg_1d");
    for metric in [&short, &"cpu_usage_max_avg_1h".into(), &long] {
        schedule.record_poll(metric, at(1_000_000));
    }
    assert_eq!(due(&schedule, at(1_000_001)).len(), 0);
    schedule.record_boot(at(1_000_000));
    assert_eq!(due(&schedule, at(1_000_001)).len(), 0);
    schedule.record_boot(at(1_000_400));
    assert_eq!(due(&schedule, at(1_000_450)).len(), 3);
    schedule.record_poll(&long, at(1_000_450));
    // The watch shows the reading from before once more.
    schedule.observe(&long, at(1_000_000), at(1_000_451));
    assert!(!due(&schedule, at(1_000_451)).contains(&long));
    let schedule = schedule.with_policy(&node("a"), &crane());
    assert_eq!(due(&schedule, at(1_000_451)).len(), 2);
}

#[test]
fn boots_are_taken_over_at_most_every_five_minutes() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    let metrics: Vec<_> = schedule.metrics().cloned().collect();
    let mut all_due = Vec::new();
    for second in (1_000_000..1_001_000).step_by(10) {
        schedule.record_boot(at(second));
        if due(&schedule, at(second)).len() == metrics.len() {
            all_due.push(second - 1_000_000);
            metrics.iter().for_each(|metric| schedule.record_poll(metric, at(second)));
        }
    }
    assert_eq!(all_due, [0, 310, 620, 930]);
}

#[test]
fn another_policy_keeps_the_times_of_readings() {
    let mut schedule = Schedule::new(&node("a"), &crane());
    for metric in ["cpu_usage_avg_5m", "cpu_usage_max_avg_1h", "cpu_usage_max_avg_1d"] {
        schedule.record_poll(&MetricName::from(metric), at(1_000_000));
    }
    let more = CRANE.replace("3h}", "3h}\n  - {name: mem_usage_avg_5m, period: 3m}");
    let schedule = schedule.with_policy(&node("a"), &LoadPolicy::from_yaml(&more).unwrap());
    assert_eq!(due(&schedule, at(1_000_001)), [MetricName::from("mem_usage_avg_5m")]);
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
    /// For any node, period, start and lateness below a period: every tick is served by exactly one poll.
    #[test]
    fn every_tick_is_served_exactly_once(
        name in "[a-z0-9.-]{1,40}",
        period in 2_i64..20_000,
        start in 0_i64..2_000_000_000,
        late in 0_i64..1_000,
    ) {
        let late = late % (period - period / 10).max(1);
        let grid = Grid::new(&node(&name), SignedDuration::from_secs(period));
        let entry = Entry {
            metric: "m".into(),
            grid,
            max_age: GRACE,
            read_at: Some(at(start)),
            retry: Retry::default(),
        };
        let mut schedule = Schedule { entries: vec![entry], booted_at: None };
        let end = start + 20 * period;
        let polls = simulate(&mut schedule, start, end, late);
        let served: Vec<i64> = polls.iter().map(|poll| grid.served_tick(*poll)).collect();
        prop_assert!(polls.len() >= 18, "{polls:?}");
        prop_assert!(served.windows(2).all(|pair| pair[1] == pair[0] + period), "{served:?}");
        prop_assert!(polls.windows(2).all(|pair| pair[1] - pair[0] <= period + late));
    }

    /// Annotations have no fractions of a second.
    #[test]
    fn truncating_a_time_to_seconds_makes_nothing_due(
        period in 1_i64..20_000,
        tick in 0_i64..1_000_000,
        millis in 0_i64..1_000,
    ) {
        let grid = Grid::new(&node("a"), SignedDuration::from_secs(period));
        let now = Timestamp::from_millisecond((grid.served_tick(tick) + period) * 1000 + millis).unwrap();
        let cut = at(now.as_second());
        prop_assert_eq!(grid.due(Some(now)), grid.due(Some(cut)));
        prop_assert!(grid.due(Some(cut)) > now);
    }
}

/// A policy that fetches `cpu_usage_avg_5m`, with this period and maximum age in minutes.
fn with_max_age(period: i64, max_age: i64) -> LoadPolicy {
    let metric =
        format!("name: cpu_usage_avg_5m, period: {period}m, maxAge: {max_age}m, limit: 0.8");
    let text = format!(
        "{{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, metadata: {{name: default}}, \
         spec: {{metrics: [{{{metric}}}]}}}}"
    );
    LoadPolicy::from_yaml(&text).unwrap()
}

#[test]
fn no_reading_expires_before_its_next_poll_because_a_restart_took_it_for_a_new_one() {
    let metric = MetricName::from("cpu_usage_avg_5m");
    for (period, max_age) in [(1, 3), (1, 4), (1, 8), (3, 8), (2, 5), (15, 20)] {
        let policy = with_max_age(period, max_age);
        let mut counted = 0;
        let ages = [0, 10, 30, 60, 119, 120, 180, 239];
        for (name, age) in ["a", "b", "c", "d"].iter().flat_map(|name| ages.map(|age| (name, age)))
        {
            let now = 100_000;
            let mut schedule = Schedule::new(&node(name), &policy);
            schedule.observe(&metric, at(now - age), at(now));
            let due = schedule.next(at(now)).unwrap();
            schedule.count_as_polled(at(now));
            let next = schedule.next(at(now)).unwrap();
            counted += i32::from(next > at(now));
            let expires_at = at(now - age + max_age * 60);
            let in_time = next <= expires_at - BEFORE_EXPIRY;
            assert!(next == due || in_time, "{period}m, {max_age}m, {name}, {age} s: {next}");
        }
        assert!(counted > 0, "{period}m, {max_age}m: polls stay spread");
    }
}
