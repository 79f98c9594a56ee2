//! The loop: takes in what the watches tell, and carries out what is due, so many at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{Event, Events, NodeFacts};
use daemon::{Condition, Shutdown};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::job::{Job, Report, Turn};
use crate::metrics::Metrics;
use crate::pods::BoundPod;
use crate::statistics::Form;
use crate::sync::Tools;

/// A clock that goes back by less is only being kept true.
const SET_BACK: SignedDuration = SignedDuration::from_secs(10);

/// What the loop takes in.
pub struct Sources {
    /// Nodes.
    pub nodes: Events<NodeFacts>,
    /// Bound pods.
    pub pods: Events<BoundPod>,
    /// The policy in force.
    pub policies: watch::Receiver<Arc<LoadPolicy>>,
}

/// What becomes ready once it was listed.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The nodes.
    pub nodes: Condition,
    /// The pods.
    pub pods: Condition,
}

/// How things stand, told each time before the loop waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Nodes known.
    pub nodes: usize,
    /// Of these, nodes whose exporter does not answer.
    pub silent: usize,
    /// Readings that are held back.
    pub held_back: usize,
    /// Whether the pods were listed.
    pub pods_listed: bool,
    /// Changes of nodes taken in.
    pub node_changes: u64,
    /// Changes of pods taken in.
    pub pod_changes: u64,
    /// Jobs in flight.
    pub in_flight: usize,
    /// When the next one is due.
    pub next: Option<Timestamp>,
}

/// The loop's state.
pub struct Annotator {
    fleet: Fleet,
    sources: Sources,
    listed: Listed,
    tools: Tools,
    /// Jobs in flight at most.
    concurrency: usize,
    jobs: JoinSet<Report>,
    progress: watch::Sender<Progress>,
    pods_listed: bool,
    node_changes: u64,
    pod_changes: u64,
    /// The time when jobs were last started.
    last: Timestamp,
}

impl Annotator {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(tools: Tools, concurrency: usize, mut sources: Sources, listed: Listed) -> Self {
        let policy = sources.policies.borrow_and_update().clone();
        Self {
            fleet: Fleet::new(tools.settings.clone(), policy),
            sources,
            listed,
            tools,
            concurrency,
            jobs: JoinSet::new(),
            progress: watch::Sender::default(),
            pods_listed: false,
            node_changes: 0,
            pod_changes: 0,
            last: Timestamp::MIN,
        }
    }

    /// How things stand, each time that the loop waits.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Goes on until the shutdown; jobs in flight are then dropped: what they would have written is
    /// found due by the next process.
    ///
    /// # Errors
    /// When a job panicked.
    pub async fn run(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        while let Some(step) = shutdown.run_until_cancelled(self.step()).await {
            step?;
        }
        Ok(())
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        self.start_jobs();
        self.tell();
        let free = self.jobs.len() < self.concurrency;
        let wake = self.fleet.next().filter(|_| free);
        let Sources { nodes, pods, policies } = &mut self.sources;
        let clock: &Clock = &self.tools.clock;
        tokio::select! {
            Some(report) = self.jobs.join_next() => {
                self.finish(report.context("a job")?);
            }
            Some(event) = nodes.next() => self.node(event),
            Some(event) = pods.next() => self.pod(event),
            Ok(()) = policies.changed() => {
                let policy = policies.borrow_and_update().clone();
                self.fleet.set_policy(policy, clock.now());
            }
            () = clock.wait(wake) => {}
        }
        Ok(())
    }

    fn start_jobs(&mut self) {
        let now = self.now();
        while self.jobs.len() < self.concurrency {
            let Some(job) = self.fleet.take_job(now) else { return };
            if let Some(due) = job.due {
                let late = Duration::try_from(now.duration_since(due)).unwrap_or_default();
                self.tools.metrics.started(late);
            }
            self.jobs.spawn(self.tools.clone().carry_out(job));
        }
    }

    /// The time; where the clock was set back, whatever waits for a time must know.
    fn now(&mut self) -> Timestamp {
        let now = self.tools.clock.now();
        if self.last.duration_since(now) > SET_BACK {
            tracing::warn!(from = %self.last, to = %now, "the clock was set back");
            self.fleet.clock_set_back(now);
        }
        self.last = now;
        now
    }

    fn tell(&self) {
        let (nodes, silent) = self.fleet.count();
        let progress = Progress {
            nodes,
            silent,
            held_back: self.fleet.held_back(),
            pods_listed: self.pods_listed,
            node_changes: self.node_changes,
            pod_changes: self.pod_changes,
            in_flight: self.jobs.len(),
            next: self.fleet.next(),
        };
        self.metrics().stand(&progress);
        self.progress.send_replace(progress);
    }

    fn metrics(&self) -> &Metrics {
        &self.tools.metrics
    }

    fn finish(&mut self, report: Report) {
        let job = report.job.clone();
        for turn in self.fleet.finish(report, self.tools.clock.now()) {
            log(&job, &turn);
        }
    }

    fn node(&mut self, event: Event<NodeFacts>) {
        let now = self.tools.clock.now();
        self.node_changes += u64::from(matches!(event, Event::Applied(_) | Event::Gone(_)));
        match event {
            Event::Listing => {}
            Event::Listed(nodes) => {
                tracing::info!(nodes = nodes.len(), "nodes listed");
                self.fleet.nodes_listed(nodes, now);
                self.listed.nodes.set_ready();
            }
            Event::Applied(node) => self.fleet.node_applied(node, now),
            Event::Gone(node) => self.fleet.node_gone(&node.name),
        }
    }

    fn pod(&mut self, event: Event<BoundPod>) {
        let now = self.tools.clock.now();
        self.pod_changes += u64::from(matches!(event, Event::Applied(_) | Event::Gone(_)));
        match event {
            Event::Listing => {}
            Event::Listed(pods) => {
                tracing::info!(pods = pods.len(), "bound pods listed");
                self.fleet.pods_listed(&pods, now);
                self.listed.pods.set_ready();
                self.pods_listed = true;
            }
            Event::Applied(pod) => self.fleet.pod_applied(&pod, now),
            Event::Gone(pod) => self.fleet.pod_gone(&pod.uid, now),
        }
    }
}

fn log(job: &Job, turn: &Turn) {
    let node = job.node.as_str();
    let endpoint = job.ask.as_ref().and_then(|ask| ask.endpoint.as_ref().ok());
    let exporter = endpoint.map_or("", |endpoint| endpoint.address());
    match turn {
        Turn::Answers => tracing::info!(node, exporter, "the exporter answers again"),
        Turn::Silent(error) => tracing::warn!(
            node, exporter, %error,
            "the exporter does not answer; what it said last will expire"
        ),
        Turn::Speaks(Form::Flat) => tracing::info!(
            node,
            exporter,
            "the exporter has no /v1/statistics: its values come without coverage and age"
        ),
        Turn::Speaks(Form::Detailed) => {
            tracing::info!(node, exporter, "the exporter tells coverage and age now");
        }
        Turn::HeldBack(metric, lack) => {
            let metric = metric.as_str();
            tracing::debug!(node, metric, %lack, "a reading is held back");
        }
        Turn::Released(metric) => {
            tracing::debug!(node, metric = metric.as_str(), "the reading is written again");
        }
        Turn::Written => tracing::info!(node, "the node can be patched again"),
        Turn::Unwritten(error) => tracing::warn!(node, %error, "the node cannot be patched"),
    }
}
