//! Every aggregate against its recomputation from the samples alone.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LAST: Aggregate = CRANE[0];
const MEAN: Aggregate = CRANE[1];
const MAX_HOUR: Aggregate = CRANE[2];
const MAX_DAY: Aggregate = CRANE[3];

fn ten_seconds() -> Interval {
    Interval::new(Duration::from_secs(10)).unwrap()
}

fn at(slot: u32) -> Moment {
    Moment(Duration::from_secs(u64::from(slot) * 10))
}

fn series() -> Series {
    Series::new(ten_seconds(), &CRANE)
}

/// A series that has one sample in each of `slots`.
fn filled(slots: impl IntoIterator<Item = u32>, value: impl Fn(u32) -> f64) -> Series {
    let mut series = series();
    slots.into_iter().for_each(|slot| series.record(at(slot), value(slot)));
    series
}

fn value(series: &Series, aggregate: Aggregate, now: Moment) -> Option<f64> {
    series.read(aggregate, now).map(|reading| reading.value)
}

#[test]
fn an_empty_series_answers_nothing() {
    assert!(CRANE.iter().all(|aggregate| series().read(*aggregate, at(0)).is_none()));
}

#[test]
fn one_sample_is_a_value_and_a_mean_but_no_maximum() {
    let series = filled([6], |_| 12.5);
    let values = CRANE.map(|aggregate| value(&series, aggregate, at(6)));
    assert_eq!(values, [Some(12.5), Some(12.5), None, None]);
}

#[test]
fn a_mean_of_five_minutes_is_that_of_thirty_samples() {
    let series = filled(1..=31, f64::from);
    let reading = series.read(MEAN, at(31)).unwrap();
    assert_eq!((reading.value, reading.coverage), (16.5, 1.0));
    assert_eq!(reading.time, at(31));
}

#[test]
fn a_busy_first_minute_is_not_the_maximum_of_the_day() {
    let series = filled(1..=60, |slot| if slot < 7 { 100.0 } else { 0.0 });
    // The first mean that counts is the one at minute 3: 6 busy samples of 18.
    let highest = value(&series, MAX_DAY, at(60)).unwrap();
    assert!((highest - 100.0 / 3.0).abs() < 1e-4, "{highest}");
}

#[test]
fn three_minutes_after_boot_every_window_has_a_value() {
    let long = aggregate("max_avg_15m_6h");
    let aggregates: Vec<Aggregate> = CRANE.into_iter().chain([long]).collect();
    let mut series = Series::new(ten_seconds(), &aggregates);
    (7..=18).for_each(|slot| series.record(at(slot), 20.0));
    assert!(aggregates.iter().all(|aggregate| value(&series, *aggregate, at(18)) == Some(20.0)));
}

#[test]
fn before_that_no_mean_counts_as_a_maximum() {
    assert_eq!(
        [6, 12, 17].map(|newest| value(&filled(1..=newest, |_| 100.0), MAX_DAY, at(newest))),
        [None; 3]
    );
}

#[test]
fn long_after_boot_a_mean_counts_once_its_window_is_half_full() {
    assert_eq!(
        [10_014, 10_020].map(|newest| value(
            &filled(10_001..=newest, |_| 20.0),
            MAX_DAY,
            at(newest)
        )),
        [None, Some(20.0)]
    );
}

fn highest(aggregate: Aggregate, newest: u32) -> f64 {
    value(
        &filled(1..=newest, |slot: u32| if (1_001..=1_030).contains(&slot) { 80.0 } else { 10.0 }),
        aggregate,
        at(newest),
    )
    .unwrap()
}

#[test]
fn a_spike_stays_in_the_hour_for_an_hour_and_in_the_day_for_a_day() {
    assert!(highest(MAX_HOUR, 1_030 + 359) > 75.0);
    assert_eq!(highest(MAX_HOUR, 1_060 + 360), 10.0);
    assert!(highest(MAX_DAY, 1_060 + 360) > 75.0);
    assert_eq!(highest(MAX_DAY, 1_060 + 8_640), 10.0);
}

#[test]
fn a_gap_is_left_out_of_the_mean_and_out_of_the_coverage() {
    let series = filled((1..=10).chain(21..=30), |slot| if slot <= 10 { 10.0 } else { 30.0 });
    let reading = series.read(MEAN, at(30)).unwrap();
    assert_eq!(reading.value, 20.0);
    assert!((reading.coverage - 20.0 / 30.0).abs() < 1e-6);
}

#[test]
fn after_three_missed_samples_nothing_is_known() {
    let series = filled(1..=100, |_| 50.0);
    let alive = |slot| CRANE.map(|aggregate| series.read(aggregate, at(slot)).is_some());
    assert_eq!(alive(103), [true; 4]);
    assert_eq!(alive(104), [false; 4]);
}

#[test]
fn after_a_suspension_of_days_the_series_is_empty() {
    let mut series = filled(1..=100, |_| 90.0);
    series.record(at(100_000), 5.0);
    let values = CRANE.map(|aggregate| value(&series, aggregate, at(100_000)));
    assert_eq!(values, [Some(5.0), Some(5.0), None, None]);
}

#[test]
fn a_second_sample_of_a_slot_an_older_one_and_one_that_is_not_finite_change_nothing() {
    let mut series = filled([5], |_| 1.0);
    for (slot, value) in [(5, 2.0), (4, 3.0), (6, f64::NAN), (7, f64::INFINITY), (8, 1e300)] {
        series.record(at(slot), value);
    }
    assert_eq!(value(&series, LAST, at(6)), Some(1.0));
}

/// The bytes of samples and queues that a series holds now.
fn held(series: &Series) -> usize {
    let queues: usize = series.extrema.iter().map(|(_, sliding)| sliding.bytes()).sum();
    series.ring.capacity() as usize * 4 + queues
}

#[test]
fn a_day_of_every_aggregate_takes_at_most_40_kib_whichever_way_values_go() {
    let extremes =
        ["max_1d", "min_1d", "p95_1d", "p50_1d", "max_1h", "min_1h", "stddev_1d"].map(aggregate);
    let aggregates: Vec<Aggregate> = CRANE.into_iter().chain(extremes).collect();
    let bytes = Series::bytes(ten_seconds(), &aggregates);
    // The pages that it is on and the allocator take 3 KiB more.
    assert!(bytes <= 37 << 10, "{bytes}");
    // The mean at the oldest minute needs the samples before it.
    let longer: Vec<Aggregate> =
        aggregates.iter().copied().chain([aggregate("max_avg_12h_1d")]).collect();
    let more = Series::bytes(ten_seconds(), &longer) - bytes;
    assert!((17_160..17_600).contains(&more), "{more}");
    for slope in [-1.0, 0.0, 1.0] {
        let mut series = Series::new(ten_seconds(), &aggregates);
        let mut most = 0;
        for slot in 1..=20_000 {
            series.record(at(slot), 20_000.0 + slope * f64::from(slot));
            most = most.max(held(&series));
        }
        assert_eq!(series.ring.capacity() * 4, 34_680);
        assert!(most <= bytes && most <= 35 << 10, "{most} of {bytes}");
    }
}

/// The same values, computed from a list of samples.
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

    /// By the definition, in two passes.
    fn deviation(&self, newest: u32, slots: u32) -> Option<f64> {
        let (mean, count) = self.mean(newest, slots)?;
        let squares = self.window(newest, slots).map(|value| (value - mean).powi(2));
        Some((squares.sum::<f64>() / f64::from(count)).sqrt())
    }

    fn values(&self, newest: u32, slots: u32) -> Vec<f64> {
        self.window(newest, slots).collect()
    }

    fn max_of_means(&self, newest: u32, slots: u32, inner: u32) -> Option<f64> {
        let first = self.0.first()?.0.max((newest + 1).saturating_sub(slots));
        let minutes = (first..=newest).filter(|slot| slot % 6 == 0 && 2 * slot >= inner.min(30));
        minutes
            .filter_map(|minute| {
                let (mean, count) = self.mean(minute, inner)?;
                (2 * count >= inner.min(minute)).then_some(mean)
            })
            .reduce(f64::max)
    }
}

fn close(ours: Option<f64>, naive: Option<f64>) -> bool {
    match (ours, naive) {
        (Some(ours), Some(naive)) => (ours - naive).abs() <= 1e-5 * naive.abs().max(1.0),
        (ours, naive) => ours.is_none() && naive.is_none(),
    }
}

/// Samples with gaps, mostly none, some short, few of hours, on a level or a steady slope.
fn samples() -> impl Strategy<Value = Vec<(u32, f32)>> {
    let step = prop_oneof![20 => Just(1u32), 3 => 2u32..40, 1 => 300u32..1_000];
    let slope = prop_oneof![2 => Just(0f32), 1 => Just(-50f32), 1 => Just(50f32)];
    let sample = (step, 0f32..=100.0);
    let steps = prop::collection::vec(sample, 1..600);
    let start = prop_oneof![0u32..40, 0u32..10_000];
    (start, slope, steps).prop_map(|(start, slope, steps)| {
        let mut slot = start;
        steps
            .into_iter()
            .enumerate()
            .map(|(index, (step, value))| {
                slot += step;
                (slot, value + slope * index as f32)
            })
            .collect()
    })
}

fn aggregate(name: &str) -> Aggregate {
    name.parse().unwrap()
}

/// A series of `samples`, and its end `silent` slots after the last one.
fn recorded(samples: &[(u32, f32)], silent: u32, aggregates: &[Aggregate]) -> (Series, u32) {
    let mut series = Series::new(ten_seconds(), aggregates);
    for (slot, value) in samples {
        series.record(at(*slot), f64::from(*value));
    }
    let end = samples.last().unwrap().0 + silent;
    series.advance(at(end));
    (series, end)
}

#[test]
fn after_a_missed_sample_windows_end_at_the_gap() {
    let samples: Vec<(u32, f32)> = (1..=30).map(|slot| (slot, slot as f32)).collect();
    let (series, end) = recorded(&samples, 2, &CRANE);
    let answer = series.read(MEAN, at(end)).unwrap();
    assert_eq!(answer.value, 16.5);
    assert!((answer.coverage - 28.0 / 30.0).abs() < 1e-6);
    assert_eq!(value(&series, LAST, at(end)), Some(30.0));
}

#[test]
fn a_deviation_has_the_coverage_of_its_window_and_leaves_gaps_out() {
    let deviation = aggregate("stddev_15m");
    let samples: Vec<(u32, f32)> =
        (1..=45).map(|slot| (2 * slot, if slot % 2 == 0 { 10.0 } else { 30.0 })).collect();
    let (series, end) = recorded(&samples[1..], 0, &[deviation]);
    let answer = series.read(deviation, at(end)).unwrap();
    assert_eq!((answer.value, answer.coverage), (10.0, 44.0 / 90.0));
}

#[test]
fn quantiles_are_those_of_the_newest_slot_or_unknown() {
    let aggregates = [aggregate("p50_1h"), aggregate("p90_1h"), aggregate("p50_5m")];
    let mut series = Series::new(ten_seconds(), &aggregates);
    for slot in 1..=101 {
        series.record(at(slot), f64::from(slot));
    }
    let read = |series: &Series| aggregates.map(|aggregate| value(series, aggregate, at(101)));
    assert_eq!(read(&series), [None; 3]);
    series.select_quantiles(&mut Vec::new());
    assert_eq!(read(&series), [Some(51.0), Some(91.0), Some(86.5)]);
}

#[test]
fn a_series_of_the_newest_sample_alone_has_four_slots() {
    let (series, end) = recorded(&[(7, 5.0)], 3, &[LAST]);
    assert_eq!(series.ring.capacity(), 4);
    assert_eq!(value(&series, LAST, at(end)), Some(5.0));
}

proptest! {
    #[test]
    fn every_window_equals_its_recomputation(samples in samples(), silent in 0u32..=3) {
        let [max, min, p95, long, deviation] =
            ["max_1h", "min_1h", "p95_1h", "max_avg_37m_50m", "stddev_15m"].map(aggregate);
        let aggregates = [LAST, MEAN, MAX_HOUR, max, min, p95, long, deviation];
        let (mut series, end) = recorded(&samples, silent, &aggregates);
        series.select_quantiles(&mut Vec::new());
        let last = samples.last().unwrap().1;
        let naive = Naive(samples);
        let read = |aggregate| value(&series, aggregate, at(end));
        prop_assert_eq!(read(LAST), Some(f64::from(last)));
        let mut hour = naive.values(end, 360);
        hour.sort_by(f64::total_cmp);
        for (aggregate, expected) in [
            (MEAN, naive.mean(end, 30).map(|(mean, _)| mean)),
            (MAX_HOUR, naive.max_of_means(end, 360, 30)),
            (long, naive.max_of_means(end, 300, 222)),
            (p95, interpolated(&hour, 0.95)),
            (deviation, naive.deviation(end, 90)),
        ] {
            prop_assert!(close(read(aggregate), expected), "{} {:?} {:?}", aggregate, read(aggregate), expected);
        }
        prop_assert_eq!([read(max), read(min)], [hour.last().copied(), hour.first().copied()]);
    }

    #[test]
    fn coverage_is_the_share_of_filled_slots(samples in samples(), silent in 0u32..=3) {
        let hour = aggregate("avg_1h");
        let (series, end) = recorded(&samples, silent, &[hour]);
        let coverage = series.read(hour, at(end)).unwrap().coverage;
        prop_assert_eq!(coverage, Naive(samples).window(end, 360).count() as f32 / 360.0);
    }

    #[test]
    fn no_sequence_of_samples_panics(
        samples in prop::collection::vec((any::<u64>(), any::<f64>(), any::<bool>()), 0..50),
    ) {
        let aggregates = CRANE.into_iter().chain(["max_1h", "min_1d", "p50_5m", "stddev_1h"].map(aggregate));
        let aggregates: Vec<Aggregate> = aggregates.collect();
        let mut series = Series::new(ten_seconds(), &aggregates);
        for (seconds, value, silent) in samples {
            let now = Moment(Duration::from_secs(seconds));
            if silent { series.advance(now) } else { series.record(now, value) }
            series.select_quantiles(&mut Vec::new());
            prop_assert!(aggregates.iter().all(|aggregate| series.read(*aggregate, now).is_none_or(|a| a.value.is_finite())));
        }
    }
}

fn interpolated(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = q * (sorted.len() - 1) as f64;
    let lower = sorted.get(rank.floor() as usize)?;
    let upper = sorted.get(rank.ceil() as usize)?;
    Some(lower + (upper - lower) * rank.fract())
}
