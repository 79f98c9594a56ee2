//! How late nodes are polled when the exporters of many others are silent or slow: the real fleet in simulated time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::*;

/// When the program starts.
const START: &str = "2026-11-20T09:00:00Z";

const CRANE: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu_usage_avg_5m, period: 3m}
  - {name: mem_usage_avg_5m, period: 3m}
  - {name: cpu_usage_max_avg_1h, period: 15m}
  hotValue:
  - {timeRange: 5m, count: 2}
";

const CONCURRENCY: usize = 32;

/// How long an answer and its patch take.
const ANSWER: SignedDuration = SignedDuration::from_millis(20);

/// How long a silent exporter's poll takes: as long as it may.
const TIMEOUT: SignedDuration = SignedDuration::from_secs(3);

/// 5,000 nodes, half of them silent or slow.
struct Simulation {
    fleet: Fleet,
    /// How long the polls of that half take. They fail if it is [`TIMEOUT`].
    slow: SignedDuration,
    now: Timestamp,
    /// Jobs in flight by the time of their end.
    jobs: BTreeMap<(Timestamp, u64), Job>,
    /// Lateness of each started poll of an exporter that answers, in milliseconds.
    late: Vec<i64>,
    /// Started polls by node.
    polls: HashMap<String, usize>,
}

fn is_slow(name: &str) -> bool {
    name.trim_start_matches("node-").parse::<usize>().unwrap() % 2 == 0
}

/// A node with the same reading of every metric.
fn node_with(name: &str, reading: Option<Reading>) -> NodeFacts {
    let keys = ["cpu_usage_avg_5m", "mem_usage_avg_5m", "cpu_usage_max_avg_1h"];
    let readings = reading.iter().flat_map(|reading| keys.map(|key| (key.into(), Ok(*reading))));
    NodeFacts { readings: readings.collect(), ..node(name) }
}

impl Simulation {
    /// With the same reading of every metric on each node.
    fn new(slow: SignedDuration, reading: impl Fn(&str) -> Option<Reading>) -> Self {
        let now: Timestamp = START.parse().unwrap();
        let settings = Settings {
            concurrency: CONCURRENCY,
            dead_band: 0.05,
            burst_interval: Some(SignedDuration::from_secs(45)),
            ..settings()
        };
        let mut fleet = fleet_with(settings, CRANE);
        let names = (0..5000).map(|index| format!("node-{index}"));
        fleet.nodes_listed(names.map(|name| node_with(&name, reading(&name))).collect(), now);
        let (jobs, late, polls) = Default::default();
        Self { fleet, slow, now, jobs, late, polls }
    }

    fn start_jobs(&mut self) {
        while let Some(job) = self.fleet.take_job(self.now) {
            let polls = usize::from(job.poll.is_some());
            *self.polls.entry(job.node.to_string()).or_default() += polls;
            let slow = is_slow(job.node.as_str());
            if !slow && job.poll.is_some() {
                // What became due while the program was stopped is late by then.
                let due = job.due.into_iter().chain([START.parse().unwrap()]).max().unwrap();
                self.late.push(self.now.duration_since(due).as_millis() as i64);
            }
            let end = self.now + if slow { self.slow } else { ANSWER };
            self.jobs.insert((end, job.id), job);
        }
    }

    fn run(&mut self, span: SignedDuration) {
        let end = self.now + span;
        while self.now < end {
            self.start_jobs();
            let job_end = self.jobs.keys().next().map(|(at, _)| *at);
            let next = [job_end, self.fleet.next()].into_iter().flatten().min();
            self.now = next.unwrap_or(end).max(self.now);
            while let Some(entry) = self.jobs.first_entry().filter(|job| job.key().0 <= self.now) {
                let job = entry.remove();
                self.finish(job);
            }
        }
    }

    fn finish(&mut self, job: Job) {
        let slow = is_slow(job.node.as_str());
        let poll = job.poll.as_ref().map(|poll| {
            if slow && self.slow == TIMEOUT {
                return Err(timeout());
            }
            let took = if slow { self.slow } else { ANSWER }.unsigned_abs();
            Ok(PollResult { took, ..all_usable(poll) })
        });
        self.fleet.finish(report(job, self.now, poll, Ok(())), self.now);
    }

    /// The largest lateness since the last call, in milliseconds.
    fn latest(&mut self) -> i64 {
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable_by_key(|late| Reverse(*late));
        late.first().copied().unwrap_or_default()
    }
}

#[test]
fn silent_exporters_make_no_poll_of_another_late() {
    let mut simulation = Simulation::new(TIMEOUT, |_| None);
    simulation.run(SignedDuration::from_mins(5));
    // 2,500 silent exporters are found out at 256 slots of 3 s, once.
    let first_contact = simulation.latest();
    assert!(first_contact <= 31_000, "{first_contact} ms");
    simulation.run(SignedDuration::from_mins(20));
    let after = simulation.latest();
    assert!(after <= 1_000, "{after} ms");
    // The longest back-off is 2 minutes, and there are slots enough for it.
    let silent = simulation.polls.iter().filter(|(name, _)| is_slow(name));
    let polls = silent.map(|(_, polls)| *polls);
    assert!(polls.clone().min().unwrap() >= 12, "{:?}", (polls.clone().min(), polls.max()));
}

#[test]
fn slow_exporters_make_no_poll_of_another_late() {
    let mut simulation = Simulation::new(SignedDuration::from_millis(2900), |_| None);
    simulation.run(SignedDuration::from_mins(5));
    simulation.latest();
    simulation.run(SignedDuration::from_mins(20));
    let late = simulation.latest();
    assert!(late <= 1_000, "{late} ms");
    // Slow exporters are polled every 3 minutes all the same.
    let slow = simulation.polls.iter().filter(|(name, _)| is_slow(name));
    assert!(slow.clone().all(|(_, polls)| *polls >= 8), "{:?}", slow.map(|(_, polls)| polls).min());
}

#[test]
fn after_a_restart_silent_exporters_make_no_poll_of_another_late() {
    let start: Timestamp = START.parse().unwrap();
    let mut simulation = Simulation::new(TIMEOUT, |name| {
        let age = if is_slow(name) { 7200 } else { 60 };
        Some(Reading::new(Ratio::new(0.1).unwrap(), start - SignedDuration::from_secs(age)))
    });
    simulation.run(SignedDuration::from_mins(20));
    let late = simulation.latest();
    assert!(late <= 1_000, "{late} ms");
}
