//! How late nodes are polled when the exporters of many others are silent: the real fleet in simulated time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use annotator::exporter::cards::CardMeasurements;
use annotator::exporter::error::PollError;
use annotator::fleet::job::{Job, PollResult, Report};
use annotator::fleet::{Fleet, Settings};
use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;

use crate::world::{POLICY, START};

const CONCURRENCY: usize = 32;

/// How long an answer and its patch take.
const ANSWER: SignedDuration = SignedDuration::from_millis(20);

/// How long a silent exporter's poll takes: `--poll-timeout`.
const TIMEOUT: SignedDuration = SignedDuration::from_secs(3);

/// 5,000 nodes, a third of them silent.
struct Simulation {
    fleet: Fleet,
    now: Timestamp,
    /// Jobs in flight by the time of their end.
    jobs: BTreeMap<(Timestamp, u64), Job>,
    /// Lateness of each started poll of an exporter that answers, in milliseconds.
    late: Vec<i64>,
    polls: HashMap<String, usize>,
}

fn is_silent(name: &str) -> bool {
    name.trim_start_matches("node-").parse::<usize>().unwrap() % 3 == 0
}

fn node(index: usize, annotations: &[(&str, String)]) -> NodeFacts {
    NodeFacts {
        name: format!("node-{index}").into(),
        created_at: None,
        internal_ip: Some("10.0.0.1".parse().unwrap()),
        exporter: None,
        cards: None,
        ready: Some(true),
        annotations: annotations.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
    }
}

impl Simulation {
    fn new(annotations: &[(&str, String)]) -> Self {
        let now: Timestamp = START.parse().unwrap();
        let (names, codec) = (Names::default(), ReadingCodec::default());
        let settings = Settings { names, codec, exporter_port: 19101, concurrency: CONCURRENCY };
        let mut fleet = Fleet::new(settings, Arc::new(LoadPolicy::from_yaml(POLICY).unwrap()));
        fleet.nodes_listed((0..5000).map(|index| node(index, annotations)).collect(), now);
        let (jobs, late, polls) = Default::default();
        Self { fleet, now, jobs, late, polls }
    }

    fn start_jobs(&mut self) {
        while let Some(job) = self.fleet.take_job(self.now) {
            *self.polls.entry(job.node.to_string()).or_default() += 1;
            let silent = is_silent(job.node.as_str());
            if !silent {
                let due = job.due.unwrap_or(START.parse().unwrap());
                self.late.push(self.now.duration_since(due).as_millis() as i64);
            }
            let end = self.now + if silent { TIMEOUT } else { ANSWER };
            self.jobs.insert((end, job.id), job);
        }
    }

    fn run(&mut self, span: SignedDuration) {
        let end = self.now + span;
        while self.now < end {
            self.start_jobs();
            let next = self.jobs.keys().next().map(|(at, _)| *at);
            let next = next.into_iter().chain(self.fleet.next()).min().unwrap_or(end);
            self.now = next.max(self.now);
            while let Some(entry) = self.jobs.first_entry().filter(|job| job.key().0 <= self.now) {
                let job = entry.remove();
                self.finish(job);
            }
        }
    }

    fn finish(&mut self, job: Job) {
        let silent = is_silent(job.node.as_str());
        let poll = job.poll.clone().unwrap();
        let poll = match silent {
            true => Err(PollError::Timeout(Duration::from_secs(3))),
            false => Ok(PollResult {
                format: poll.format,
                usable: poll.wanted,
                held_back: Vec::new(),
                cards: CardMeasurements::default(),
            }),
        };
        let patch = (!silent).then_some(Ok(()));
        self.fleet
            .finish(Report { job, at: self.now, poll: Some(poll), share: None, patch }, self.now);
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
    let mut simulation = Simulation::new(&[]);
    simulation.run(SignedDuration::from_mins(5));
    let first_contact = simulation.latest();
    simulation.run(SignedDuration::from_mins(20));
    let after = simulation.latest();
    assert!(after <= 1_000 && first_contact <= 30_000, "{first_contact} ms, then {after} ms");
}
