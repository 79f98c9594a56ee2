//! When nodes are written: what crosses a limit soon, the rest in bursts, and how often in an hour.

use std::collections::BTreeMap;

use placement::publish::{DEFAULT_DEAD_BAND, WriteReason};

use super::*;

/// The shipped policy.
const SHIPPED: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");
/// crane's policy, as it ships it.
const CRANE: &str = include_str!("../../../../crates/placement/tests/golden/crane-policy.yaml");

const HOUR: i64 = 3600;

/// A fleet in virtual time; second 0 is at a burst.
struct SimulatedFleet {
    fleet: Fleet,
    second: i64,
    /// Second, node and reason of each write.
    writes: Vec<(i64, NodeName, WriteReason)>,
    /// What is on the nodes.
    written: BTreeMap<(NodeName, MetricName), Reading>,
    /// Whether patches fail.
    broken: bool,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(900_000 + second).unwrap()
}

impl SimulatedFleet {
    /// With a dead band for crane's readers.
    fn new(policy: &str, nodes: usize) -> Self {
        Self::with(policy, nodes, 0.05)
    }

    fn with(policy: &str, nodes: usize, dead_band: f64) -> Self {
        let burst_interval = Some(SignedDuration::from_secs(45));
        let mut fleet = fleet_with(Settings { dead_band, burst_interval, ..settings() }, policy);
        fleet.nodes_listed((0..nodes).map(|n| with_gpu(&format!("n{n}"))).collect(), at(0));
        fleet.pods_listed(&[], at(0));
        Self { fleet, second: 0, writes: Vec::new(), written: BTreeMap::new(), broken: false }
    }

    /// Lets the time pass until `end`. Each node has the load of `load`.
    fn run(&mut self, end: i64, mut load: impl FnMut(&NodeName, &MetricName, i64) -> f64) {
        while self.second < end {
            while let Some(job) = self.fleet.take_job(at(self.second)) {
                self.finish(job, &mut load);
            }
            self.second += 1;
        }
    }

    fn finish(&mut self, job: Job, load: &mut impl FnMut(&NodeName, &MetricName, i64) -> f64) {
        let node = job.node.clone();
        let now = at(self.second);
        let poll = job.poll.as_ref().map(|poll| {
            let mut answer = all_usable(poll);
            for (metric, reading) in &mut answer.usable {
                reading.value = Ratio::new(load(&node, metric, self.second)).unwrap();
            }
            answer.gpus.record("gpu_0_usage_active", "GPU-0", 50.0);
            Ok(answer)
        });
        let mut patch = Ok(());
        if self.broken {
            patch = Err(CallError::Unknown("none within 10s".to_owned()));
        }
        let report = report(job, now, poll, patch);
        if let (Some(write), Some(Ok(()))) = (&report.write.readings, &report.patch) {
            self.writes.push((self.second, node.clone(), write.reason));
            for (metric, reading) in &write.readings {
                self.written.insert((node.clone(), metric.clone()), *reading);
            }
        }
        self.fleet.finish(report, now);
    }

    /// Seconds and reasons of the writes of the first node since `from`.
    fn writes_of_first(&self, from: i64) -> Vec<(i64, WriteReason)> {
        let of_first =
            self.writes.iter().filter(|(second, node, _)| *second >= from && node.as_str() == "n0");
        of_first.map(|(second, _, reason)| (*second, *reason)).collect()
    }
}

/// A steady load with noise: an autoregressive value around 0.5 for each node and metric, with a deviation of `noise`.
fn noisy(noise: f64) -> impl FnMut(&NodeName, &MetricName, i64) -> f64 {
    let mut values = BTreeMap::<(NodeName, MetricName), f64>::new();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move |node, metric, _| {
        // The sum of 12 uniform numbers less 6 is nearly normal, with a deviation of 1.
        let normal = (0..12).map(|_| random(&mut state)).sum::<f64>() - 6.0;
        let value = values.entry((node.clone(), metric.clone())).or_insert(0.0);
        // Polls of a five-minute mean are a minute apart: four fifths of each are in the next.
        *value = 0.8 * *value + 0.6 * noise * normal;
        (0.5 + *value).clamp(0.0, 1.0)
    }
}

/// The next of a sequence of uniform numbers from 0 to 1 (xorshift).
fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

/// The writes a node and hour of a noisy but steady fleet, and the largest of any node. Checks each second that what is
/// written is valid for its readers: as long as `valid` says.
fn writes_an_hour(
    world: &mut SimulatedFleet,
    noise: f64,
    valid: impl Fn(&MetricName) -> i64,
    each_second: impl Fn(&mut Fleet, i64),
) -> (f64, usize) {
    let mut load = noisy(noise);
    let start = HOUR / 2;
    for second in 0..start + HOUR {
        each_second(&mut world.fleet, second);
        world.run(second + 1, &mut load);
        for ((node, metric), reading) in &world.written {
            let age = at(second).duration_since(reading.at).as_secs();
            assert!(age < valid(metric), "{node} {metric} is {age} s old");
        }
    }
    let mut of_node = BTreeMap::<&NodeName, usize>::new();
    for (_, node, _) in world.writes.iter().filter(|(second, ..)| *second >= start) {
        *of_node.entry(node).or_default() += 1;
    }
    let sum: usize = of_node.values().sum();
    (sum as f64 / of_node.len() as f64, of_node.values().copied().max().unwrap())
}

fn none(_: &mut Fleet, _: i64) {}

#[test]
fn a_quiet_node_is_written_12_times_an_hour_and_stays_valid() {
    for (dead_band, noise) in [
        (DEFAULT_DEAD_BAND, 0.0),
        (DEFAULT_DEAD_BAND, 0.02),
        (DEFAULT_DEAD_BAND, 0.05),
        (0.05, 0.0),
        (0.05, 0.02),
        // 20 times an hour.
        (0.05, 0.05),
    ] {
        let mut world = SimulatedFleet::with(SHIPPED, 20, dead_band);
        let (mean, most) = writes_an_hour(&mut world, noise, |_| 8 * 60, none);
        println!(
            "shipped policy, dead band {dead_band}, noise {noise}: {mean:.1} writes a node and hour, at most {most}"
        );
        assert!(mean <= 12.0 || dead_band < DEFAULT_DEAD_BAND && noise > 0.02, "{mean}");
    }
}

#[test]
fn under_cranes_policy_readings_are_always_valid_for_its_own_readers() {
    for noise in [0.0, 0.01] {
        let mut world = SimulatedFleet::new(CRANE, 20);
        let (mean, most) =
            writes_an_hour(&mut world, noise, |metric| crane_period(metric) + 5 * 60, none);
        println!("crane's policy, noise {noise}: {mean:.1} writes a node and hour, at most {most}");
        assert!(mean <= 12.0, "{mean}");
    }
}

/// The period of a metric in crane's policy, in seconds.
fn crane_period(metric: &MetricName) -> i64 {
    match metric.as_str().rsplit_once('_').unwrap().1 {
        "5m" => 3 * 60,
        "1h" => 15 * 60,
        _ => 3 * HOUR,
    }
}

#[test]
fn heat_and_gpu_shares_cost_at_most_two_more_writes_an_hour() {
    let mut world = SimulatedFleet::new(CRANE, 20);
    let (mean, most) = writes_an_hour(&mut world, 0.01, |_| 4 * HOUR, bind_each_25_seconds);
    println!("crane's policy with heat: {mean:.1} writes a node and hour, at most {most}");
    assert!((11.0..=14.0).contains(&mean), "{mean}");
}

/// Binds a pod to each node every 25 seconds: a hot value of 3.
fn bind_each_25_seconds(fleet: &mut Fleet, second: i64) {
    if second % 25 != 0 {
        return;
    }
    for n in 0..20 {
        let uid = format!("p{second}-{n}");
        let node = format!("n{n}").as_str().into();
        let pod = BoundPod { node, bound_at: Some(at(second)), gpu: None, ..pod(&uid, 1) };
        fleet.pod_applied(&pod, at(second));
    }
}

#[test]
fn what_moved_waits_for_the_burst_and_what_crosses_a_limit_for_others_that_do() {
    let mut world = SimulatedFleet::new(SHIPPED, 10);
    world.run(100, |_, _, _| 0.5);
    let start = world.second;
    world.run(start + 200, |_, _, _| 0.6);
    let moved: Vec<i64> =
        world.writes.iter().filter(|write| write.0 >= start).map(|w| w.0).collect();
    // Polls are spread over a minute, so two bursts write them all.
    assert!(moved.len() == 10 && moved.iter().all(|second| second % 45 == 0), "{moved:?}");
    let start = world.second;
    world.run(start + 75, |_, _, _| 0.85);
    let crossed: Vec<_> = world.writes.iter().filter(|write| write.0 >= start).collect();
    assert_eq!(crossed.len(), 10);
    assert!(crossed.iter().all(|(.., reason)| *reason == WriteReason::Crossed), "{crossed:?}");
    assert!(crossed.iter().any(|(second, ..)| second % 45 != 0), "{crossed:?}");
    // Half way between two bursts, in the second after it.
    assert!(crossed.iter().all(|(second, ..)| matches!(second % 45, 0 | 23)), "{crossed:?}");
}

#[test]
fn a_write_holds_every_metric_with_the_time_of_its_own_poll_and_the_share() {
    let mut world = SimulatedFleet::new(SHIPPED, 1);
    world.run(91, |_, _, _| 0.5);
    world.fleet.pod_applied(&BoundPod { node: "n0".into(), ..pod("p", 3) }, at(91));
    let job = loop {
        let job = world.fleet.take_job(at(world.second));
        match job {
            Some(job) if job.poll.is_none() => break job,
            Some(job) => world.finish(job, &mut |_, _, _| 0.6),
            None => world.second += 1,
        }
    };
    assert_eq!(world.second % 45, 0);
    let write = job.decide(None, at(world.second)).readings.unwrap();
    assert_eq!((write.reason, write.readings.len()), (WriteReason::Moved, 2));
    assert!(write.readings.iter().all(|(_, reading)| reading.at < at(world.second)));
    assert_eq!(job.write.share.unwrap().gpus[0].allocated, Units(3));
}

#[test]
fn without_a_dead_band_each_burst_writes_whatever_moved() {
    let mut world = SimulatedFleet::with(SHIPPED, 1, 0.0);
    world.run(HOUR, noisy(0.01));
    let writes = world.writes_of_first(100);
    // Each poll once.
    assert!((57..=60).contains(&writes.len()), "{}", writes.len());
    assert!(writes.iter().all(|(second, _)| second % 45 == 0), "{writes:?}");
}

#[test]
fn what_is_on_the_nodes_counts_as_written_after_a_restart() {
    let mut before = SimulatedFleet::new(SHIPPED, 10);
    before.run(1000, |_, _, _| 0.5);
    let mut world = SimulatedFleet::new(SHIPPED, 0);
    let mut nodes = Vec::new();
    for n in 0..10 {
        let name = format!("n{n}");
        let of_node = before.written.iter().filter(|((node, _), _)| node.as_str() == name);
        let readings = of_node.map(|((_, metric), reading)| (metric.clone(), Ok(*reading)));
        nodes.push(NodeFacts { readings: readings.collect(), ..with_gpu(&name) });
    }
    world.second = 1000;
    world.fleet.nodes_listed(nodes, at(1000));
    world.run(1100, |_, _, _| 0.5);
    let mut reasons = world.writes.iter().map(|(_, _, reason)| *reason);
    assert!(reasons.all(|reason| reason == WriteReason::Expiring), "{:?}", world.writes);
    assert!(world.writes.len() < 5, "{:?}", world.writes);
    assert!(world.fleet.status().next.is_some());
}

#[test]
fn a_burst_during_a_poll_is_made_up_for() {
    let mut world = SimulatedFleet::new(SHIPPED, 1);
    world.run(90, |_, _, _| 0.5);
    world.run(150, |_, _, _| 0.6);
    let written = world.writes.len();
    let job = loop {
        match world.fleet.take_job(at(world.second)) {
            Some(job) if job.poll.is_some() => break job,
            Some(job) => world.finish(job, &mut |_, _, _| 0.7),
            None => world.second += 1,
        }
    };
    // The poll takes until after the next burst.
    let burst = world.second + 45 - world.second % 45;
    world.second = burst;
    assert_eq!(world.fleet.take_job(at(burst)), None);
    world.second = burst + 1;
    world.finish(job, &mut |_, _, _| 0.7);
    world.run(burst + 3, |_, _, _| 0.7);
    let since = &world.writes[written..];
    assert!(since.iter().any(|(second, ..)| (burst + 1..burst + 3).contains(second)), "{since:?}");
}

#[test]
fn a_write_that_fails_is_tried_again_before_the_next_burst() {
    let mut world = SimulatedFleet::new(SHIPPED, 1);
    world.run(90, |_, _, _| 0.5);
    world.broken = true;
    let mut burst = 90;
    while world.fleet.nodes[&NodeName::from("n0")].writes.readings.due().is_some() || burst == 90 {
        burst += 45;
        world.run(burst + 1, |_, _, _| 0.6);
        if world.fleet.nodes[&NodeName::from("n0")].writes.readings.due().is_some() {
            break;
        }
    }
    world.broken = false;
    world.run(burst + 12, |_, _, _| 0.6);
    let writes = world.writes_of_first(90);
    assert!(matches!(writes[..], [(second, WriteReason::Moved)] if second % 45 != 0), "{writes:?}");
}

#[test]
fn polls_that_were_never_written_are_counted_as_saved_writes() {
    let mut world = SimulatedFleet::new(SHIPPED, 1);
    world.run(HOUR, |_, _, _| 0.5);
    let writes = world.writes.len() as u64;
    let saved = world.fleet.status().writes_saved;
    // 60 polls, the last of which may still be written.
    assert!((59..=61).contains(&(writes + saved)), "{writes} writes, {saved} saved");
    assert!(saved >= 48, "{saved}");
}

#[test]
fn a_silent_node_is_not_written() {
    let mut world = SimulatedFleet::new(SHIPPED, 1);
    world.run(90, |_, _, _| 0.5);
    let before = world.writes.len();
    for second in 90..900 {
        while let Some(job) = world.fleet.take_job(at(second)) {
            assert!(job.poll.is_some() || job.write.share.is_some(), "{job:?}");
            poll_failed(&mut world.fleet, job, timeout(), at(second));
        }
    }
    assert_eq!(world.writes.len(), before);
}
