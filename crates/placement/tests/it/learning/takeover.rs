//! A learner that goes on from another's list: it knows the same, and learns as if it were the other.

use placement::estimate::Distribution;
use placement::learning::{Learned, Learner};
use placement::resources::PerResource;
use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * 60;

/// A learner that takes over from `learner` at `minute`, by its list.
fn successor(learner: &Learner, minute: i64) -> Learner {
    let mut successor = Learner::default();
    successor.restore(learner.snapshot().iter(), at(minute));
    successor
}

fn only(learner: &Learner) -> Learned {
    let all: Vec<_> = learner.snapshot().iter().collect();
    assert_eq!(all.len(), 1);
    all[0].clone()
}

#[test]
fn after_a_takeover_a_change_of_use_shows_within_an_hour_as_without_one() {
    let mut before = Learner::default();
    (0..3 * DAY).for_each(|minute| observe(&mut before, &web(1), 1.0, minute));
    let mut after = successor(&before, 3 * DAY);
    let mean = |learner: &Learner| cpu(learner, &web(1)).unwrap().amount.mean;
    assert!((mean(&after) - mean(&before)).abs() < 0.001, "{}", mean(&after));
    for minute in 3 * DAY..3 * DAY + 60 {
        observe(&mut before, &web(1), 2.0, minute);
        observe(&mut after, &web(1), 2.0, minute);
    }
    // 60 of 1,878 minutes.
    assert!((mean(&after) - 1.03).abs() < 0.02, "{}", mean(&after));
    assert!((mean(&after) - mean(&before)).abs() < 0.02, "{} {}", mean(&after), mean(&before));
    for minute in 3 * DAY + 60..5 * DAY {
        observe(&mut before, &web(1), 2.0, minute);
        observe(&mut after, &web(1), 2.0, minute);
    }
    assert!((mean(&after) - mean(&before)).abs() < 0.1, "{} {}", mean(&after), mean(&before));
}

#[test]
fn nothing_is_learned_twice_however_often_replicas_take_over() {
    let (mut steady, mut passed_on) = (Learner::default(), Learner::default());
    for minute in 0..2 * DAY {
        observe(&mut steady, &web(1), 1.0, minute);
        observe(&mut passed_on, &web(1), 1.0, minute);
        if minute % 360 == 359 {
            let mut successor = successor(&passed_on, minute);
            // The same list again, and what this replica had before it.
            observe(&mut successor, &web(1), 9.0, minute);
            successor.restore(passed_on.snapshot().iter(), at(minute));
            passed_on = successor;
        }
    }
    let (steady, passed_on) = (only(&steady), only(&passed_on));
    assert!((passed_on.pod_minutes / steady.pod_minutes - 1.0).abs() < 1e-6, "{passed_on:?}");
    assert_eq!(passed_on.last_seen, steady.last_seen);
    let amount = passed_on.used.cpu.unwrap().amount;
    assert!(is_near(amount.mean, 1.0) && is_near(amount.p99, 1.0), "{amount:?}");
}

#[test]
fn use_by_request_is_taken_over_and_where_it_was_not_known_it_stays_so() {
    for request in [Some(2.0), None] {
        let mut learner = Learner::default();
        let used = PerResource { cpu: Some(0.5), memory: Some(3e9) };
        (0..60).for_each(|n| learner.observe(&web(1), &asking(request), used, MINUTE, at(n)));
        let (before, after) = (only(&learner), only(&successor(&learner, 60)));
        assert_eq!(after.used.cpu.unwrap().by_request.is_some(), request.is_some());
        assert_eq!(after, before);
    }
}

fn listed(id: WorkloadId, amount: Distribution, pod_minutes: f64, minute: i64) -> Learned {
    let cpu = LearnedUse { amount, by_request: Some(amount) };
    let used = PerResource { cpu: Some(cpu), memory: None };
    Learned { id, used, pod_minutes, last_seen: at(minute) }
}

#[test]
fn what_is_too_old_is_not_taken_over_and_a_workload_once() {
    let amount = Distribution { mean: 1.0, p50: 1.0, p90: 1.0, p95: 1.0, p99: 1.0 };
    let twice = Distribution { mean: 2.0, ..amount };
    let list = [
        listed(web(1), amount, 60.0, 0),
        listed(web(1), twice, 900.0, 0),
        listed(web(2), amount, 60.0, -14 * DAY - 1),
    ];
    let mut learner = Learner::default();
    learner.restore(list, at(0));
    assert_eq!((only(&learner).pod_minutes, learner.stats().restored), (60.0, 1));
}

/// As of a replica that led for some minutes, without having read what was learned before.
#[test]
fn a_list_of_nearly_nothing_replaces_no_day_of_learning() {
    let mut learner = Learner::default();
    (0..DAY).for_each(|minute| observe(&mut learner, &web(1), 1.0, minute));
    let before = only(&learner).pod_minutes;
    learner.restore([], at(DAY + 10));
    learner.restore(successor_of_minutes(8).snapshot().iter(), at(DAY + 10));
    assert_eq!(only(&learner).pod_minutes, before);
    // After a week it is as much.
    learner.restore(successor_of_minutes(8).snapshot().iter(), at(8 * DAY));
    assert!(only(&learner).pod_minutes < 10.0);
}

/// What a learner knows that has observed a pod for so long.
fn successor_of_minutes(minutes: i64) -> Learner {
    let mut learner = Learner::default();
    (0..minutes).for_each(|minute| observe(&mut learner, &web(1), 2.0, 8 * DAY + minute - minutes));
    learner
}

/// Lists come over plain HTTP.
#[test]
fn a_list_from_the_future_with_endless_evidence_is_outgrown() {
    let amount = Distribution { mean: 8.0, p50: 8.0, p90: 8.0, p95: 8.0, p99: 8.0 };
    let mut learner = Learner::default();
    learner.restore([listed(web(1), amount, f64::MAX, 1_000 * DAY)], at(0));
    assert_eq!(only(&learner).last_seen, at(0));
    for minute in 1..30 * DAY {
        observe(&mut learner, &web(1), 1.0, minute);
    }
    let mean = cpu(&learner, &web(1)).unwrap().amount.mean;
    assert!(mean < 2.0, "{mean}");
}

fn arb_amount() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..4.0_f64, Just(0.0), Just(f64::MAX), Just(f64::MIN_POSITIVE)]
}

proptest! {
    /// Of whatever pods used, the list of a successor says about the same.
    #[test]
    fn a_successors_list_is_the_list_it_was_given(
        used in prop::collection::vec(0.0..64.0_f64, 10..200), high in 1_u32..4,
    ) {
        let mut learner = Learner::default();
        for (minute, cpu) in (0..).zip(&used) {
            observe(&mut learner, &web(1), cpu.powi(high as i32) / 64_f64.powi(high as i32 - 1), minute);
        }
        let before = only(&learner);
        let first = successor(&learner, 200);
        let (after, again) = (only(&first), only(&successor(&first, 200)));
        prop_assert_eq!((&before.id, before.pod_minutes), (&after.id, after.pod_minutes));
        let amount = |learned: &Learned| learned.used.cpu.unwrap().amount;
        for (before, after) in [(&before, &after), (&after, &again)] {
            let (before, after) = (amount(before), amount(after));
            let same = |a: f64, b: f64| (a - b).abs() <= a * 0.001 + 1e-9;
            prop_assert!(same(before.p50, after.p50), "{:?} {:?}", before, after);
            prop_assert!(same(before.p90, after.p90), "{:?} {:?}", before, after);
            prop_assert!(same(before.p95, after.p95), "{:?} {:?}", before, after);
            prop_assert!(same(before.p99, after.p99), "{:?} {:?}", before, after);
            prop_assert!((before.mean - after.mean).abs() <= before.mean * 0.05 + 0.001, "{:?} {:?}", before, after);
        }
    }

    #[test]
    fn no_list_makes_a_learner_panic_or_know_what_is_no_number(
        amounts in [arb_amount(), arb_amount(), arb_amount(), arb_amount(), arb_amount()],
        pod_minutes in prop_oneof![Just(-1.0), Just(0.0), Just(1e-300), Just(f64::MAX), 0.0..1e4_f64],
        seen in prop_oneof![Just(0_i64), -1_000_000_i64..1_000_000],
    ) {
        let [mean, p50, p90, p95, p99] = amounts;
        let mut learner = Learner::default();
        learner.restore([listed(web(1), Distribution { mean, p50, p90, p95, p99 }, pod_minutes, seen)], at(0));
        observe(&mut learner, &web(1), 1.0, 1);
        for learned in learner.snapshot().iter() {
            prop_assert!(learned.pod_minutes.is_finite() && learned.last_seen <= at(1));
            let amount = learned.used.cpu.unwrap().amount;
            prop_assert!(amount.mean.is_finite() && amount.p50 <= amount.p99 && amount.p99 < 1_100.0);
        }
    }
}
