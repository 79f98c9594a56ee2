//! All nodes: which job comes next, and the effects of finished jobs. Pure decisions: no I/O, and `now` is a parameter.
//!
//! A node goes through its jobs like this ([`node::Stage`]):
//!
//! ```text
//!                      ┌─────────────── finish ───────────────┐
//!                      ▼                                      │
//!   node_applied ──> Waiting ── take_job: due, free slot ──> Running
//!                    │ │  ▲                                   │
//!                    │ └──┘ any other event:                  │
//!                    │      its next jobs are timed anew      │
//!                    └────── node_gone, or another UID ───────┴──> removed; the report of its job is dropped
//! ```
//!
//! A waiting node has a place in the [`lanes`] for its next poll and one for its next write. Each event changes the
//! nodes that it is about, and then their places:
//!
//! | event | changes |
//! |---|---|
//! | `nodes_listed`, `node_applied`, `node_gone` | facts, and readings that are on the node |
//! | `pods_listed`, `pod_applied`, `pod_gone` | the share of the node's GPUs; the bindings that make its hot value |
//! | `set_policy`, `set_leading`, `clock_set_back` | all nodes |
//! | a burst, in `take_job` | a write is due on each waiting node with a reason; on a running one at `finish` |
//! | `finish` | the state of the exporter ([`exporter`]) and of the node's writes ([`writes`]) |
//!
//! Invariants: a node has at most one job in flight; jobs for silent and slow exporters use no slots of others
//! ([`lanes`]); the result of a job for a node that was deleted, or replaced by another of the same name, is dropped.

mod exporter;
pub(crate) mod job;
pub(crate) mod lanes;
mod missing;
mod node;
mod pods;
mod retry;
mod rounds;
pub mod schedule;
mod status;
pub(crate) mod transition;
pub(crate) mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::publish::WriteRules;
use placement::reading::ReadingCodec;
use placement::units::{MetricName, NodeName, PodUid};

use self::exporter::ExporterState;
use self::job::{Job, Report};
use self::lanes::{Lanes, Place};
use self::missing::MissingMetrics;
use self::node::{NodeState, Stage};
use self::pods::PodsSchedule;
use self::rounds::Rounds;
use self::schedule::Schedule;
use self::status::Counts;
pub use self::status::Status;
use self::transition::Transition;
use self::writes::times::WriteTimes;
use self::writes::{NodeWrites, PlanInputs};
use crate::exporter::endpoint::endpoint;
use crate::exporter::statistics::HoldReason;
use crate::pods::BoundPod;
use crate::pods::ledgers::Ledgers;
use crate::pods::recent_bindings::RecentBindings;
use crate::readings_channel::SharedReadings;

/// The settings, which do not change while the program runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Annotation keys and resource names.
    pub(crate) names: Names,
    /// The text form of readings in annotations.
    pub(crate) codec: ReadingCodec,
    /// The port of an exporter, unless the node's annotation names another one.
    pub(crate) exporter_port: u16,
    /// The largest number of polls in flight to prompt exporters ([`lanes::Lane`]), and of patches in flight.
    pub(crate) concurrency: usize,
    /// The period of polls of pods' use; `None`: never.
    pub(crate) pod_use_period: Option<SignedDuration>,
    /// How far a value may move without a write for that reason: a fraction, 0 to 1.
    pub(crate) dead_band: f64,
    /// The time between two bursts of writes; `None` if each poll writes its own readings.
    pub(crate) burst_interval: Option<SignedDuration>,
    /// How far below its limits a node must be before its taint is cleared; `None` without taints.
    pub(crate) taint_margin: Option<f64>,
}

impl Settings {
    fn write_rules(&self, policy: &LoadPolicy) -> WriteRules {
        WriteRules::new(policy, self.dead_band, self.taint_margin)
    }
}

/// The state of all nodes.
#[derive(Debug)]
pub(crate) struct Fleet {
    settings: Settings,
    policy: Arc<LoadPolicy>,
    rules: WriteRules,
    times: WriteTimes,
    nodes: HashMap<NodeName, NodeState>,
    /// The queues of waiting nodes, and the slots of jobs in flight.
    lanes: Lanes,
    ledgers: Ledgers,
    recent_bindings: RecentBindings,
    pods_listed: bool,
    /// Whether this replica leads, so that all writes on nodes are its own.
    leading: bool,
    node_changes: u64,
    pod_changes: u64,
    writes_saved: u64,
    last_job: u64,
    /// The sum over all nodes.
    counts: Counts,
    missing: MissingMetrics,
    rounds: Rounds,
    /// What the extender is told.
    readings: SharedReadings,
}

impl Fleet {
    /// A fleet without nodes. What polls give goes to `readings`.
    pub(crate) fn new(
        settings: Settings,
        policy: Arc<LoadPolicy>,
        readings: SharedReadings,
    ) -> Self {
        Self {
            rules: settings.write_rules(&policy),
            times: WriteTimes::new(settings.burst_interval),
            nodes: HashMap::new(),
            lanes: Lanes::new(settings.concurrency),
            ledgers: Ledgers::default(),
            recent_bindings: RecentBindings::default(),
            pods_listed: false,
            leading: true,
            node_changes: 0,
            pod_changes: 0,
            writes_saved: 0,
            last_job: 0,
            counts: Counts::default(),
            missing: MissingMetrics::new(&policy),
            rounds: Rounds::default(),
            settings,
            policy,
            readings,
        }
    }

    /// Numbers about the fleet.
    pub(crate) fn status(&self) -> Status {
        if self.leading {
            return self.status_of(&self.counts, &self.missing);
        }
        // Only a leader polls, so what this replica knows from polls is old.
        self.status_of(&Counts::default(), &MissingMetrics::new(&self.policy))
    }

    fn status_of(&self, counts: &Counts, missing: &MissingMetrics) -> Status {
        Status {
            nodes: self.nodes.len(),
            silent: counts.silent,
            answered: counts.answered,
            held_back: self.held_back(counts),
            missing: missing.nodes(),
            pods_listed: self.pods_listed,
            node_changes: self.node_changes,
            pod_changes: self.pod_changes,
            writes_saved: self.writes_saved,
            in_flight: self.lanes.in_flight(),
            next: self.next(),
        }
    }

    /// The number of nodes whose value is held back, for each metric of the policy and each reason.
    fn held_back(&self, counts: &Counts) -> BTreeMap<(MetricName, &'static str), usize> {
        let mut all = BTreeMap::new();
        for rule in &self.policy.sync {
            for reason in HoldReason::LABELS {
                let value = (rule.metric.clone(), reason);
                let nodes = counts.held_back.get(&value).copied().unwrap_or_default();
                all.insert(value, nodes);
            }
        }
        all
    }

    /// Another policy is in force.
    pub(crate) fn set_policy(&mut self, policy: Arc<LoadPolicy>, now: Timestamp) {
        self.missing = MissingMetrics::new(&policy);
        self.counts = Counts::default();
        self.rules = self.settings.write_rules(&policy);
        for (name, node) in &mut self.nodes {
            node.exporter.set_policy(name, &policy);
            node.set_rules(&self.rules);
            self.counts += node.exporter.counts();
            self.missing.update(&BTreeSet::new(), node.exporter.missing(), now);
        }
        self.policy = policy;
        self.requeue_all(now);
    }

    /// This replica begins or ceases to lead. A new leader polls the nodes at their own times, as after a restart.
    pub(crate) fn set_leading(&mut self, leading: bool, now: Timestamp) {
        self.leading = leading;
        if !leading {
            return;
        }
        self.counts = Counts::default();
        self.missing = MissingMetrics::new(&self.policy);
        for node in self.nodes.values_mut() {
            node.exporter.start_leading(now);
            self.counts += node.exporter.counts();
        }
        self.requeue_all(now);
    }

    /// The clock was set back to `now`.
    pub(crate) fn clock_set_back(&mut self, now: Timestamp) {
        self.nodes.values_mut().for_each(|node| node.drop_waits(now));
        self.readings.lock().clear();
        self.times.start(now);
        self.requeue_all(now);
    }

    /// Applies a complete list of nodes.
    pub(crate) fn nodes_listed(&mut self, nodes: Vec<NodeFacts>, now: Timestamp) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        let gone: Vec<NodeName> =
            self.nodes.keys().filter(|name| !present.contains(name)).cloned().collect();
        for name in gone {
            self.remove_node(&name, now);
        }
        for facts in nodes {
            self.apply_node(facts, now);
        }
    }

    /// A node is new or has changed.
    pub(crate) fn node_applied(&mut self, facts: NodeFacts, now: Timestamp) {
        self.node_changes += 1;
        self.apply_node(facts, now);
    }

    /// Whether the node is known.
    pub(crate) fn has(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// A node was deleted, or is not selected any more.
    pub(crate) fn node_gone(&mut self, name: &NodeName, now: Timestamp) {
        self.node_changes += 1;
        self.remove_node(name, now);
    }

    fn apply_node(&mut self, facts: NodeFacts, now: Timestamp) {
        self.times.start(now);
        let name = facts.name.clone();
        if self.nodes.get(&name).is_some_and(|node| node.uid != facts.uid) {
            // Another node has the same name now.
            self.remove_node(&name, now);
        }
        let is_new = !self.nodes.contains_key(&name);
        if is_new {
            let node = self.new_node(&facts);
            self.counts += node.exporter.counts();
            self.nodes.insert(name.clone(), node);
        }
        if let Some(node) = self.nodes.get_mut(&name) {
            let Settings { names, exporter_port, .. } = &self.settings;
            if !self.leading {
                node.writes.share.observe(facts.share.as_deref());
            }
            let endpoint = endpoint(&facts, *exporter_port, &names.exporter());
            node.set_facts(&facts, endpoint, &self.rules);
            node.observe_readings(&facts, is_new, now);
        }
        match facts.gpus {
            Some(Ok(gpus)) => self.ledgers.set_gpus(&name, gpus),
            // The last good report stays in force.
            Some(Err(_)) => return self.requeue(&name, now),
            None => self.ledgers.remove_gpus(&name),
        }
        self.update_share(&name, now);
    }

    fn new_node(&self, facts: &NodeFacts) -> NodeState {
        let Settings { names, exporter_port, pod_use_period, .. } = &self.settings;
        let exporter = ExporterState::new(
            Schedule::new(&facts.name, &self.policy),
            PodsSchedule::new(&facts.name, *pod_use_period),
            endpoint(facts, *exporter_port, &names.exporter()),
        );
        let writes =
            NodeWrites::new(Arc::clone(self.rules.of(&facts.labels)), facts.share.as_deref());
        NodeState::new(facts, exporter, writes)
    }

    fn remove_node(&mut self, name: &NodeName, now: Timestamp) {
        if let Some(node) = self.nodes.remove(name) {
            self.counts -= node.exporter.counts();
            self.missing.update(node.exporter.missing(), &BTreeSet::new(), now);
            if let Stage::Waiting(places) = node.stage {
                self.lanes.remove(&places, name);
            }
        }
        self.readings.lock().remove(name);
        self.rounds.drop_node(name);
        self.ledgers.remove_gpus(name);
        self.recent_bindings.forget(name);
    }

    /// Applies a complete list of bound pods.
    pub(crate) fn pods_listed(&mut self, pods: &[BoundPod], now: Timestamp) {
        self.pods_listed = true;
        for pod in pods {
            self.record_binding(pod, now);
        }
        for name in self.ledgers.replace(pods) {
            self.update_share(&name, now);
        }
    }

    /// A bound pod is new or has changed.
    pub(crate) fn pod_applied(&mut self, pod: &BoundPod, now: Timestamp) {
        self.pod_changes += 1;
        self.record_binding(pod, now);
        if let Some(name) = self.ledgers.apply(pod) {
            self.update_share(&name, now);
        }
    }

    /// A pod was deleted.
    pub(crate) fn pod_gone(&mut self, uid: &PodUid, now: Timestamp) {
        self.pod_changes += 1;
        if let Some(name) = self.ledgers.remove(uid) {
            self.update_share(&name, now);
        }
    }

    fn record_binding(&mut self, pod: &BoundPod, now: Timestamp) {
        self.recent_bindings.record(pod, self.policy.hot_horizon(), now);
    }

    fn update_share(&mut self, name: &NodeName, now: Timestamp) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.writes.share.set_target(self.ledgers.shares(name), self.times.next_burst(), now);
        }
        self.requeue(name, now);
    }

    fn requeue_all(&mut self, now: Timestamp) {
        for name in self.names() {
            self.requeue(&name, now);
        }
    }

    fn names(&self) -> Vec<NodeName> {
        self.nodes.keys().cloned().collect()
    }

    /// Puts a waiting node into the lanes at the times of its next jobs.
    fn requeue(&mut self, name: &NodeName, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if let Stage::Waiting(places) = &node.stage {
            self.lanes.remove(places, name);
            let places = node.next_jobs(now);
            self.lanes.insert(&places, name);
            node.stage = Stage::Waiting(places);
        }
    }

    /// When the next burst, or the next job with a free slot, is due; it may be past.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let burst = if self.nodes.is_empty() { None } else { self.times.next_burst() };
        self.lanes.next().into_iter().chain(burst).min()
    }

    /// Makes writes due on all nodes with a reason for a write, if there is a burst at `now`.
    fn start_burst(&mut self, now: Timestamp) {
        if self.times.take_burst(now) {
            for name in self.names() {
                self.join_burst(&name, now);
            }
        }
    }

    /// Makes a write due in the burst at `now` if the node has a reason for one. A running node does so when its job
    /// ends.
    fn join_burst(&mut self, name: &NodeName, now: Timestamp) {
        let hot_value = self.hot_value(name, now);
        let Some(next_burst) = self.times.next_burst() else { return };
        let Some(node) = self.nodes.get_mut(name) else { return };
        if let Stage::Running { missed_burst, .. } = &mut node.stage {
            *missed_burst = true;
            return;
        }
        node.writes.readings.join_burst(hot_value, now, next_burst);
        if node.writes.readings.due().is_some() {
            self.requeue(name, now);
        }
    }

    /// The node's hot value; `None` before the first list of pods, or if there is no rule for it.
    fn hot_value(&self, name: &NodeName, now: Timestamp) -> Option<u64> {
        let rules = &self.policy.hot;
        if rules.is_empty() || !self.pods_listed {
            return None;
        }
        Some(self.recent_bindings.hot_value(name, rules, now))
    }

    /// Starts the next job that is due at `now`; `None` if none is due or no slot is free. Each job must be ended
    /// with [`Fleet::finish`].
    pub(crate) fn take_job(&mut self, now: Timestamp) -> Option<Job> {
        self.start_burst(now);
        while let Some((place, name)) = self.lanes.pop(now) {
            if let Some(job) = self.start_job(&name, place, now) {
                self.lanes.start_job(place.lane);
                return Some(job);
            }
            // The due job has nothing to do: the node pauses, so that other nodes come first.
            if let Some(node) = self.nodes.get_mut(&name) {
                node.pause(now);
            }
            self.requeue(&name, now);
        }
        None
    }

    /// Starts the node's job at this place; `None` if there is nothing to do.
    fn start_job(&mut self, name: &NodeName, place: Place, now: Timestamp) -> Option<Job> {
        let hot_value = self.hot_value(name, now);
        let node = self.nodes.get_mut(name)?;
        let (poll, pods) = node.polls(place.lane, now);
        let inputs = PlanInputs {
            hot_value,
            polls: poll.is_some(),
            next_poll: node.poll_after(now),
            times: self.times,
        };
        let write = node.writes.plan(inputs, now);
        if poll.is_none() && pods.is_none() && !write.is_due() {
            return None;
        }
        if let Stage::Waiting(places) = &node.stage {
            self.lanes.remove(places, name);
        }
        self.last_job += 1;
        node.stage = Stage::Running { job: self.last_job, missed_burst: false };
        Some(Job {
            id: self.last_job,
            node: name.clone(),
            uid: node.uid.clone(),
            lane: place.lane,
            due: (place.at > Timestamp::MIN).then_some(place.at),
            poll,
            write,
            pods,
        })
    }

    /// Applies the result of a job. Returns the changes of the node's state.
    pub(crate) fn finish(&mut self, report: Report, now: Timestamp) -> Vec<Transition> {
        self.lanes.end_job(report.job.lane);
        let name = report.job.node.clone();
        let Some(node) = self.nodes.get_mut(&name) else { return Vec::new() };
        let Some(missed_burst) = node.end_job(report.job.id) else { return Vec::new() };
        let missing_before = node.exporter.missing().clone();
        let saved_before = node.writes.readings.writes_saved();
        let has_polled = report.poll.is_some();
        if let Some(Ok(result)) = &report.poll {
            self.readings.lock().record(&name, &result.usable);
        }
        self.counts -= node.exporter.counts();
        let transitions = node.finish(report, self.times, now);
        self.counts += node.exporter.counts();
        self.writes_saved += node.writes.readings.writes_saved() - saved_before;
        self.missing.update(&missing_before, node.exporter.missing(), now);
        if missed_burst {
            self.join_burst(&name, now);
        }
        if has_polled {
            let answering = self.nodes.iter().filter(|(_, node)| !node.exporter.is_silent());
            self.rounds.record_poll(&name, now, answering.map(|(name, _)| name));
        }
        self.requeue(&name, now);
        transitions
    }

    /// The time of one poll of every node, if that round has ended since the last call; silent nodes are left out.
    pub(crate) fn take_ended_round(&mut self) -> Option<SignedDuration> {
        self.rounds.take_ended()
    }

    /// The metrics that no exporter provides, each once after the start and after a change of the policy. Empty until
    /// all exporters were polled.
    pub(crate) fn report_missing(&mut self, now: Timestamp) -> Vec<MetricName> {
        if self.counts.unpolled > 0 {
            return Vec::new();
        }
        self.missing.report(self.counts.answered, now)
    }
}

#[cfg(test)]
mod tests;
