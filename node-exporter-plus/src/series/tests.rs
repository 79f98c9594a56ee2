//! The windows against a recomputation from nothing, and the promises of the module's head.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SIGNAL: Signal = Signal { name: "cpu_usage", help: "" };
const HOUR: Span = Span::from_secs(3_600);
const LAST: Rule = RULES[0];
const MEAN: Rule = RULES[1];
const MAX_HOUR: Rule = RULES[2];
const MAX_DAY: Rule = RULES[3];

fn ten_seconds() -> Interval {
    Interval::new(Duration::from_secs(10)).unwrap()
}

fn at(slot: u32) -> Moment {
    Moment(Duration::from_secs(u64::from(slot) * 10))
}

fn series() -> Series {
    Series::new(ten_seconds(), &RULES)
}

/// A series that has one sample in each of `slots`.
fn filled(slots: impl IntoIterator<Item = u32>, value: impl Fn(u32) -> f64) -> Series {
    let mut series = series();
    slots.into_iter().for_each(|slot| series.record(at(slot), value(slot)));
    series
}

fn value(series: &Series, rule: Rule, now: Moment) -> Option<f64> {
    series.read(SIGNAL, rule, now).map(|reading| reading.value)
}

#[test]
fn an_empty_series_answers_nothing() {
    assert!(RULES.iter().all(|rule| series().read(SIGNAL, *rule, at(0)).is_none()));
}

#[test]
fn one_sample_is_a_value_and_a_mean_but_no_maximum() {
    let series = filled([6], |_| 12.5);
    let values = RULES.map(|rule| value(&series, rule, at(6)));
    assert_eq!(values, [Some(12.5), Some(12.5), None, None]);
}

#[test]
fn a_mean_of_five_minutes_is_that_of_thirty_samples() {
    let series = filled(1..=31, f64::from);
    let reading = series.read(SIGNAL, MEAN, at(31)).unwrap();
    assert_eq!((reading.value, reading.coverage), (16.5, 1.0));
    assert_eq!(reading.time, at(31));
}

#[test]
fn a_busy_first_minute_is_not_the_worst_of_the_day() {
    let series = filled(1..=60, |slot| if slot < 7 { 100.0 } else { 0.0 });
    // The first mean that counts is the one at minute 3: 6 busy samples of 18.
    let highest = value(&series, MAX_DAY, at(60)).unwrap();
    assert!((highest - 100.0 / 3.0).abs() < 1e-4, "{highest}");
}

#[test]
fn a_spike_stays_in_the_hour_for_an_hour_and_in_the_day_for_a_day() {
    let spike = |slot: u32| if (1_001..=1_030).contains(&slot) { 80.0 } else { 10.0 };
    let highest = |rule, newest| value(&filled(1..=newest, spike), rule, at(newest)).unwrap();
    assert!(highest(MAX_HOUR, 1_030 + 359) > 75.0);
    assert_eq!(highest(MAX_HOUR, 1_060 + 360), 10.0);
    assert!(highest(MAX_DAY, 1_060 + 360) > 75.0);
    assert_eq!(highest(MAX_DAY, 1_060 + 8_640), 10.0);
}

#[test]
fn a_gap_is_left_out_of_the_mean_and_out_of_the_coverage() {
    let series = filled((1..=10).chain(21..=30), |slot| if slot <= 10 { 10.0 } else { 30.0 });
    let reading = series.read(SIGNAL, MEAN, at(30)).unwrap();
    assert_eq!(reading.value, 20.0);
    assert!((reading.coverage - 20.0 / 30.0).abs() < 1e-6);
}

#[test]
fn after_three_missed_samples_nothing_is_said() {
    let series = filled(1..=100, |_| 50.0);
    let alive = |slot| RULES.map(|rule| series.read(SIGNAL, rule, at(slot)).is_some());
    assert_eq!(alive(103), [true; 4]);
    assert_eq!(alive(104), [false; 4]);
}

#[test]
fn a_suspension_of_days_forgets_all_and_starts_afresh() {
    let mut series = filled(1..=100, |_| 90.0);
    series.record(at(100_000), 5.0);
    let values = RULES.map(|rule| value(&series, rule, at(100_000)));
    assert_eq!(values, [Some(5.0), Some(5.0), None, None]);
}

#[test]
fn a_second_sample_of_a_slot_an_older_one_and_nonsense_change_nothing() {
    let mut series = filled([5], |_| 1.0);
    for (slot, value) in [(5, 2.0), (4, 3.0), (6, f64::NAN), (7, f64::INFINITY), (8, 1e300)] {
        series.record(at(slot), value);
    }
    assert_eq!(value(&series, LAST, at(6)), Some(1.0));
}

#[test]
fn a_day_takes_34_kib_and_at_worst_one_step_for_each_minute() {
    let falling = filled(1..=20_000, |slot| f64::from(30_000 - slot) / 300.0);
    assert_eq!(falling.ring.capacity() * 4, 34_560);
    assert_eq!(falling.maxima.iter().map(|(_, maxima)| maxima.len()).collect::<Vec<_>>(), [1_440]);
}

/// The same answers, from the samples and nothing else.
struct Naive(Vec<(u32, f32)>);

impl Naive {
    fn window(&self, newest: u32, slots: u32) -> impl Iterator<Item = f64> {
        let inside =
            self.0.iter().filter(move |(slot, _)| *slot <= newest && newest - slot < slots);
        inside.map(|(_, value)| f64::from(*value))
    }

    fn mean(&self, newest: u32, slots: u32) -> Option<(f64, u32)> {
        let values: Vec<f64> = self.window(newest, slots).collect();
        let count = u32::try_from(values.len()).unwrap();
        (count > 0).then(|| (values.iter().sum::<f64>() / f64::from(count), count))
    }

    fn max_of_means(&self, newest: u32, slots: u32) -> Option<f64> {
        let first = self.0.first()?.0.max((newest + 1).saturating_sub(slots));
        let minutes = (first..=newest).filter(|slot| slot % 6 == 0);
        let means =
            minutes.filter_map(|minute| self.mean(minute, 30)).filter(|(_, count)| *count >= 15);
        means.map(|(mean, _)| mean).reduce(f64::max)
    }
}

fn close(ours: Option<f64>, naive: Option<f64>) -> bool {
    match (ours, naive) {
        (Some(ours), Some(naive)) => (ours - naive).abs() <= 1e-5 * naive.abs().max(1.0),
        (ours, naive) => ours.is_none() && naive.is_none(),
    }
}

/// Samples with gaps: mostly none, some short, few of hours.
fn samples() -> impl Strategy<Value = Vec<(u32, f32)>> {
    let step = prop_oneof![20 => Just(1u32), 3 => 2u32..40, 1 => 300u32..1_000];
    let sample = (step, 0f32..=100.0);
    (0u32..10_000, prop::collection::vec(sample, 1..400)).prop_map(|(start, steps)| {
        let mut slot = start;
        let place = |(step, value)| {
            slot += step;
            (slot, value)
        };
        steps.into_iter().map(place).collect()
    })
}

proptest! {
    #[test]
    fn every_window_equals_its_recomputation(samples in samples()) {
        let rules = [LAST, MEAN, MAX_HOUR];
        let mut series = Series::new(ten_seconds(), &rules);
        for (slot, value) in &samples {
            series.record(at(*slot), f64::from(*value));
        }
        let (newest, last) = *samples.last().unwrap();
        let naive = Naive(samples);
        let read = |rule| series.read(SIGNAL, rule, at(newest)).map(|reading| reading.value);
        prop_assert_eq!(read(LAST), Some(f64::from(last)));
        let mean = naive.mean(newest, 30).map(|(mean, _)| mean);
        prop_assert!(close(read(MEAN), mean), "{:?} {:?}", read(MEAN), mean);
        let highest = naive.max_of_means(newest, 360);
        prop_assert!(close(read(MAX_HOUR), highest), "{:?} {:?}", read(MAX_HOUR), highest);
    }

    #[test]
    fn coverage_is_the_share_of_filled_slots(samples in samples()) {
        let mut series = Series::new(ten_seconds(), &[Rule { window: HOUR, aggregate: Aggregate::Mean }]);
        for (slot, value) in &samples {
            series.record(at(*slot), f64::from(*value));
        }
        let (newest, _) = *samples.last().unwrap();
        let reading = series.read(SIGNAL, Rule { window: HOUR, aggregate: Aggregate::Mean }, at(newest)).unwrap();
        let filled = Naive(samples).window(newest, 360).count();
        prop_assert_eq!(reading.coverage, filled as f32 / 360.0);
    }

    #[test]
    fn no_sequence_of_samples_panics(samples in prop::collection::vec((any::<u64>(), any::<f64>()), 0..50)) {
        let mut series = series();
        for (seconds, value) in samples {
            let now = Moment(Duration::from_secs(seconds));
            series.record(now, value);
            let values = RULES.map(|rule| series.read(SIGNAL, rule, now));
            let finite = |reading: &Option<Reading>| reading.is_none_or(|reading| reading.value.is_finite());
            prop_assert!(values.iter().all(finite));
        }
    }
}
