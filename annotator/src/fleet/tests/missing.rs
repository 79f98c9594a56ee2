//! Metrics without a usable value: held back, lacking on young nodes, or provided by no exporter.

use super::*;

/// Nodes whose value of a metric is held back.
fn held_back(fleet: &Fleet, metric: &str, reason: &'static str) -> usize {
    fleet.status().held_back[&(metric.into(), reason)]
}

/// An answer with `cpu` held back and `mem` usable.
fn partly_covered(coverage: f64, seconds: i64) -> PollResult {
    let reason =
        HoldReason::Coverage { coverage, ready_in: Some(SignedDuration::from_secs(seconds)) };
    let held_back = vec![("cpu".into(), reason)];
    PollResult {
        format: Format::Detailed,
        usable: usable(&["mem".into()]),
        held_back,
        uptime: None,
        gpus: GpuMeasurements::default(),
        took: Duration::ZERO,
    }
}

#[test]
fn a_metric_held_back_is_counted_and_polled_for_when_it_can_be_usable() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let a = fleet.take_job(at(0)).unwrap();
    let b = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, b, at(0));
    let transitions = answered(&mut fleet, a, partly_covered(0.1, 40), at(0));
    assert!(matches!(transitions[..], [Transition::HeldBack(..)]), "{transitions:?}");
    assert_eq!((held_back(&fleet, "cpu", "coverage"), fleet.next()), (1, Some(at(40))));
    assert_eq!((held_back(&fleet, "mem", "coverage"), held_back(&fleet, "cpu", "age")), (0, 0));
    let again = fleet.take_job(at(40)).unwrap();
    assert_eq!(answered(&mut fleet, again, partly_covered(0.4, 10), at(40)), []);
    let again = fleet.take_job(at(50)).unwrap();
    assert_eq!(done(&mut fleet, again, at(50)), [Transition::Released("cpu".into())]);
    assert_eq!(held_back(&fleet, "cpu", "coverage"), 0);
}

/// An exporter that loses half of its samples: 49% of a window stays covered, and half of it would be in 3 seconds.
#[test]
fn an_exporter_with_windows_half_full_is_polled_less_often() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut polls = 0;
    let mut now = at(0);
    while now < at(3600) {
        let job = fleet.take_job(now).unwrap();
        polls += 1;
        answered(&mut fleet, job, partly_covered(0.49, 3), now);
        now = fleet.next().unwrap();
    }
    assert!((30..=60).contains(&polls), "{polls} polls in an hour");
}

#[test]
fn a_node_or_metric_that_is_gone_is_not_counted_as_held_back() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    for _ in 0..2 {
        let job = fleet.take_job(at(0)).unwrap();
        answered(&mut fleet, job, partly_covered(0.1, 40), at(0));
    }
    assert_eq!(held_back(&fleet, "cpu", "coverage"), 2);
    fleet.node_gone(&"a".into(), at(1));
    assert_eq!(held_back(&fleet, "cpu", "coverage"), 1);
    let without = POLICY.replace("  - {name: cpu, period: 3m}\n", "");
    fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&without).unwrap()), at(1));
    let left: Vec<usize> = fleet.status().held_back.into_values().collect();
    assert_eq!(left, [0, 0], "mem, by age and coverage");
}

#[test]
fn a_held_back_value_counts_under_the_last_reason() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    answered(&mut fleet, job, partly_covered(0.1, 40), at(0));
    let job = fleet.take_job(at(40)).unwrap();
    let old = ("cpu".into(), HoldReason::Age(SignedDuration::from_mins(10)));
    let answer = PollResult { held_back: vec![old], ..partly_covered(0.1, 40) };
    answered(&mut fleet, job, answer, at(40));
    assert_eq!((held_back(&fleet, "cpu", "coverage"), held_back(&fleet, "cpu", "age")), (0, 1));
    let next = fleet.next().unwrap();
    let job = fleet.take_job(next).unwrap();
    poll_failed(&mut fleet, job, timeout(), next);
    assert_eq!((held_back(&fleet, "cpu", "age"), count(&fleet)), (0, (1, 1)));
}

/// What polls have shown: nodes that are silent, that have answered, whose value is held back, and that lack `mem`.
fn shown(fleet: &Fleet) -> [usize; 4] {
    let status = fleet.status();
    let held_back = status.held_back.values().sum();
    [status.silent, status.answered, held_back, status.missing["mem"]]
}

#[test]
fn a_replica_reports_missing_metrics_only_while_it_leads() {
    let mut fleet = fleet();
    fleet.nodes_listed(["a", "b", "c", "d"].map(node).to_vec(), at(0));
    let [a, b, c, d] = take_all(&mut fleet, at(0)).try_into().unwrap();
    poll_failed(&mut fleet, a, timeout(), at(0));
    answered(&mut fleet, b, partly_covered(0.1, 40), at(0));
    let answer = without(c.poll.as_ref().unwrap(), &["mem"]);
    answered(&mut fleet, c, answer, at(0));
    assert_eq!(shown(&fleet), [1, 2, 1, 1]);
    fleet.set_leading(false, at(1));
    assert_eq!(shown(&fleet), [0; 4]);
    // A poll that was under way.
    poll_failed(&mut fleet, d, timeout(), at(2));
    fleet.node_applied(node("b"), at(2));
    assert_eq!((shown(&fleet), fleet.status().nodes), ([0; 4], 4));
    fleet.set_leading(true, at(600));
    assert_eq!((shown(&fleet), fleet.report_missing(at(600))), ([0; 4], vec![]));
    run(&mut fleet, |_| &["mem"], at(1000));
    assert_eq!(shown(&fleet), [0, 4, 0, 4]);
    assert_eq!(fleet.report_missing(at(1000)), ["mem".into()]);
    fleet.node_gone(&"a".into(), at(1001));
    assert_eq!(shown(&fleet), [0, 3, 0, 3]);
}

#[test]
fn a_silent_node_that_has_answered_counts_as_one_that_did() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let [a, b] = take_all(&mut fleet, at(0)).try_into().unwrap();
    done(&mut fleet, a, at(0));
    poll_failed(&mut fleet, b, timeout(), at(0));
    assert_eq!(shown(&fleet), [1, 1, 0, 0]);
    let next = fleet.next().unwrap();
    let job = fleet.take_job(next).unwrap();
    assert_eq!(job.node.as_str(), "b");
    let answer = without(job.poll.as_ref().unwrap(), &["mem"]);
    answered(&mut fleet, job, answer, next);
    assert_eq!(shown(&fleet), [0, 2, 0, 1]);
    while fleet.status().silent == 0 {
        let next = fleet.next().unwrap();
        let job = fleet.take_job(next).unwrap();
        poll_failed(&mut fleet, job, timeout(), next);
    }
    assert_eq!(shown(&fleet)[1], 2);
}

/// An answer without these metrics.
fn without(poll: &PollRequest, lacking: &[&str]) -> PollResult {
    let mut answer = all_usable(poll);
    answer.usable.retain(|(metric, _)| !lacking.contains(&metric.as_str()));
    answer
}

/// Runs all jobs that are due at `now`; the exporters lack these metrics.
fn run(fleet: &mut Fleet, lacking: impl Fn(&str) -> &'static [&'static str], now: Timestamp) {
    while let Some(job) = fleet.take_job(now) {
        let answer = without(job.poll.as_ref().unwrap(), lacking(job.node.as_str()));
        answered(fleet, job, answer, now);
    }
}

#[test]
fn a_metric_that_no_exporter_provides_is_reported_once_and_counted() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let first = fleet.take_job(at(0)).unwrap();
    let answer = without(first.poll.as_ref().unwrap(), &["cpu"]);
    answered(&mut fleet, first, answer, at(0));
    assert_eq!(fleet.report_missing(at(0)), [], "another exporter may provide it");
    run(&mut fleet, |_| &["cpu"], at(0));
    assert_eq!(fleet.report_missing(at(0)), ["cpu".into()]);
    let missing: Vec<usize> = fleet.status().missing.into_values().collect();
    assert_eq!(missing, [2, 0], "cpu, mem");
    run(&mut fleet, |_| &["cpu"], at(200));
    assert_eq!(fleet.report_missing(at(200)), []);
    // A change of the policy reports it again.
    let policy = LoadPolicy::from_yaml(&POLICY.replace("period: 3m", "period: 4m")).unwrap();
    fleet.set_policy(Arc::new(policy), at(201));
    assert_eq!(fleet.report_missing(at(201)), ["cpu".into()]);
}

#[test]
fn a_metric_that_some_exporters_provide_is_counted_and_not_reported() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    run(&mut fleet, |name| if name == "a" { &["cpu"] } else { &[] }, at(0));
    assert_eq!((fleet.report_missing(at(0)), fleet.status().missing["cpu"]), (vec![], 1));
    // The only node that provides it is gone.
    fleet.node_gone(&"b".into(), at(1));
    assert_eq!(fleet.report_missing(at(1)), ["cpu".into()]);
    run(&mut fleet, |_| &[], at(200));
    assert_eq!((fleet.report_missing(at(200)), fleet.status().missing["cpu"]), (vec![], 0));
}

#[test]
fn silent_held_back_and_coming_values_are_not_reported_missing() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    poll_failed(&mut fleet, job, timeout(), at(0));
    assert_eq!(fleet.report_missing(at(0)), []);
    let job = fleet.take_job(at(5)).unwrap();
    answered(&mut fleet, job, partly_covered(0.1, 40), at(5));
    assert_eq!(fleet.report_missing(at(5)), []);
    let maximum = POLICY.replace("cpu", "cpu_usage_max_avg_1h");
    fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&maximum).unwrap()), at(10));
    run(&mut fleet, |_| &["cpu_usage_max_avg_1h"], at(10));
    assert_eq!(fleet.report_missing(at(309)), []);
    assert_eq!(fleet.report_missing(at(310)), ["cpu_usage_max_avg_1h".into()]);
}

/// When a node that booted at 0 s is polled until `end` if its exporter never has `cpu`. It joined the cluster `joined`
/// seconds after the boot.
fn polls_without_cpu(tells_uptime: bool, joined: i64, end: i64) -> Vec<i64> {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![NodeFacts { created_at: Some(at(joined)), ..node("a") }], at(0));
    let mut polls = Vec::new();
    while fleet.next().unwrap() < at(end) {
        let now = fleet.next().unwrap().max(at(0));
        let second = now.duration_since(at(0)).as_secs();
        polls.push(second);
        let job = fleet.take_job(now).unwrap();
        let uptime = tells_uptime.then(|| SignedDuration::from_secs(second));
        let lacking = without(job.poll.as_ref().unwrap(), &["cpu"]);
        let answer = PollResult { uptime, ..lacking };
        answered(&mut fleet, job, answer, now);
    }
    polls
}

#[test]
fn a_metric_that_a_young_node_lacks_is_polled_for_after_each_full_minute() {
    let polls = polls_without_cpu(true, -86_400, 700);
    let after_full_minutes = (1..=9).map(|minute| 60 * minute + 2);
    assert!(after_full_minutes.clone().all(|second| polls.contains(&second)), "{polls:?}");
    assert!(polls.windows(2).skip(15).all(|pair| pair[1] - pair[0] > 62), "{polls:?}");
}

#[test]
fn a_metric_that_a_node_lacks_that_joined_lately_is_polled_for_every_30_seconds() {
    let polls = polls_without_cpu(false, 0, 700);
    let waits: Vec<i64> = polls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        polls.iter().zip(&waits).all(|(second, wait)| *wait <= 30 || *second >= 600),
        "{polls:?}"
    );
    let of_old_node = polls_without_cpu(false, -86_400, 700);
    assert!(of_old_node.windows(2).any(|pair| pair[1] - pair[0] == 120), "{of_old_node:?}");
}
