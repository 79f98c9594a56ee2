//! Room is bounded, and an author of made-up controllers or numbers harms itself alone.

use placement::learning::{Learner, Limits};

use super::*;

fn small() -> Learner {
    Learner::new(Limits { workloads: 200, ..Limits::default() })
}

/// Ten minutes of one pod.
fn teach(learner: &mut Learner, id: &WorkloadId) {
    (0..10).for_each(|minute| observe(learner, id, 2.0, minute));
}

#[test]
fn a_flood_of_workloads_in_one_namespace_evicts_none_of_another() {
    let mut learner = small();
    let others: Vec<_> =
        (0..60).map(|n| workload(&format!("team-{}", n % 3), &format!("app-{n}"), 1)).collect();
    others.iter().for_each(|id| teach(&mut learner, id));
    for n in 0..5000 {
        observe(&mut learner, &workload("mallory", &format!("made-up-{n}"), n), 9.0, 20 + n as i64);
    }
    assert!(learner.stats().workloads <= 200, "{:?}", learner.stats());
    assert!(learner.stats().evicted > 4800, "{:?}", learner.stats());
    assert!(others.iter().all(|id| cpu(&learner, id).is_some()));
}

#[test]
fn many_namespaces_of_one_author_share_their_own_room() {
    let mut learner = small();
    let others: Vec<_> = (0..20).map(|n| workload("shop", &format!("app-{n}"), 1)).collect();
    others.iter().for_each(|id| teach(&mut learner, id));
    for n in 0..2000 {
        let namespace = format!("mallory-{}", n % 4);
        observe(
            &mut learner,
            &workload(&namespace, &format!("made-up-{n}"), n),
            9.0,
            20 + n as i64,
        );
    }
    assert!(others.iter().all(|id| cpu(&learner, id).is_some()));
}

#[test]
fn a_namespace_with_its_part_of_the_room_displaces_its_own_and_not_a_larger_one() {
    let mut learner = small();
    let of = |learner: &Learner, namespace: &str| {
        learner.snapshot().iter().filter(|it| &*it.id.namespace == namespace).count()
    };
    (0..130).for_each(|n| teach(&mut learner, &workload("shop", &format!("app-{n}"), 1)));
    (0..20).for_each(|n| teach(&mut learner, &workload("bank", &format!("app-{n}"), 1)));
    for n in 0..100 {
        teach(&mut learner, &workload("ci", &format!("run-{n}"), n));
    }
    let (shop, ci) = (of(&learner, "shop"), of(&learner, "ci"));
    assert!(ci >= 60 && shop >= 110, "{shop} {ci}");
    for n in 100..2000 {
        teach(&mut learner, &workload("ci", &format!("run-{n}"), n));
    }
    assert_eq!((of(&learner, "shop"), of(&learner, "bank")), (shop, 20));
}

#[test]
fn what_was_not_observed_for_longest_makes_room_first() {
    let mut learner = small();
    for n in 0..200 {
        observe(&mut learner, &workload("shop", &format!("app-{n}"), 1), 1.0, n);
    }
    observe(&mut learner, &workload("shop", "new", 1), 1.0, 200);
    // One in 64 of the 200.
    assert_eq!((learner.stats().workloads, learner.stats().evicted), (197, 4));
    for n in 0..200 {
        assert_eq!(
            learner.learned(&workload("shop", &format!("app-{n}"), 1)).is_some(),
            n >= 4,
            "{n}"
        );
    }
}

#[test]
fn what_was_not_observed_for_two_weeks_makes_room_before_a_larger_namespace_does() {
    let mut learner = small();
    for n in 0..50 {
        observe(&mut learner, &workload("gone", &format!("app-{n}"), 1), 1.0, 0);
    }
    for n in 0..151 {
        observe(&mut learner, &workload("shop", &format!("app-{n}"), 1), 1.0, 15 * 24 * 60);
    }
    assert_eq!((learner.stats().workloads, learner.stats().evicted), (151, 50));
}

#[test]
fn templates_and_kinds_of_one_name_are_bounded() {
    let mut learner = small();
    for n in 0..1000 {
        let kind = format!("Kind{}", n % 100).as_str().into();
        observe(&mut learner, &WorkloadId { kind, ..web(n) }, 1.0, n as i64);
    }
    assert_eq!((learner.stats().workloads, learner.stats().evicted), (8, 992));
}

/// All tasks of a workflow engine can have one image and one request.
#[test]
fn of_a_shape_more_templates_are_kept_than_of_a_controller_and_not_all() {
    let mut learner = small();
    for n in 0..1000 {
        let mut task = workload("etl", "airflow@00000000000000a1", n);
        task.kind = "Pod".into();
        observe(&mut learner, &task, 1.0, n as i64);
    }
    assert_eq!((learner.stats().workloads, learner.stats().evicted), (128, 872));
}

/// A pod that names a controller as its owner, and whose containers are others, is of that controller with another
/// template.
#[test]
fn pods_with_a_forged_owner_do_not_stand_for_a_controller() {
    let mut learner = small();
    let day = 24 * 60;
    (0..day).for_each(|minute| observe(&mut learner, &web(1), 0.5, minute));
    (day..day + 10).for_each(|minute| observe(&mut learner, &web(99), 8.0, minute));
    assert!(is_near(cpu(&learner, &web(99)).unwrap().amount.p99, 8.0));
    let next = |learner: &Learner| cpu(learner, &web(2)).unwrap().amount.mean;
    assert!(is_near(next(&learner), 0.5), "{}", next(&learner));
    for minute in day + 10..day + 20 {
        (100..120).for_each(|forged| observe(&mut learner, &web(forged), 8.0, minute));
    }
    assert_eq!(learner.stats().workloads, 8);
    let known = |learner: &Learner| learner.snapshot().iter().any(|learned| learned.id == web(1));
    assert!(known(&learner));
    assert!(is_near(next(&learner), 0.5), "{}", next(&learner));
    // Nor does the next template start from theirs.
    (day + 20..day + 22).for_each(|minute| observe(&mut learner, &web(2), 0.5, minute));
    assert!(is_near(next(&learner), 0.5), "{}", next(&learner));
}

#[test]
fn absurd_use_is_refused_and_counted() {
    let mut learner = Learner::default();
    teach(&mut learner, &web(1));
    let before = learner.learned(&web(1));
    for absurd in [f64::NAN, f64::INFINITY, -1.0, -f64::MIN_POSITIVE, 1e300, 2000.0] {
        observe(&mut learner, &web(1), absurd, 11);
    }
    assert_eq!(learner.stats().refused, 6);
    assert_eq!(learner.learned(&web(1)), before);
    let used = PerResource { cpu: Some(1.0), memory: None };
    for lasting in [SignedDuration::ZERO, SignedDuration::MIN] {
        learner.observe(&web(1), &asking(None), used, lasting, at(12));
    }
    assert_eq!(learner.stats().observations, 10);
}

/// One pod counts by its time alone, so that none outweighs the others by saying that it ran for a year.
#[test]
fn an_observation_of_a_year_counts_for_an_hour() {
    let mut learner = Learner::default();
    (0..1200).for_each(|minute| observe(&mut learner, &web(1), 1.0, minute));
    let used = PerResource { cpu: Some(100.0), memory: None };
    learner.observe(&web(1), &asking(None), used, SignedDuration::from_hours(9000), at(1200));
    let amount = cpu(&learner, &web(1)).unwrap().amount;
    assert!(is_near(amount.p90, 1.0), "{amount:?}");
}
