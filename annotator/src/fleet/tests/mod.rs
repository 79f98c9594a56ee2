//! Which node is polled when, and what comes of its answers.

mod missing;
mod pod_use;
mod sequences;
mod silent_fleet;
mod writes;

use std::time::Duration;

use super::*;
use cluster::CallError;
use jiff::SignedDuration;
use placement::gpu::{Claim, Gpu, GpuIsolation, GpuRequest, Topology};
use placement::publish::{Urgency, WriteReason};
use placement::reading::Reading;
use placement::units::{GpuId, MetricName, MiB, Ratio, Units};

use super::job::{PollRequest, PollResult};
use super::lanes::Lane;
use crate::exporter::error::PollError;
use crate::exporter::gpus::GpuMeasurements;
use crate::exporter::statistics::{Format, HoldReason};
use crate::node_write::NodeWrite;
use crate::pods::GpuCharge;

const POLICY: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu, period: 3m}
  - {name: mem, period: 3m}
  hotValue: [{timeRange: 5m, count: 1}]
";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// Each poll writes whatever moved.
fn settings() -> Settings {
    Settings {
        names: Names::default(),
        codec: ReadingCodec::default(),
        exporter_port: 19101,
        concurrency: 8,
        pod_use_period: None,
        dead_band: 0.0,
        burst_interval: None,
        taint_margin: None,
    }
}

fn fleet() -> Fleet {
    fleet_asking(None)
}

/// One that asks what pods use this often.
fn fleet_asking(pod_use_period: Option<SignedDuration>) -> Fleet {
    fleet_with(Settings { pod_use_period, ..settings() }, POLICY)
}

fn fleet_with(settings: Settings, policy: &str) -> Fleet {
    let policy = Arc::new(LoadPolicy::from_yaml(policy).unwrap());
    Fleet::new(settings, policy, SharedReadings::default())
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        uid: String::new(),
        created_at: None,
        internal_ip: Some("10.0.0.1".parse().unwrap()),
        exporter: None,
        gpus: None,
        ready: Some(true),
        readings: Vec::new(),
        hot_value: None,
        share: None,
        labels: [].into(),
        capacity: Default::default(),
        speeds: Default::default(),
        allocatable_cpu: None,
        measured: None,
        taints: Default::default(),
    }
}

fn with_gpu(name: &str) -> NodeFacts {
    let gpu = Gpu {
        uuid: "GPU-0".into(),
        index: 0,
        model: "NVIDIA A10".into(),
        memory: MiB(16384),
        units: Units(16),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: Default::default(),
    };
    NodeFacts { gpus: Some(Ok(vec![gpu])), ..node(name) }
}

fn pod(uid: &str, units: u32) -> BoundPod {
    let request = GpuRequest::single("main", Units(units)).unwrap();
    let claim = Some(Claim::on_gpu(&request, &GpuId::from("GPU-0")));
    let gpu = Some(GpuCharge { request, claim, admitted: true });
    BoundPod { uid: uid.into(), node: "a".into(), bound_at: Some(at(0)), gpu, workload: None }
}

/// Nodes, and silent ones among them.
fn count(fleet: &Fleet) -> (usize, usize) {
    let status = fleet.status();
    (status.nodes, status.silent)
}

fn timeout() -> PollError {
    PollError::Timeout(Duration::from_secs(3))
}

/// These metrics with a value; [`report`] sets the time.
fn usable<'a>(metrics: impl IntoIterator<Item = &'a MetricName>) -> Vec<(MetricName, Reading)> {
    let reading = Reading::new(Ratio::new(0.1).unwrap(), at(0));
    metrics.into_iter().map(|metric| (metric.clone(), reading)).collect()
}

/// An answer in the format that was asked for, with a usable value of every wanted metric.
fn all_usable(poll: &PollRequest) -> PollResult {
    PollResult {
        format: poll.format,
        usable: usable(&poll.wanted),
        held_back: Vec::new(),
        uptime: None,
        gpus: GpuMeasurements::default(),
        took: Duration::ZERO,
    }
}

/// The report of a job, with what the job decides to write. The patch ends with `patch`.
fn report(
    job: Job,
    at: Timestamp,
    mut poll: Option<Result<PollResult, PollError>>,
    patch: Result<(), CallError>,
) -> Report {
    for answer in poll.iter_mut().flatten() {
        answer.usable.iter_mut().for_each(|(_, reading)| reading.at = at);
    }
    let write = job.decide(poll.as_ref(), at);
    let patch = (write != NodeWrite::default()).then_some(patch);
    Report { job, at, poll, write, patch, pods: None }
}

/// Ends a job with this answer.
fn answered(fleet: &mut Fleet, job: Job, answer: PollResult, now: Timestamp) -> Vec<Transition> {
    fleet.finish(report(job, now, Some(Ok(answer)), Ok(())), now)
}

/// Ends a job with a value of every wanted metric.
fn done(fleet: &mut Fleet, job: Job, now: Timestamp) -> Vec<Transition> {
    let poll = job.poll.as_ref().map(|poll| Ok(all_usable(poll)));
    fleet.finish(report(job, now, poll, Ok(())), now)
}

/// Ends a job with a failed poll.
fn poll_failed(fleet: &mut Fleet, job: Job, error: PollError, now: Timestamp) -> Vec<Transition> {
    fleet.finish(report(job, now, Some(Err(error)), Ok(())), now)
}

/// Ends a job with an answer and a failed patch.
fn patch_failed(fleet: &mut Fleet, job: Job, now: Timestamp) -> Vec<Transition> {
    let given = job.poll.as_ref().map(|poll| Ok(all_usable(poll)));
    let patch = Err(CallError::Unknown("none within 10s".to_owned()));
    fleet.finish(report(job, now, given, patch), now)
}

#[test]
fn a_node_has_one_job_at_a_time_whatever_happens_to_it() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    fleet.node_applied(with_gpu("a"), at(1));
    fleet.pods_listed(&[pod("p", 3)], at(1));
    assert_eq!(fleet.take_job(at(1000)), None);
    done(&mut fleet, job, at(1000));
    assert!(fleet.next().is_some());
}

#[test]
fn the_result_for_a_node_that_was_replaced_is_dropped() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let old = fleet.take_job(at(0)).unwrap();
    fleet.node_gone(&"a".into(), at(1));
    fleet.node_applied(node("a"), at(1));
    let new = fleet.take_job(at(1)).unwrap();
    assert_eq!(poll_failed(&mut fleet, old, timeout(), at(2)), []);
    assert_eq!(count(&fleet), (1, 0));
    done(&mut fleet, new, at(2));
    assert!(fleet.next().unwrap() > at(2));
}

#[test]
fn a_list_with_another_node_of_the_same_name_replaces_it() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![NodeFacts { uid: "1".to_owned(), ..node("a") }], at(0));
    let old = fleet.take_job(at(0)).unwrap();
    fleet.nodes_listed(vec![NodeFacts { uid: "2".to_owned(), ..node("a") }], at(1));
    let new = fleet.take_job(at(1)).unwrap();
    assert_eq!((old.uid.as_str(), new.uid.as_str()), ("1", "2"));
    done(&mut fleet, old, at(2));
    assert_eq!(fleet.take_job(at(2)), None);
    done(&mut fleet, new, at(2));
    assert_eq!(count(&fleet), (1, 0));
}

#[test]
fn readings_that_vanish_from_a_node_are_written_again() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    let reading = Reading::new(Ratio::new(0.1).unwrap(), at(0));
    let readings = ["cpu", "mem"].map(|metric| (metric.into(), Ok(reading))).to_vec();
    // The watch is behind: it shows the node without them at first.
    fleet.node_applied(node("a"), at(1));
    fleet.node_applied(NodeFacts { readings, ..node("a") }, at(1));
    assert_eq!(run_next(&mut fleet), None);
    fleet.node_applied(node("a"), at(300));
    assert_eq!(run_next(&mut fleet), Some(WriteReason::First));
}

/// Runs the next job. Returns the reason of its write.
fn run_next(fleet: &mut Fleet) -> Option<WriteReason> {
    let now = fleet.next().unwrap();
    let job = fleet.take_job(now).unwrap();
    let poll = job.poll.as_ref().map(|poll| Ok(all_usable(poll)));
    let report = report(job, now, poll, Ok(()));
    let reason = report.write.readings.as_ref().map(|write| write.reason);
    fleet.finish(report, now);
    reason
}

#[test]
fn what_another_replica_wrote_later_is_not_replaced_by_what_was_polled_before() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    fleet.set_leading(false, at(1));
    let newer = Reading::new(Ratio::new(0.85).unwrap(), at(90));
    let readings = vec![("cpu".into(), Ok(newer))];
    fleet.node_applied(NodeFacts { readings, ..node("a") }, at(91));
    fleet.set_leading(true, at(120));
    let mut plan = fleet.nodes["a"].writes.readings.plan(None, at(180), Urgency::NextBurst);
    plan.due = Some(WriteReason::HotValue);
    let write = plan.decide(&[], at(120)).unwrap();
    let cpu = write.readings.iter().find(|(metric, _)| metric.as_str() == "cpu").unwrap();
    assert_eq!(cpu.1, newer);
}

#[test]
fn a_node_that_a_later_list_lacks_is_removed() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    assert_eq!(job.node, "a".into());
    poll_failed(&mut fleet, job, timeout(), at(0));
    fleet.nodes_listed(vec![node("b")], at(1));
    assert_eq!(count(&fleet), (1, 0));
    assert_eq!(fleet.take_job(at(1)).unwrap().node, "b".into());
    assert_eq!(fleet.next(), None);
}

#[test]
fn a_silent_exporter_is_a_transition_once_and_polled_less_and_less_often() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut now = at(0);
    let mut waits = Vec::new();
    for round in 0..4 {
        let job = fleet.take_job(now).unwrap();
        let transitions = poll_failed(&mut fleet, job, timeout(), now);
        assert_eq!(transitions.is_empty(), round > 0, "{transitions:?}");
        let next = fleet.next().unwrap();
        waits.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [5, 10, 20, 40]);
    assert_eq!(count(&fleet), (1, 1));
    let job = fleet.take_job(now).unwrap();
    let transitions = poll_failed(&mut fleet, job, PollError::Status(500), now);
    assert_eq!(transitions, [Transition::ExporterSilent(PollError::Status(500))]);
    let now = fleet.next().unwrap();
    let job = fleet.take_job(now).unwrap();
    assert_eq!(done(&mut fleet, job, now), [Transition::ExporterAnswers { after: None }]);
    assert_eq!(count(&fleet), (1, 0));
}

/// The second and the format of the next poll, and its job.
fn next_poll(fleet: &mut Fleet) -> (i64, Format, Job) {
    let now = fleet.next().unwrap().max(at(0));
    let job = fleet.take_job(now).unwrap();
    (now.duration_since(at(0)).as_secs(), job.poll.as_ref().unwrap().format, job)
}

#[test]
fn an_exporter_of_the_flat_format_is_asked_for_the_detailed_one_every_15_minutes() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut transitions = Vec::new();
    let mut asked = Vec::new();
    while asked.last().is_none_or(|(second, _)| *second < 31 * 60) {
        let (second, form, job) = next_poll(&mut fleet);
        let flat = PollResult { format: Format::Flat, ..all_usable(job.poll.as_ref().unwrap()) };
        asked.push((second, form));
        transitions.extend(answered(&mut fleet, job, flat, at(second)));
    }
    assert_eq!(transitions, [Transition::FormatChanged(Format::Flat)]);
    let mut detailed = asked.clone();
    detailed.retain(|(_, form)| *form == Format::Detailed);
    assert_eq!(detailed.len(), 3, "{asked:?}");
    let mut waits = detailed.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(waits.all(|wait| (900..=900 + 180).contains(&wait)), "{asked:?}");
}

/// Polls the node, which does not answer, until `until`.
fn silent_until(fleet: &mut Fleet, mut now: Timestamp, until: i64) -> Vec<(i64, Transition)> {
    let mut told = Vec::new();
    while now < at(until) {
        let job = fleet.take_job(now).unwrap();
        let transitions = poll_failed(fleet, job, timeout(), now);
        let second = now.duration_since(at(0)).as_secs();
        told.extend(transitions.into_iter().map(|transition| (second, transition)));
        now = fleet.next().unwrap();
    }
    told
}

#[test]
fn a_silence_of_minutes_is_told_once_and_its_length_when_it_ends() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let told = silent_until(&mut fleet, at(0), 3_600);
    let [
        (0, Transition::ExporterSilent(_)),
        (second, Transition::ExporterSilentForLong { lasts, error, moved_from: None }),
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    // The first poll after five minutes.
    assert!((300..=420).contains(second), "{told:?}");
    assert_eq!((lasts.as_secs(), error), (*second, &timeout()));
    let now = fleet.next().unwrap();
    let job = fleet.take_job(now).unwrap();
    let after = Some(now.duration_since(at(0)));
    assert_eq!(done(&mut fleet, job, now), [Transition::ExporterAnswers { after }]);
}

#[test]
fn a_silence_counts_from_the_time_since_this_replica_leads_and_the_node_is_listed() {
    for starts_anew in [
        |fleet: &mut Fleet, now| fleet.set_leading(true, now),
        |fleet: &mut Fleet, now| {
            fleet.nodes_listed(Vec::new(), now);
            fleet.nodes_listed(vec![node("a")], now);
        },
        |fleet: &mut Fleet, now| {
            fleet.nodes_listed(vec![NodeFacts { uid: "2".to_owned(), ..node("a") }], now);
        },
    ] {
        let mut fleet = fleet();
        fleet.nodes_listed(vec![node("a")], at(0));
        silent_until(&mut fleet, at(0), 200);
        starts_anew(&mut fleet, at(250));
        let now = fleet.next().unwrap().max(at(250));
        let told = silent_until(&mut fleet, now, 3_600);
        let long: Vec<i64> = told
            .iter()
            .filter(|(_, told)| matches!(told, Transition::ExporterSilentForLong { .. }))
            .map(|(second, _)| *second)
            .collect();
        assert!(matches!(long[..], [550..=700]), "{told:?}");
    }
}

#[test]
fn after_a_failed_poll_the_detailed_format_is_asked_for_at_once() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let (_, _, job) = next_poll(&mut fleet);
    let flat = PollResult { format: Format::Flat, ..all_usable(job.poll.as_ref().unwrap()) };
    answered(&mut fleet, job, flat, at(0));
    let (second, form, job) = next_poll(&mut fleet);
    assert_eq!(form, Format::Flat);
    poll_failed(&mut fleet, job, timeout(), at(second));
    let (second, form, job) = next_poll(&mut fleet);
    assert_eq!(form, Format::Detailed);
    let transitions = done(&mut fleet, job, at(second));
    assert_eq!(
        transitions,
        [Transition::ExporterAnswers { after: None }, Transition::FormatChanged(Format::Detailed)]
    );
}

#[test]
fn a_silent_node_with_a_new_address_is_polled_at_once() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    for _ in 0..6 {
        let now = fleet.next().unwrap().max(at(0));
        let job = fleet.take_job(now).unwrap();
        poll_failed(&mut fleet, job, timeout(), now);
    }
    let now = at(160);
    assert!(fleet.next().unwrap() > now);
    let moved = NodeFacts { internal_ip: Some("10.0.0.2".parse().unwrap()), ..node("a") };
    fleet.node_applied(moved, now);
    let poll = fleet.take_job(now).unwrap().poll.unwrap();
    assert_eq!(poll.endpoint.unwrap().address(), "10.0.0.2:19101");
}

/// The exporter's pod keeps the address that it started with, and is restarted for it: it answers for moments alone.
#[test]
fn a_node_with_a_new_address_whose_exporter_falls_silent_is_told_with_the_old_one() {
    let moved = || NodeFacts { internal_ip: Some("10.0.0.2".parse().unwrap()), ..node("a") };
    let long = |told: &[(i64, Transition)]| {
        let told = told.iter().filter_map(|(second, told)| match told {
            Transition::ExporterSilentForLong { moved_from, .. } => {
                Some((*second, moved_from.clone()))
            }
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    let from = Some("10.0.0.1:19101".to_owned());
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    fleet.node_applied(moved(), at(60));
    let now = fleet.next().unwrap().max(at(60));
    let told = long(&silent_until(&mut fleet, now, 600));
    assert!(matches!(&told[..], [(180..=300, told)] if *told == from), "{told:?}");
    // An answer between two restarts is no cure.
    let now = fleet.next().unwrap();
    let job = fleet.take_job(now).unwrap();
    done(&mut fleet, job, now);
    let now = fleet.next().unwrap();
    let told = long(&silent_until(&mut fleet, now, 1_800));
    assert!(matches!(&told[..], [(_, told)] if *told == from), "{told:?}");
    // Answers for long are.
    for _ in 0..20 {
        let now = fleet.next().unwrap();
        let job = fleet.take_job(now).unwrap();
        done(&mut fleet, job, now);
    }
    let now = fleet.next().unwrap();
    let until = now.duration_since(at(0)).as_secs() + 1_000;
    let told = long(&silent_until(&mut fleet, now, until));
    assert!(matches!(&told[..], [(_, None)]), "{told:?}");
}

/// A silence that was told before the address changed is told once more, with the remedy.
#[test]
fn a_silent_node_with_a_new_address_is_told_again_with_the_old_one() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    silent_until(&mut fleet, at(0), 400);
    let moved = NodeFacts { internal_ip: Some("10.0.0.2".parse().unwrap()), ..node("a") };
    fleet.node_applied(moved, at(420));
    let now = fleet.next().unwrap().max(at(420));
    let told = silent_until(&mut fleet, now, 3_600);
    let [(second, Transition::ExporterSilentForLong { moved_from: Some(from), .. })] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert!((420..=430).contains(second) && from == "10.0.0.1:19101", "{told:?}");
}

#[test]
fn a_change_of_the_ready_condition_does_not_end_the_back_off() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    poll_failed(&mut fleet, job, timeout(), at(0));
    for (second, ready) in [(1, Some(false)), (2, Some(true)), (3, None)] {
        fleet.node_applied(NodeFacts { ready, ..node("a") }, at(second));
        assert_eq!(fleet.next(), Some(at(5)));
    }
}

/// One slot for answering exporters, 8 for new ones, 4 for silent ones.
fn narrow_fleet(nodes: usize, facts: impl Fn(&str) -> NodeFacts) -> Fleet {
    let mut fleet = fleet_with(Settings { concurrency: 1, ..settings() }, POLICY);
    let names: Vec<String> = (0..nodes).map(|i| format!("node-{i}")).collect();
    fleet.nodes_listed(names.iter().map(|name| facts(name)).collect(), at(0));
    fleet
}

/// Starts every job for which there is a slot.
fn take_all(fleet: &mut Fleet, now: Timestamp) -> Vec<Job> {
    std::iter::from_fn(|| fleet.take_job(now)).collect()
}

/// Runs all jobs that are due at `now`. Returns their nodes.
fn run_due(fleet: &mut Fleet, now: Timestamp) -> Vec<String> {
    let jobs = take_all(fleet, now);
    let names = jobs.iter().map(|job| job.node.to_string()).collect();
    for job in jobs {
        done(fleet, job, now);
    }
    names
}

/// A node with a reading of `cpu` and one of `mem` of these seconds.
fn node_read_at(name: &str, cpu: i64, mem: i64) -> NodeFacts {
    let readings = [("cpu", cpu), ("mem", mem)].map(|(metric, second)| {
        (metric.into(), Ok(Reading::new(Ratio::new(0.1).unwrap(), at(second))))
    });
    NodeFacts { readings: readings.to_vec(), ..node(name) }
}

#[test]
fn silent_exporters_have_slots_of_their_own() {
    let mut fleet = narrow_fleet(10, node);
    let new = take_all(&mut fleet, at(0));
    assert_eq!(new.len(), 8);
    assert!(new.iter().all(|job| job.lane == Lane::New));
    let mut jobs = new.into_iter();
    done(&mut fleet, jobs.next().unwrap(), at(1));
    jobs.for_each(|job| drop(poll_failed(&mut fleet, job, timeout(), at(1))));
    take_all(&mut fleet, at(1)).into_iter().for_each(|job| drop(done(&mut fleet, job, at(1))));
    assert_eq!(count(&fleet), (10, 7));
    // Everything is due: 3 nodes that answer, 7 that are silent.
    let started = take_all(&mut fleet, at(1000));
    let prompt = started.iter().filter(|job| job.lane == Lane::Prompt);
    let slow = started.iter().filter(|job| job.lane == Lane::Slow);
    assert_eq!((prompt.count(), slow.count(), started.len()), (1, 4, 5));
    assert_eq!((fleet.status().in_flight, fleet.next()), (5, None));
}

#[test]
fn after_a_restart_nodes_with_long_overdue_readings_wait_as_silent_ones() {
    let mut overdue = narrow_fleet(1, |name| node_read_at(name, -6400, 40_000));
    assert_eq!(overdue.take_job(at(250)).unwrap().lane, Lane::Slow);
    let mut recent = narrow_fleet(1, |name| node_read_at(name, -40, -40));
    assert_eq!(recent.take_job(at(250)).unwrap().lane, Lane::New);
    let mut new = narrow_fleet(1, node);
    assert_eq!(new.take_job(at(250)).unwrap().lane, Lane::New);
}

#[test]
fn a_replica_that_takes_over_polls_each_node_at_its_own_time() {
    let mut fleet = fleet();
    fleet.set_leading(false, at(0));
    let names: Vec<String> = (0..60).map(|i| format!("node-{i}")).collect();
    fleet.nodes_listed(names.iter().map(|name| node_read_at(name, 0, 0)).collect(), at(1));
    // The leader wrote all of them but one.
    for name in &names[1..] {
        fleet.node_applied(node_read_at(name, 600, 600), at(600));
    }
    fleet.set_leading(true, at(800));
    assert_eq!(run_due(&mut fleet, at(800)), ["node-0"]);
    // A poll serves the ticks of the next 18 s, too.
    let polled: Vec<usize> =
        (801..=998).map(|second| run_due(&mut fleet, at(second)).len()).collect();
    assert_eq!(polled.iter().sum::<usize>(), 60);
    assert!(polled.iter().all(|polls| *polls < 8), "{polled:?}");
}

#[test]
fn the_share_of_a_silent_node_does_not_wait_for_a_poll() {
    let mut fleet = narrow_fleet(6, with_gpu);
    fleet.pods_listed(&[], at(0));
    while let Some(job) = fleet.take_job(at(0)) {
        let report = report(job, at(0), Some(Err(timeout())), Ok(()));
        fleet.finish(report, at(0));
    }
    let polls = take_all(&mut fleet, at(5));
    assert_eq!((polls.len(), fleet.take_job(at(5))), (4, None));
    let waiting = (0..6)
        .map(|i| format!("node-{i}"))
        .find(|name| polls.iter().all(|job| job.node.as_str() != name))
        .unwrap();
    fleet.pod_applied(&BoundPod { node: waiting.as_str().into(), ..pod("p", 3) }, at(5));
    let job = fleet.take_job(at(15)).unwrap();
    assert_eq!((job.node.as_str(), job.lane), (waiting.as_str(), Lane::Write));
    assert!(job.poll.is_none() && job.write.share.is_some_and(|share| share.is_due));
}

#[test]
fn readings_whose_patch_failed_are_still_due() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let transitions = patch_failed(&mut fleet, job, at(0));
    assert!(matches!(transitions[..], [Transition::PatchFails(_)]), "{transitions:?}");
    assert_eq!(fleet.next(), Some(at(5)));
    let job = fleet.take_job(at(5)).unwrap();
    assert_eq!(job.poll, None);
    let write = job.decide(None, at(5)).readings.unwrap();
    assert!(write.readings.len() == 2 && write.readings.iter().all(|(_, read)| read.at == at(0)));
    assert_eq!(patch_failed(&mut fleet, job, at(5)), []);
    let job = fleet.take_job(at(15)).unwrap();
    assert_eq!(done(&mut fleet, job, at(15)), [Transition::PatchSucceeds]);
}

#[test]
fn a_change_of_gpus_is_written_though_the_exporter_is_silent() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![with_gpu("a")], at(0));
    fleet.pods_listed(&[], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let report = report(job, at(0), Some(Err(timeout())), Ok(()));
    fleet.finish(report, at(0));
    let job = fleet.take_job(at(5)).unwrap();
    poll_failed(&mut fleet, job, timeout(), at(5));
    fleet.pod_applied(&pod("p", 3), at(6));
    fleet.pod_applied(&pod("q", 4), at(8));
    let job = fleet.take_job(at(16)).unwrap();
    let share = job.write.share.unwrap();
    assert_eq!((share.gpus[0].allocated, share.is_due), (Units(7), true));
}

#[test]
fn an_unreadable_report_of_gpus_changes_nothing() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![with_gpu("a")], at(0));
    fleet.pods_listed(&[pod("p", 3)], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    let broken = Some(Err(api::gpus::GpusError::TooMany(100)));
    fleet.node_applied(NodeFacts { gpus: broken, ..node("a") }, at(1));
    let next = fleet.next().unwrap();
    assert!(!fleet.take_job(next).unwrap().write.share.unwrap().is_due);
}

#[test]
fn the_hot_value_is_unknown_before_the_pods_were_listed() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    assert_eq!(hot_value(&job), None);
    done(&mut fleet, job, at(0));
    fleet.pods_listed(&[pod("p", 3), pod("q", 3)], at(1));
    let next = fleet.next().unwrap();
    assert_eq!(hot_value(&fleet.take_job(next).unwrap()), Some(2));
}

fn hot_value(job: &Job) -> Option<u64> {
    job.write.readings.as_ref().unwrap().hot_value
}

#[test]
fn a_metric_added_by_a_policy_is_polled_for_at_once() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    let more = POLICY.replace("  hotValue", "  - {name: disk, period: 1h}\n  hotValue");
    fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&more).unwrap()), at(1));
    let job = fleet.take_job(at(1)).unwrap();
    assert!(job.poll.unwrap().wanted.contains(&MetricName::from("disk")));
}

#[test]
fn jobs_of_one_node_are_at_least_a_second_apart() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let far_behind = at(0) - SignedDuration::from_hours(1);
    let answer = all_usable(job.poll.as_ref().unwrap());
    fleet.finish(report(job, far_behind, Some(Ok(answer)), Ok(())), at(0));
    assert_eq!(fleet.take_job(at(0)), None);
    assert_eq!(fleet.next(), Some(at(1)));
}

#[test]
fn after_the_clock_was_set_back_every_node_is_due() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), with_gpu("b")], at(7200));
    let a = fleet.take_job(at(7200)).unwrap();
    let b = fleet.take_job(at(7200)).unwrap();
    done(&mut fleet, a, at(7200));
    poll_failed(&mut fleet, b, timeout(), at(7200));
    fleet.clock_set_back(at(0));
    assert!(fleet.take_job(at(0)).is_some());
    assert!(fleet.take_job(at(0)).is_some());
}

#[test]
fn jobs_start_in_the_order_in_which_they_became_due() {
    let mut fleet = fleet();
    let names: Vec<String> = (0..50).map(|i| format!("node-{i}")).collect();
    fleet.nodes_listed(names.iter().map(|name| node(name)).collect(), at(0));
    while let Some(job) = fleet.take_job(at(0)) {
        done(&mut fleet, job, at(0));
    }
    let end = at(0) + SignedDuration::from_mins(6);
    let mut dues = Vec::new();
    while let Some(job) = fleet.take_job(end) {
        dues.push(job.due.unwrap());
        done(&mut fleet, job, end);
    }
    assert_eq!(dues.len(), 50);
    assert!(dues.is_sorted());
}
