//! What is answered when, what a new template starts from, and how old use is forgotten.

use placement::learning::Learner;

use super::*;

const DAY: i64 = 24 * 60;

#[test]
fn nothing_is_answered_without_five_pod_minutes_over_five_minutes() {
    let mut learner = Learner::default();
    assert_eq!(learner.learned(&web(1)), None);
    // A hundred pods start: what they use in their first minutes says little.
    for _ in 0..100 {
        (0..5).for_each(|minute| observe(&mut learner, &web(1), 3.0, minute));
    }
    assert_eq!(cpu(&learner, &web(1)), None);
    assert_eq!(learner.snapshot().iter().count(), 0);
    observe(&mut learner, &web(1), 3.0, 5);
    assert!(cpu(&learner, &web(1)).is_some());

    let mut learner = Learner::default();
    [0, 30, 60, 90].iter().for_each(|minute| observe(&mut learner, &web(1), 1.0, *minute));
    assert_eq!(cpu(&learner, &web(1)), None);
    observe(&mut learner, &web(1), 1.0, 120);
    assert!(cpu(&learner, &web(1)).is_some());
}

#[test]
fn after_a_half_life_old_use_counts_half() {
    let mut learner = Learner::default();
    (0..60).for_each(|minute| observe(&mut learner, &web(1), 1.0, minute));
    (DAY..DAY + 60).for_each(|minute| observe(&mut learner, &web(1), 2.0, minute));
    let mean = cpu(&learner, &web(1)).unwrap().amount.mean;
    assert!((mean - (1.0 + 2.0 * 2.0) / 3.0).abs() < 0.05, "{mean}");
}

#[test]
fn a_change_of_use_is_learned_within_days_however_many_pods_there_are() {
    let mut learner = Learner::default();
    for minute in 0..2 * DAY {
        (0..20).for_each(|_| observe(&mut learner, &web(1), 4.0, minute));
    }
    for minute in 2 * DAY..6 * DAY {
        (0..20).for_each(|_| observe(&mut learner, &web(1), 1.0, minute));
    }
    let amount = cpu(&learner, &web(1)).unwrap().amount;
    assert!(is_near(amount.p90, 1.0), "{amount:?}");
    // 2^-4 of it is older.
    assert!(amount.mean > 1.05 && amount.mean < 1.4, "{amount:?}");
}

#[test]
fn a_new_template_starts_from_the_last_and_soon_goes_its_own_way() {
    let mut learner = Learner::default();
    (0..DAY).for_each(|minute| observe(&mut learner, &web(1), 2.0, minute));
    // A pod that is to be placed comes before any observation of its template.
    assert!(is_near(cpu(&learner, &web(2)).unwrap().amount.p90, 2.0));
    observe(&mut learner, &web(2), 0.5, DAY);
    assert!(is_near(cpu(&learner, &web(2)).unwrap().amount.p50, 2.0));
    (DAY..DAY + 40).for_each(|minute| observe(&mut learner, &web(2), 0.5, minute));
    assert!(is_near(cpu(&learner, &web(2)).unwrap().amount.p50, 0.5));
    assert!(is_near(cpu(&learner, &web(1)).unwrap().amount.p50, 2.0));
}

#[test]
fn a_new_template_stands_for_its_controller_within_a_day() {
    let mut learner = Learner::default();
    (0..10 * DAY).for_each(|minute| observe(&mut learner, &web(1), 2.0, minute));
    (10 * DAY..11 * DAY - 60).for_each(|minute| observe(&mut learner, &web(2), 0.5, minute));
    assert!(is_near(cpu(&learner, &web(3)).unwrap().amount.p50, 2.0));
    (11 * DAY - 60..11 * DAY + 60).for_each(|minute| observe(&mut learner, &web(2), 0.5, minute));
    assert!(is_near(cpu(&learner, &web(3)).unwrap().amount.p50, 0.5));
    let minutes = |template| {
        let all = learner.snapshot();
        all.iter().find(|learned| learned.id == web(template)).unwrap().pod_minutes
    };
    // Of a pod that runs always, a day by ln 2: what is older has faded.
    assert!((minutes(1) - 2077.0).abs() < 5.0, "{}", minutes(1));
    assert!((minutes(2) - 1069.0).abs() < 5.0, "{}", minutes(2));
}

#[test]
fn nothing_is_taken_over_from_another_kind_name_or_namespace() {
    let mut learner = Learner::default();
    (0..60).for_each(|minute| observe(&mut learner, &web(1), 2.0, minute));
    let mut job = web(1);
    job.kind = "Job".into();
    for other in [job, workload("shop", "db", 1), workload("bank", "web", 1)] {
        assert_eq!(learner.learned(&other), None);
        observe(&mut learner, &other, 9.0, 60);
        assert_eq!(cpu(&learner, &other), None);
    }
    assert!(is_near(cpu(&learner, &web(1)).unwrap().amount.p99, 2.0));
}

#[test]
fn a_clock_that_is_set_back_or_far_ahead_loses_nothing() {
    let mut learner = Learner::default();
    for minute in [0, 1, 2, -9000, 900_000_000, 3, 4, 5, 6, 7, 8] {
        observe(&mut learner, &web(1), 2.0, minute);
    }
    assert!(is_near(cpu(&learner, &web(1)).unwrap().amount.p99, 2.0));
}

#[test]
fn a_single_pod_in_a_year_is_still_answered() {
    let mut learner = Learner::default();
    (0..10).for_each(|minute| observe(&mut learner, &web(1), 2.0, minute));
    observe(&mut learner, &web(1), 1.0, 365 * DAY);
    assert!(is_near(cpu(&learner, &web(1)).unwrap().amount.p50, 1.0));
}

#[test]
fn a_snapshot_stays_as_it_was_while_more_is_learned() {
    let mut learner = Learner::default();
    (0..60).for_each(|minute| observe(&mut learner, &web(1), 1.0, minute));
    observe(&mut learner, &web(2), 1.0, 60);
    let snapshot = learner.snapshot();
    let before = snapshot.iter().collect::<Vec<_>>();
    assert_eq!(before.len(), 2);
    (61..300).for_each(|minute| observe(&mut learner, &web(1), 4.0, minute));
    assert_ne!(learner.snapshot().iter().collect::<Vec<_>>(), before);
    assert_eq!(snapshot.iter().collect::<Vec<_>>(), before);
}
