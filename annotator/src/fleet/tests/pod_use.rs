//! When exporters are asked what their nodes' pods use.

use api::pods::NodePods;
use cluster::ExporterError;

use super::*;

/// Ends a job with every wanted metric written, and this answer about pods where it asked.
fn done_with(
    fleet: &mut Fleet,
    job: Job,
    pods: Result<NodePods, PollError>,
    now: Timestamp,
) -> Vec<Transition> {
    let poll = job.poll.as_ref().map(|poll| Ok(all_usable(poll)));
    let pods = job.pods.as_ref().map(|_| pods);
    fleet.finish(Report { pods, ..report(job, now, poll, Ok(())) }, now)
}

fn no_pods() -> Result<NodePods, PollError> {
    Ok(NodePods { time: at(0), omitted: 0, pods: Vec::new() })
}

#[test]
fn pods_are_asked_for_each_minute_and_with_every_poll() {
    let mut fleet = fleet_asking(Some(SignedDuration::from_mins(1)));
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut polls = 0;
    let mut asks = 0;
    let mut both = 0;
    let mut now = at(0);
    while now < at(1800) {
        let Some(job) = fleet.take_job(now) else {
            now = fleet.next().unwrap();
            continue;
        };
        polls += i32::from(job.poll.is_some());
        asks += i32::from(job.pods.is_some());
        both += i32::from(job.poll.is_some() && job.pods.is_some());
        done_with(&mut fleet, job, no_pods(), now);
    }
    // Readings are polled every 3 minutes and pods' use every minute. Each poll of readings also polls pods' use.
    assert!((10..=11).contains(&polls), "{polls}");
    assert!((30..=31).contains(&asks), "{asks}");
    assert_eq!(both, polls);
}

#[test]
fn an_exporter_without_pods_is_asked_again_after_ten_minutes() {
    let mut fleet = fleet_asking(Some(SignedDuration::from_mins(1)));
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    assert!(job.poll.is_some() && job.pods.is_some());
    done_with(&mut fleet, job, Err(PollError::Status(404)), at(0));
    let mut polls = 0;
    loop {
        let now = fleet.next().unwrap();
        let job = fleet.take_job(now).unwrap();
        if job.pods.is_some() {
            assert!(now >= at(600), "{now}");
            break;
        }
        polls += 1;
        assert_eq!(done(&mut fleet, job, now), []);
    }
    assert!((3..=4).contains(&polls), "{polls}");
    assert_eq!(count(&fleet), (1, 0));
}

#[test]
fn a_late_or_broken_answer_about_pods_delays_no_later_one() {
    let late = PollError::Timeout(std::time::Duration::from_secs(1));
    for failure in [late, PollError::Status(503), PollError::Broken("reset".to_owned())] {
        let mut fleet = fleet_asking(Some(SignedDuration::from_mins(1)));
        fleet.nodes_listed(vec![node("a")], at(0));
        let job = fleet.take_job(at(0)).unwrap();
        done_with(&mut fleet, job, Err(failure.clone()), at(0));
        let asks = loop {
            let now = fleet.next().unwrap();
            let job = fleet.take_job(now).unwrap();
            if job.pods.is_some() {
                break now;
            }
            done(&mut fleet, job, now);
        };
        assert!(asks <= at(120), "{failure}: {asks}");
    }
}

#[test]
fn a_silent_exporter_is_not_asked_about_pods() {
    let mut fleet = fleet_asking(Some(SignedDuration::from_mins(1)));
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    poll_failed(&mut fleet, job, timeout(), at(0));
    let next = fleet.next().unwrap();
    assert_eq!(next, at(5));
    let job = fleet.take_job(next).unwrap();
    assert!(job.poll.is_some());
    poll_failed(&mut fleet, job, timeout(), next);
    assert_eq!(fleet.next(), Some(at(15)));
}

#[test]
fn an_exporter_without_an_address_is_not_asked_about_pods_and_delays_no_other() {
    let mut fleet = fleet_asking(Some(SignedDuration::from_mins(1)));
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    for _ in 0..2 {
        let job = fleet.take_job(at(0)).unwrap();
        done_with(&mut fleet, job, no_pods(), at(0));
    }
    let no_address = NodeFacts { exporter: Some(Err(ExporterError("x".to_owned()))), ..node("a") };
    fleet.node_applied(no_address, at(1));
    for second in (1..170).step_by(10) {
        while let Some(job) = fleet.take_job(at(second)) {
            assert!(job.node == "b".into() || job.pods.is_none(), "{job:?}");
            done_with(&mut fleet, job, no_pods(), at(second));
        }
    }
}
