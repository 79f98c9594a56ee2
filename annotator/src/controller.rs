//! The main loop: applies changes of nodes, pods and the policy, and starts the jobs that are due.
//!
//! Invariant: a replica that does not lead starts no job, but applies the same watch events as the leader.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{CallError, Event, Events, LabelSelector, Leadership, NodeFacts};
use daemon::{Condition, Shutdown};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::units::NodeName;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bands::{BandChange, NodeBands};
use crate::clock::Clock;
use crate::exporter::statistics::Format;
use crate::fleet::job::{Job, Report};
use crate::fleet::lanes::Lane;
use crate::fleet::transition::Transition;
use crate::fleet::{Fleet, Status};
use crate::metrics::Metrics;
use crate::node_events::{NodeEvents, NodeNews};
use crate::pod_use::Observer;
use crate::pods::BoundPod;
use crate::readings_channel::SharedReadings;
use crate::runner::JobRunner;
use crate::taints::{HotNodes, TaintChange, TaintSettings};

/// A clock that goes back by less than this is being adjusted, not set.
const MAX_ADJUSTMENT: SignedDuration = SignedDuration::from_secs(10);

/// The inputs of the loop.
pub(crate) struct Sources {
    /// All nodes.
    pub nodes: Events<NodeFacts>,
    /// The nodes that are polled and written. The others only lose a taint of ours.
    pub selector: LabelSelector,
    /// Bound pods.
    pub pods: Events<BoundPod>,
    /// The policy in force.
    pub policies: watch::Receiver<Arc<LoadPolicy>>,
    /// Learns from the use of pods; `None` if that is disabled.
    pub observer: Option<Observer>,
    /// Receives what polls give.
    pub readings: SharedReadings,
    /// Receives what is worth an event on a Node.
    pub node_events: NodeEvents,
    /// Whether exporters are polled. A source in place of exporters logs by itself which metrics it lacks.
    pub polls_exporters: bool,
    /// The hint in the log if no node has a metric of the policy.
    pub missing_hint: &'static str,
}

/// The readiness conditions that the loop sets.
#[derive(Debug, Clone)]
pub(crate) struct ListedConditions {
    /// All nodes were listed once.
    pub nodes: Condition,
    /// All pods were listed once.
    pub pods: Condition,
}

/// The main loop and its state.
pub(crate) struct Controller {
    fleet: Fleet,
    sources: Sources,
    listed: ListedConditions,
    runner: JobRunner,
    leadership: Leadership,
    /// Whether this replica led at the last check.
    leads: bool,
    jobs: JoinSet<Report>,
    hot_nodes: HotNodes,
    taint_writes: JoinSet<(TaintChange, Option<Result<(), CallError>>)>,
    bands: NodeBands,
    band_writes: JoinSet<(BandChange, Option<Result<(), CallError>>)>,
    status: watch::Sender<Status>,
    /// The time of the last start of jobs.
    last_start: Timestamp,
}

impl Controller {
    /// A controller without nodes.
    pub(crate) fn new(
        runner: JobRunner,
        mut sources: Sources,
        taint: Option<TaintSettings>,
        node_bands: bool,
        listed: ListedConditions,
    ) -> Self {
        let policy = sources.policies.borrow_and_update().clone();
        let hot_nodes = HotNodes::new(taint, Arc::clone(&policy));
        log_warnings(&policy, &hot_nodes, sources.polls_exporters, &runner.metrics);
        let readings = sources.readings.clone();
        let bands =
            NodeBands::new(node_bands, &runner.settings.names, Arc::clone(&policy), readings);
        let mut fleet = Fleet::new(runner.settings.clone(), policy, sources.readings.clone());
        fleet.set_leading(false, Timestamp::MIN);
        Self {
            fleet,
            sources,
            listed,
            leadership: runner.leadership.clone(),
            leads: false,
            runner,
            jobs: JoinSet::new(),
            hot_nodes,
            taint_writes: JoinSet::new(),
            bands,
            band_writes: JoinSet::new(),
            status: watch::Sender::default(),
            last_start: Timestamp::MIN,
        }
    }

    /// The fleet's status, updated each time before the loop waits.
    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Runs until the shutdown. Jobs in flight are then dropped; the next process finds their nodes due.
    ///
    /// # Errors
    /// When a job panicked.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        while let Some(step) = shutdown.run_until_cancelled(self.step()).await {
            step?;
        }
        Ok(())
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        self.follow_leadership();
        if self.leads {
            self.start_jobs();
            self.start_taint_write();
            self.start_band_writes();
        }
        self.publish_status();
        let next = self.next();
        let Sources { nodes, pods, policies, .. } = &mut self.sources;
        let clock: &Clock = &self.runner.clock;
        tokio::select! {
            Some(report) = self.jobs.join_next() => self.finish(report.context("a job")?),
            Some(write) = self.taint_writes.join_next() => {
                let (change, outcome) = write.context("a taint's write")?;
                self.finish_taint_write(&change, outcome.as_ref());
            }
            Some(write) = self.band_writes.join_next() => {
                let (change, outcome) = write.context("a write of bands")?;
                if let Some(Err(error)) = &outcome
                    && !matches!(error, CallError::Conflict(_) | CallError::NotFound(_))
                {
                    let node = change.node.as_str();
                    tracing::warn!(node, %error, "the node's bands cannot be written");
                }
                self.bands.finish(change, outcome.as_ref(), clock.now());
            }
            Some(event) = nodes.next() => self.apply_nodes(event),
            Some(event) = pods.next() => self.apply_pods(event),
            Ok(()) = policies.changed() => {
                let policy = policies.borrow_and_update().clone();
                self.runner.metrics.clear_metrics_of_policy();
                self.hot_nodes.set_policy(Arc::clone(&policy));
                self.bands.set_policy(Arc::clone(&policy));
                let polls_exporters = self.sources.polls_exporters;
                log_warnings(&policy, &self.hot_nodes, polls_exporters, &self.runner.metrics);
                self.fleet.set_policy(policy, clock.now());
            }
            () = clock.wait(next) => {}
            () = self.leadership.until_not(self.leads) => {}
        }
        Ok(())
    }

    /// When a job or another write is next due; it may be past.
    fn next(&self) -> Option<Timestamp> {
        if !self.leads {
            return None;
        }
        [self.fleet.next(), self.hot_nodes.next(), self.bands.next()].into_iter().flatten().min()
    }

    fn follow_leadership(&mut self) {
        let leads = self.leadership.is_held();
        if leads != self.leads {
            let now = self.runner.clock.now();
            self.leads = leads;
            self.runner.metrics.set_leading(leads);
            self.fleet.set_leading(leads, now);
            if leads {
                self.bands.begin_anew();
                self.observe(|observer| observer.begin_to_lead(now));
            }
        }
    }

    fn start_jobs(&mut self) {
        let now = self.check_clock();
        while let Some(job) = self.fleet.take_job(now) {
            if let Some(due) = job.due
                && job.lane != Lane::Slow
            {
                let late = Duration::try_from(now.duration_since(due)).unwrap_or_default();
                self.runner.metrics.count_start(late);
            }
            self.jobs.spawn(self.runner.clone().run(job));
        }
    }

    fn start_taint_write(&mut self) {
        if let Some(change) = self.hot_nodes.take(self.runner.clock.now()) {
            self.taint_writes.spawn(self.runner.clone().write_taint(change));
        }
    }

    fn start_band_writes(&mut self) {
        while let Some(change) = self.bands.take(self.runner.clock.now()) {
            self.band_writes.spawn(self.runner.clone().write_bands(change));
        }
    }

    fn finish_taint_write(
        &mut self,
        change: &TaintChange,
        outcome: Option<&Result<(), CallError>>,
    ) {
        let node = change.node.as_str();
        match (outcome, &change.wanted) {
            (Some(Ok(())), Some(taint)) => {
                tracing::info!(
                    node,
                    taint = taint.key,
                    "the node is over a limit: it carries a taint"
                );
                self.tell(&change.node, NodeNews::Tainted(taint.key.clone()));
            }
            (Some(Ok(())), None) => {
                let why = self.hot_nodes.why_cleared(&change.node, self.runner.clock.now());
                tracing::info!(node, ?why, "the node's taint is cleared");
                self.tell(&change.node, NodeNews::TaintCleared(why));
            }
            (Some(Err(CallError::Conflict(_) | CallError::NotFound(_))) | None, _) => {}
            (Some(Err(error)), _) => tracing::warn!(node, %error, "the taint cannot be written"),
        }
        self.hot_nodes.finish(change, outcome, self.runner.clock.now());
    }

    /// The current time. If the clock was set back, the fleet drops its waits, whose ends may be far ahead now.
    fn check_clock(&mut self) -> Timestamp {
        let now = self.runner.clock.now();
        if self.last_start.duration_since(now) > MAX_ADJUSTMENT {
            tracing::warn!(from = %self.last_start, to = %now, "the clock was set back");
            self.fleet.clock_set_back(now);
            self.hot_nodes.check_all_again();
            self.bands.begin_anew();
        }
        self.last_start = now;
        now
    }

    fn publish_status(&self) {
        let mut status = self.fleet.status();
        status.next = self.next();
        status.in_flight += self.taint_writes.len() + self.band_writes.len();
        self.runner.metrics.set_status(&status);
        self.runner.metrics.set_tainted_nodes(self.hot_nodes.tainted_nodes());
        self.status.send_replace(status);
    }

    fn finish(&mut self, report: Report) {
        let job = report.job.clone();
        let now = self.runner.clock.now();
        if let (Some(Ok(pods)), Some(observer)) = (&report.pods, &mut self.sources.observer) {
            self.runner.metrics.count_observed_pods(observer.record_answer(&job.node, pods, now));
        }
        for transition in self.fleet.finish(report, now) {
            log(&job, &transition);
            match transition {
                Transition::ExporterSilentForLong { lasts, error, moved_from } => {
                    self.tell(&job.node, NodeNews::ExporterSilent { lasts, error, moved_from });
                }
                Transition::ExporterAnswers { after: Some(after) } => {
                    self.tell(&job.node, NodeNews::ExporterAnswers { after });
                }
                _ => {}
            }
        }
        if let Some(round) = self.fleet.take_ended_round() {
            self.runner.metrics.count_round(Duration::try_from(round).unwrap_or_default());
        }
        for metric in self.fleet.report_missing(now) {
            tracing::warn!(
                metric = metric.as_str(),
                hint = self.sources.missing_hint,
                "no node has a value of this metric of the policy"
            );
        }
    }

    fn apply_nodes(&mut self, event: Event<NodeFacts>) {
        let now = self.runner.clock.now();
        match event {
            Event::Listing => {}
            Event::Listed(mut nodes) => {
                let selector = &self.sources.selector;
                self.hot_nodes.replace(&nodes, |node| selector.matches(&node.labels), now);
                self.bands.replace(&nodes, |node| selector.matches(&node.labels));
                nodes.retain(|node| selector.matches(&node.labels));
                tracing::info!(nodes = nodes.len(), "nodes listed");
                self.observe(|observer| observer.nodes_listed(&nodes));
                self.fleet.nodes_listed(nodes, now);
                self.listed.nodes.set_ready();
            }
            Event::Applied(node) => {
                let is_selected = self.sources.selector.matches(&node.labels);
                self.hot_nodes.apply(&node, is_selected, now);
                self.bands.apply(&node, is_selected);
                if is_selected {
                    self.observe(|observer| observer.node_applied(&node));
                    self.fleet.node_applied(node, now);
                } else {
                    self.remove_node(&node.name, now);
                }
            }
            Event::Gone(node) => {
                self.hot_nodes.remove(&node.name);
                self.bands.remove(&node.name);
                self.remove_node(&node.name, now);
            }
        }
    }

    /// A node was deleted, or is not selected any more.
    fn remove_node(&mut self, node: &NodeName, now: Timestamp) {
        if self.fleet.has(node) {
            self.observe(|observer| observer.node_gone(node));
            self.fleet.node_gone(node, now);
        }
    }

    fn apply_pods(&mut self, event: Event<BoundPod>) {
        let now = self.runner.clock.now();
        match event {
            Event::Listing => {}
            Event::Listed(pods) => {
                tracing::info!(pods = pods.len(), "bound pods listed");
                self.observe(|observer| observer.pods_listed(&pods));
                self.fleet.pods_listed(&pods, now);
                self.listed.pods.set_ready();
            }
            Event::Applied(pod) => {
                self.observe(|observer| observer.pod_applied(&pod));
                self.fleet.pod_applied(&pod, now);
            }
            Event::Gone(pod) => {
                self.observe(|observer| observer.pod_gone(&pod.uid));
                self.fleet.pod_gone(&pod.uid, now);
            }
        }
    }

    fn tell(&self, node: &NodeName, news: NodeNews) {
        self.sources.node_events.tell(node, news);
    }

    fn observe(&mut self, change: impl FnOnce(&mut Observer)) {
        if let Some(observer) = &mut self.sources.observer {
            change(observer);
        }
    }
}

/// Logs and counts the warnings about a policy.
fn log_warnings(policy: &LoadPolicy, taints: &HotNodes, polls_exporters: bool, metrics: &Metrics) {
    let of_policy =
        if polls_exporters { policy.warnings() } else { policy.warnings_of_any_source() };
    let mut warnings: Vec<String> = of_policy.iter().map(ToString::to_string).collect();
    warnings.extend(taints.warning().map(str::to_owned));
    for warning in &warnings {
        tracing::warn!(warning, "the policy in force has an effect that is probably not intended");
    }
    metrics.set_policy_warnings(warnings.len());
}

fn log(job: &Job, transition: &Transition) {
    let node = job.node.as_str();
    let endpoint = job.poll.as_ref().and_then(|poll| poll.endpoint.as_ref().ok());
    let exporter = endpoint.map_or("", |endpoint| endpoint.address());
    match transition {
        Transition::ExporterAnswers { .. } => {
            tracing::info!(node, exporter, "the exporter answers again");
        }
        // The Node gets an event, and the log has the silence since its start.
        Transition::ExporterSilentForLong { .. } => {}
        Transition::ExporterSilent(error) => tracing::warn!(
            node, exporter, %error,
            "the exporter does not answer; the node's readings will become stale"
        ),
        Transition::FormatChanged(Format::Flat) => tracing::info!(
            node,
            exporter,
            "the exporter has no /v1/statistics: its values come without coverage and age"
        ),
        Transition::FormatChanged(Format::Detailed) => {
            tracing::info!(node, exporter, "the exporter's values come with coverage and age now");
        }
        Transition::HeldBack(metric, reason) => {
            tracing::debug!(node, metric = metric.as_str(), %reason, "a value is held back");
        }
        Transition::Released(metric) => {
            tracing::debug!(node, metric = metric.as_str(), "the value is not held back any more");
        }
        Transition::PatchSucceeds => tracing::info!(node, "patches of the node succeed again"),
        Transition::PatchFails(error) => tracing::warn!(node, %error, "the node cannot be patched"),
    }
}
