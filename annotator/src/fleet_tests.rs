use super::*;
use cluster::CallError;
use jiff::SignedDuration;
use placement::gpu::{Card, GpuRequest, Placed, Stage};
use placement::units::{CardId, MetricName, MiB, Units};

use crate::job::{Ask, Heard};
use crate::measured::Measurements;
use crate::pods::Held;
use crate::poll::PollError;
use crate::statistics::{Form, Lack};

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

fn fleet() -> Fleet {
    let policy = Arc::new(LoadPolicy::from_yaml(POLICY).unwrap());
    let names = Names::default();
    let codec = ReadingCodec::default();
    Fleet::new(Settings { names, codec, exporter_port: 19101 }, policy)
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        created_at: None,
        internal_ip: Some("10.0.0.1".parse().unwrap()),
        exporter: None,
        cards: None,
        ready: Some(true),
        annotations: Default::default(),
    }
}

fn with_card(name: &str) -> NodeFacts {
    let card = Card {
        uuid: "GPU-0".into(),
        index: 0,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        healthy: true,
        pods: Default::default(),
    };
    NodeFacts { cards: Some(Ok(vec![card])), ..node(name) }
}

fn pod(uid: &str, units: u32) -> BoundPod {
    let request = GpuRequest::single("main", Units(units)).unwrap();
    let placed = Placed::Cards([(CardId::from("GPU-0"), Units(units))].into());
    let gpu = Some(Held { request, placed, stage: Stage::Bound });
    BoundPod { uid: uid.into(), node: "a".into(), bound_at: Some(at(0)), gpu }
}

fn silence() -> PollError {
    PollError::Timeout(std::time::Duration::from_secs(3))
}

/// The exporter gave everything, in the form that was asked for.
fn all(ask: &Ask) -> Heard {
    Heard {
        form: ask.form,
        given: ask.wanted.clone(),
        held_back: Vec::new(),
        cards: Measurements::default(),
    }
}

/// The job came to this, and whatever had to be said of the cards was said.
fn report(
    job: Job,
    at: Timestamp,
    poll: Option<Result<Heard, PollError>>,
    patch: Option<Result<(), CallError>>,
) -> Report {
    let share = job.share.as_ref().and_then(|plan| plan.write(&Measurements::default(), at));
    Report { job, at, poll, share, patch }
}

/// The exporter answered so.
fn heard(fleet: &mut Fleet, job: Job, heard: Heard, now: Timestamp) -> Vec<Turn> {
    let patch = (!heard.given.is_empty()).then_some(Ok(()));
    fleet.finish(report(job, now, Some(Ok(heard)), patch), now)
}

/// The job is done: the exporter gave everything, and the patch was written.
fn done(fleet: &mut Fleet, job: Job, now: Timestamp) -> Vec<Turn> {
    let given = job.ask.as_ref().map(|ask| Ok(all(ask)));
    fleet.finish(report(job, now, given, Some(Ok(()))), now)
}

fn failed(fleet: &mut Fleet, job: Job, error: PollError, now: Timestamp) -> Vec<Turn> {
    fleet.finish(report(job, now, Some(Err(error)), None), now)
}

fn unwritten(fleet: &mut Fleet, job: Job, now: Timestamp) -> Vec<Turn> {
    let given = job.ask.as_ref().map(|ask| Ok(all(ask)));
    let patch = Some(Err(CallError::Unknown("none within 10s".to_owned())));
    fleet.finish(report(job, now, given, patch), now)
}

#[test]
fn a_node_has_one_job_at_a_time_whatever_happens_to_it() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    fleet.node_applied(with_card("a"), at(1));
    fleet.pods_listed(&[pod("p", 3)], at(1));
    assert_eq!(fleet.take_job(at(1000)), None);
    done(&mut fleet, job, at(1000));
    assert!(fleet.next().is_some());
}

#[test]
fn a_result_for_a_node_that_was_replaced_meanwhile_is_dropped() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let old = fleet.take_job(at(0)).unwrap();
    fleet.node_gone(&"a".into());
    fleet.node_applied(node("a"), at(1));
    let new = fleet.take_job(at(1)).unwrap();
    assert_eq!(failed(&mut fleet, old, silence(), at(2)), []);
    assert_eq!(fleet.count(), (1, 0));
    done(&mut fleet, new, at(2));
    assert!(fleet.next().unwrap() > at(2));
}

#[test]
fn a_node_that_is_in_no_list_any_more_is_forgotten() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    assert_eq!(job.node, "a".into());
    failed(&mut fleet, job, silence(), at(0));
    fleet.nodes_listed(vec![node("b")], at(1));
    assert_eq!(fleet.count(), (1, 0));
    assert_eq!(fleet.take_job(at(1)).unwrap().node, "b".into());
    assert_eq!(fleet.next(), None);
}

#[test]
fn silence_is_told_once_and_asked_again_ever_later() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut now = at(0);
    let mut waits = Vec::new();
    for round in 0..4 {
        let job = fleet.take_job(now).unwrap();
        let turns = failed(&mut fleet, job, silence(), now);
        assert_eq!(turns.is_empty(), round > 0, "{turns:?}");
        let next = fleet.next().unwrap();
        waits.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [5, 10, 20, 40]);
    assert_eq!(fleet.count(), (1, 1));
    let job = fleet.take_job(now).unwrap();
    let turns = failed(&mut fleet, job, PollError::Status(500), now);
    assert_eq!(turns, [Turn::Silent(PollError::Status(500))]);
    let now = fleet.next().unwrap();
    let job = fleet.take_job(now).unwrap();
    assert_eq!(done(&mut fleet, job, now), [Turn::Answers]);
    assert_eq!(fleet.count(), (1, 0));
}

/// So much of the window of `cpu` is full; `mem` is given.
fn short_of(part: f64, half_in: i64) -> Heard {
    let lack = Lack::Coverage { part, half_in: Some(SignedDuration::from_secs(half_in)) };
    let held_back = vec![("cpu".into(), lack)];
    Heard {
        form: Form::Detailed,
        given: vec!["mem".into()],
        held_back,
        cards: Measurements::default(),
    }
}

#[test]
fn a_metric_held_back_is_told_once_counted_and_asked_for_when_it_can_be_there() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    let (a, b) = (fleet.take_job(at(0)).unwrap(), fleet.take_job(at(0)).unwrap());
    done(&mut fleet, b, at(0));
    let turns = heard(&mut fleet, a, short_of(0.1, 40), at(0));
    assert!(matches!(turns[..], [Turn::HeldBack(..)]), "{turns:?}");
    assert_eq!((fleet.held_back(), fleet.next()), (1, Some(at(40))));
    let again = fleet.take_job(at(40)).unwrap();
    assert_eq!(heard(&mut fleet, again, short_of(0.4, 10), at(40)), []);
    let again = fleet.take_job(at(50)).unwrap();
    assert_eq!(done(&mut fleet, again, at(50)), [Turn::Released("cpu".into())]);
    assert_eq!(fleet.held_back(), 0);
}

#[test]
fn a_node_that_is_gone_and_a_metric_that_nobody_wants_hold_nothing_back() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), node("b")], at(0));
    for _ in 0..2 {
        let job = fleet.take_job(at(0)).unwrap();
        heard(&mut fleet, job, short_of(0.1, 40), at(0));
    }
    assert_eq!(fleet.held_back(), 2);
    fleet.node_gone(&"a".into());
    assert_eq!(fleet.held_back(), 1);
    let without = POLICY.replace("  - {name: cpu, period: 3m}\n", "");
    fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&without).unwrap()), at(1));
    assert_eq!(fleet.held_back(), 0);
}

/// What the node's exporter is asked for next, and when.
fn next_form(fleet: &mut Fleet) -> (i64, Form, Job) {
    let now = fleet.next().unwrap().max(at(0));
    let job = fleet.take_job(now).unwrap();
    (now.duration_since(at(0)).as_secs(), job.ask.as_ref().unwrap().form, job)
}

#[test]
fn an_exporter_of_the_older_form_is_asked_for_the_other_every_quarter_of_an_hour() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let mut turns = Vec::new();
    let mut asked = Vec::new();
    while asked.last().is_none_or(|(second, _)| *second < 31 * 60) {
        let (second, form, job) = next_form(&mut fleet);
        let flat = Heard { form: Form::Flat, ..all(job.ask.as_ref().unwrap()) };
        asked.push((second, form));
        turns.extend(heard(&mut fleet, job, flat, at(second)));
    }
    assert_eq!(turns, [Turn::Speaks(Form::Flat)]);
    let detailed = asked.iter().filter(|(_, form)| *form == Form::Detailed);
    let detailed: Vec<i64> = detailed.map(|(second, _)| *second).collect();
    assert_eq!(detailed.len(), 3, "{asked:?}");
    let waits = detailed.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(waits.into_iter().all(|wait| (900..=900 + 180).contains(&wait)), "{asked:?}");
}

#[test]
fn an_exporter_that_was_replaced_is_asked_for_coverage_at_once() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let (_, _, job) = next_form(&mut fleet);
    let flat = Heard { form: Form::Flat, ..all(job.ask.as_ref().unwrap()) };
    heard(&mut fleet, job, flat, at(0));
    let (second, form, job) = next_form(&mut fleet);
    assert_eq!(form, Form::Flat);
    failed(&mut fleet, job, silence(), at(second));
    let (second, form, job) = next_form(&mut fleet);
    assert_eq!(form, Form::Detailed);
    let turns = done(&mut fleet, job, at(second));
    assert_eq!(turns, [Turn::Answers, Turn::Speaks(Form::Detailed)]);
}

#[test]
fn a_silent_node_that_changes_is_asked_at_once() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    for _ in 0..6 {
        let now = fleet.next().unwrap().max(at(0));
        let job = fleet.take_job(now).unwrap();
        failed(&mut fleet, job, silence(), now);
    }
    let now = at(160);
    assert!(fleet.next().unwrap() > now);
    let moved = NodeFacts { internal_ip: Some("10.0.0.2".parse().unwrap()), ..node("a") };
    fleet.node_applied(moved, now);
    let ask = fleet.take_job(now).unwrap().ask.unwrap();
    assert_eq!(ask.endpoint.unwrap().address(), "10.0.0.2:19101");
}

#[test]
fn what_could_not_be_written_is_still_due() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let turns = unwritten(&mut fleet, job, at(0));
    assert!(matches!(turns[..], [Turn::Unwritten(_)]), "{turns:?}");
    assert_eq!(fleet.next(), Some(at(5)));
    let job = fleet.take_job(at(5)).unwrap();
    assert_eq!(job.ask.as_ref().unwrap().wanted.len(), 2);
    assert_eq!(unwritten(&mut fleet, job, at(5)), []);
    let job = fleet.take_job(at(15)).unwrap();
    assert_eq!(done(&mut fleet, job, at(15)), [Turn::Written]);
}

#[test]
fn a_change_of_cards_is_written_though_the_exporter_is_silent() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![with_card("a")], at(0));
    fleet.pods_listed(&[], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let report = report(job, at(0), Some(Err(silence())), Some(Ok(())));
    fleet.finish(report, at(0));
    let job = fleet.take_job(at(5)).unwrap();
    failed(&mut fleet, job, silence(), at(5));
    fleet.pod_applied(&pod("p", 3), at(6));
    fleet.pod_applied(&pod("q", 4), at(8));
    let job = fleet.take_job(at(16)).unwrap();
    let share = job.share.unwrap();
    assert_eq!((share.cards[0].allocated, share.needed), (Units(7), true));
}

#[test]
fn an_unreadable_report_of_cards_changes_nothing() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![with_card("a")], at(0));
    fleet.pods_listed(&[pod("p", 3)], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    let broken = Some(Err(placement::gpu::CardsError::TooMany(100)));
    fleet.node_applied(NodeFacts { cards: broken, ..node("a") }, at(1));
    let next = fleet.next().unwrap();
    assert!(!fleet.take_job(next).unwrap().share.unwrap().needed);
}

#[test]
fn the_hot_value_is_told_only_once_the_pods_are_known() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    assert_eq!(job.hot, None);
    done(&mut fleet, job, at(0));
    fleet.pods_listed(&[pod("p", 3), pod("q", 3)], at(1));
    let next = fleet.next().unwrap();
    assert_eq!(fleet.take_job(next).unwrap().hot, Some(2));
}

#[test]
fn another_policy_asks_at_once_for_what_it_adds() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    done(&mut fleet, job, at(0));
    let more = POLICY.replace("  hotValue", "  - {name: disk, period: 1h}\n  hotValue");
    fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&more).unwrap()), at(1));
    let job = fleet.take_job(at(1)).unwrap();
    assert_eq!(job.ask.unwrap().wanted, [MetricName::from("disk")]);
}

#[test]
fn a_node_is_never_written_in_a_tight_circle() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a")], at(0));
    let job = fleet.take_job(at(0)).unwrap();
    let far_behind = at(0) - SignedDuration::from_hours(1);
    let heard = all(job.ask.as_ref().unwrap());
    fleet.finish(report(job, far_behind, Some(Ok(heard)), Some(Ok(()))), at(0));
    assert_eq!(fleet.take_job(at(0)), None);
    assert_eq!(fleet.next(), Some(at(1)));
}

#[test]
fn a_clock_that_was_set_back_starves_nobody() {
    let mut fleet = fleet();
    fleet.nodes_listed(vec![node("a"), with_card("b")], at(7200));
    let (a, b) = (fleet.take_job(at(7200)).unwrap(), fleet.take_job(at(7200)).unwrap());
    done(&mut fleet, a, at(7200));
    failed(&mut fleet, b, silence(), at(7200));
    fleet.clock_set_back(at(0));
    assert!(fleet.take_job(at(0)).is_some());
    assert!(fleet.take_job(at(0)).is_some());
}

#[test]
fn who_is_due_first_comes_first() {
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
