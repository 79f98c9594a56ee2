//! The drawing in [`super::super`] holds for any sequence of events: a node has at most one job, and is polled in the
//! end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// One event, or a step of a job.
#[derive(Debug, Clone, Copy)]
enum Step {
    NodeApplied {
        node: u8,
        uid: u8,
    },
    NodeGone {
        node: u8,
    },
    PodApplied {
        node: u8,
        units: u32,
    },
    PodGone {
        node: u8,
    },
    TakeJob,
    Finish {
        answers: bool,
        writes: bool,
    },
    SetLeading(bool),
    SetPolicy,
    /// Time passes.
    Pass {
        seconds: i64,
    },
    /// The clock is set back.
    SetBack {
        seconds: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_u8, 0..2_u8).prop_map(|(node, uid)| Step::NodeApplied { node, uid }),
        1 => (0..3_u8).prop_map(|node| Step::NodeGone { node }),
        2 => (0..3_u8, 1..4_u32).prop_map(|(node, units)| Step::PodApplied { node, units }),
        1 => (0..3_u8).prop_map(|node| Step::PodGone { node }),
        8 => Just(Step::TakeJob),
        6 => (any::<bool>(), any::<bool>())
            .prop_map(|(answers, writes)| Step::Finish { answers, writes }),
        1 => any::<bool>().prop_map(Step::SetLeading),
        1 => Just(Step::SetPolicy),
        6 => (1..100_i64).prop_map(|seconds| Step::Pass { seconds }),
        1 => (1..10_000_i64).prop_map(|seconds| Step::SetBack { seconds }),
    ]
}

/// A fleet, the jobs that it has started, and the nodes that it should have.
struct Run {
    fleet: Fleet,
    second: i64,
    jobs: Vec<Job>,
    /// Jobs in flight whose node was deleted or replaced.
    stale: BTreeSet<u64>,
    /// The UID of each node.
    nodes: BTreeMap<String, String>,
}

impl Run {
    fn new(burst_interval: Option<i64>) -> Self {
        let settings = Settings {
            burst_interval: burst_interval.map(SignedDuration::from_secs),
            pod_use_period: Some(SignedDuration::from_mins(1)),
            ..settings()
        };
        let mut fleet = fleet_with(settings, POLICY);
        fleet.pods_listed(&[], at(0));
        Self { fleet, second: 0, jobs: Vec::new(), stale: BTreeSet::new(), nodes: BTreeMap::new() }
    }

    fn make(&mut self, step: Step) {
        let now = at(self.second);
        match step {
            Step::NodeApplied { node, uid } => {
                let name = format!("n{node}");
                let facts = NodeFacts { uid: format!("{name}-{uid}"), ..with_gpu(&name) };
                if self.nodes.insert(name.clone(), facts.uid.clone()) != Some(facts.uid.clone()) {
                    self.end_jobs_of(&name);
                }
                self.fleet.node_applied(facts, now);
            }
            Step::NodeGone { node } => {
                let name = format!("n{node}");
                self.nodes.remove(&name);
                self.end_jobs_of(&name);
                self.fleet.node_gone(&name.as_str().into(), now);
            }
            Step::PodApplied { node, units } => {
                let name = format!("n{node}");
                let pod = BoundPod { node: name.as_str().into(), ..pod(&name, units) };
                self.fleet.pod_applied(&pod, now);
            }
            Step::PodGone { node } => {
                self.fleet.pod_gone(&format!("n{node}").as_str().into(), now);
            }
            Step::TakeJob => self.jobs.extend(self.fleet.take_job(now)),
            Step::Finish { answers, writes } => {
                if !self.jobs.is_empty() {
                    let job = self.jobs.remove(0);
                    self.finish(job, answers, writes);
                }
            }
            Step::SetLeading(leading) => self.fleet.set_leading(leading, now),
            Step::SetPolicy => {
                let policy = POLICY.replace("mem", if self.second % 2 == 0 { "mem" } else { "io" });
                self.fleet.set_policy(Arc::new(LoadPolicy::from_yaml(&policy).unwrap()), now);
            }
            Step::Pass { seconds } => self.second += seconds,
            Step::SetBack { seconds } => {
                self.second -= seconds;
                self.fleet.clock_set_back(at(self.second));
            }
        }
    }

    /// The jobs of the node are of no use any more.
    fn end_jobs_of(&mut self, name: &str) {
        let jobs = self.jobs.iter().filter(|job| job.node.as_str() == name);
        self.stale.extend(jobs.map(|job| job.id));
    }

    fn finish(&mut self, job: Job, answers: bool, writes: bool) {
        let poll = job
            .poll
            .as_ref()
            .map(|poll| if answers { Ok(all_usable(poll)) } else { Err(timeout()) });
        let mut patch = Ok(());
        if !writes {
            patch = Err(CallError::Unknown("none within 10s".to_owned()));
        }
        let now = at(self.second);
        self.fleet.finish(report(job, now, poll, patch), now);
    }

    /// Each job holds a slot. A node runs the job that it was given, until that ends or the node is deleted or
    /// replaced.
    fn check(&self) {
        let status = self.fleet.status();
        assert_eq!((status.in_flight, status.nodes), (self.jobs.len(), self.nodes.len()));
        let mut running = BTreeSet::new();
        for (name, node) in &self.fleet.nodes {
            if let Stage::Running { job, .. } = node.stage {
                running.insert((name.to_string(), job));
            }
        }
        let current = self.jobs.iter().filter(|job| !self.stale.contains(&job.id));
        let given: BTreeSet<_> = current.map(|job| (job.node.to_string(), job.id)).collect();
        assert_eq!(running, given);
    }

    /// Ends all jobs, and lets an hour pass in which every exporter answers. Returns the nodes that were polled.
    fn settle(&mut self) -> BTreeSet<String> {
        for job in std::mem::take(&mut self.jobs) {
            self.finish(job, true, true);
        }
        let end = self.second + 3600;
        let mut polled = BTreeSet::new();
        while self.second < end {
            while let Some(job) = self.fleet.take_job(at(self.second)) {
                if job.poll.is_some() {
                    polled.insert(job.node.to_string());
                }
                self.finish(job, true, true);
            }
            self.second += 5;
        }
        polled
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_node_waits_or_has_one_job_and_is_polled_in_the_end(
        has_bursts: bool,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut run = Run::new(has_bursts.then_some(45));
        for step in steps {
            run.make(step);
            run.check();
        }
        let polled = run.settle();
        let nodes: BTreeSet<String> = run.nodes.keys().cloned().collect();
        prop_assert_eq!(polled, nodes);
        prop_assert_eq!(run.fleet.status().in_flight, 0);
    }
}
