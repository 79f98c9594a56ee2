//! All nodes: which job comes next, and the effects of finished jobs. Pure decisions: no I/O, and `now` is a parameter.
//!
//! Polls are spread over the period, and each node's last readings are kept. Readings that readers lack, or that expire soon, are written
//! by the job that polled them. Readings that cross a limit are written some seconds later, together with other nodes'. The rest
//! waits for a burst ([`bursts`]), in which all nodes with a reason for a write are written.
//!
//! Invariants: a node has at most one job in flight; jobs for silent and slow exporters use no slots of others ([`lanes`]); the
//! result of a job for a node that was deleted, or replaced by another of the same name, is dropped.

mod bursts;
pub mod job;
pub mod lanes;
mod missing;
mod node;
pub mod node_annotations;
mod pods;
mod readings;
pub mod retry;
mod rounds;
pub mod schedule;
mod status;
mod wakeups;
pub mod write_plan;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::names::{HOT_VALUE, Names};
use placement::policy::LoadPolicy;
use placement::publish::{Urgency, WriteRules};
use placement::reading::ReadingCodec;
use placement::units::{MetricName, NodeName, PodUid};
use settings::ReadingsIn;

use self::bursts::Bursts;
use self::job::{Job, Report, Transition};
use self::lanes::{Lanes, Place};
use self::missing::MissingMetrics;
use self::node::NodeState;
use self::node_annotations::NodeAnnotations;
use self::pods::PodsSchedule;
use self::readings::NodeReadings;
use self::rounds::Rounds;
use self::schedule::Schedule;
use self::status::Counts;
pub use self::status::Status;
use self::wakeups::Wakeups;
use crate::exporter::endpoint::endpoint;
use crate::pods::BoundPod;
use crate::pods::ledgers::Ledgers;
use crate::pods::recent_bindings::RecentBindings;
use crate::pods::share::ShareState;

/// The settings, which do not change while the program runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Annotation keys and resource names.
    pub names: Names,
    /// The text form of readings in annotations.
    pub codec: ReadingCodec,
    /// Where readings are written.
    pub readings_in: ReadingsIn,
    /// The port of an exporter, unless the node's annotation names another one.
    pub exporter_port: u16,
    /// The largest number of polls in flight to prompt exporters ([`lanes::Lane`]), and of patches in flight.
    pub concurrency: usize,
    /// The period of polls of pods' use; `None`: never.
    pub pod_use_period: Option<SignedDuration>,
    /// How far a value may move without a write for that reason: a fraction, 0 to 1.
    pub dead_band: f64,
    /// The time between two bursts of writes; `None` if each poll writes its own readings.
    pub burst_interval: Option<SignedDuration>,
    /// How far below its limits a node must be before its taint is cleared; `None` without taints.
    pub taint_margin: Option<f64>,
}

impl Settings {
    fn write_rules(&self, policy: &LoadPolicy) -> WriteRules {
        WriteRules::new(policy, self.dead_band, self.taint_margin)
    }
}

/// The state of all nodes.
#[derive(Debug)]
pub struct Fleet {
    settings: Settings,
    policy: Arc<LoadPolicy>,
    rules: WriteRules,
    bursts: Option<Bursts>,
    wakeups: Wakeups,
    nodes: HashMap<NodeName, NodeState>,
    /// The queues of nodes without a job in flight, and the slots of jobs in flight.
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
}

impl Fleet {
    /// A fleet without nodes.
    #[must_use]
    pub fn new(settings: Settings, policy: Arc<LoadPolicy>) -> Self {
        let missing = MissingMetrics::new(&policy);
        Self {
            lanes: Lanes::new(settings.concurrency),
            rules: settings.write_rules(&policy),
            bursts: Bursts::new(settings.burst_interval),
            wakeups: Wakeups::default(),
            settings,
            policy,
            nodes: HashMap::new(),
            ledgers: Ledgers::default(),
            recent_bindings: RecentBindings::default(),
            pods_listed: false,
            leading: true,
            node_changes: 0,
            pod_changes: 0,
            writes_saved: 0,
            last_job: 0,
            counts: Counts::default(),
            missing,
            rounds: Rounds::default(),
        }
    }

    /// Numbers about the fleet.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            nodes: self.nodes.len(),
            silent: self.counts.silent,
            held_back: self.counts.held_back,
            missing: self.missing.nodes(),
            pods_listed: self.pods_listed,
            node_changes: self.node_changes,
            pod_changes: self.pod_changes,
            writes_saved: self.writes_saved,
            in_flight: self.lanes.in_flight(),
            next: self.next(),
        }
    }

    /// Another policy is in force.
    pub fn set_policy(&mut self, policy: Arc<LoadPolicy>, now: Timestamp) {
        self.missing = MissingMetrics::new(&policy);
        self.counts = Counts::default();
        self.rules = self.settings.write_rules(&policy);
        for (name, node) in &mut self.nodes {
            node.set_schedule(node.schedule.under(name, &policy));
            node.set_rules(&self.rules);
            self.counts += node.counts();
            self.missing.update(&BTreeSet::new(), node.missing(), now);
        }
        self.policy = policy;
        self.requeue_all(now);
    }

    /// This replica begins or ceases to lead. A new leader polls the nodes at their own times, as after a restart, and
    /// writes a note that nodes may have cooled: the last leader may have ended between the write of a NodeLoad and its note.
    pub fn set_leading(&mut self, leading: bool, now: Timestamp) {
        self.leading = leading;
        if leading {
            self.nodes.values_mut().for_each(|node| node.leadership_gained(now));
            let any = self.nodes.keys().next();
            let in_node_loads = self.settings.readings_in == ReadingsIn::NodeLoads;
            if let Some(name) = any.filter(|_| in_node_loads) {
                self.wakeups.cooled(name.clone(), now);
            }
            self.requeue_all(now);
        }
    }

    /// The clock was set back to `now`.
    pub fn clock_set_back(&mut self, now: Timestamp) {
        self.nodes.values_mut().for_each(|node| node.clock_set_back(now));
        self.wakeups.clock_set_back();
        self.start_bursts(now);
        self.requeue_all(now);
    }

    /// Applies a complete list of nodes.
    pub fn nodes_listed(&mut self, nodes: Vec<NodeFacts>, now: Timestamp) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        let gone: Vec<NodeName> =
            self.nodes.keys().filter(|name| !present.contains(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_node(name, now));
        nodes.into_iter().for_each(|facts| self.apply_node(facts, now));
    }

    /// A node is new or has changed.
    pub fn node_applied(&mut self, facts: NodeFacts, now: Timestamp) {
        self.node_changes += 1;
        self.apply_node(facts, now);
    }

    /// Whether the node is known.
    #[must_use]
    pub fn has(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// A node was deleted, or is not selected any more.
    pub fn node_gone(&mut self, name: &NodeName, now: Timestamp) {
        self.node_changes += 1;
        self.remove_node(name, now);
    }

    fn apply_node(&mut self, facts: NodeFacts, now: Timestamp) {
        let name = facts.name.clone();
        self.start_bursts(now);
        if self.nodes.get(&name).is_some_and(|node| node.uid != facts.uid) {
            // Another node has the same name now.
            self.remove_node(&name, now);
        }
        let is_new = !self.nodes.contains_key(&name);
        self.upsert(&facts).observe(&facts, is_new, now);
        match facts.cards {
            Some(Ok(cards)) => self.ledgers.set_cards(&name, cards),
            // The last good report stays in force.
            Some(Err(_)) => return self.requeue(&name, now),
            None => self.ledgers.remove_cards(&name),
        }
        self.update_share(&name, now);
    }

    /// The node's state, created where it is new.
    fn upsert(&mut self, facts: &NodeFacts) -> &mut NodeState {
        let Settings { names, exporter_port, pod_use_period, .. } = &self.settings;
        let share = facts.annotation(&names.share());
        let endpoint = endpoint(facts, *exporter_port, &names.exporter());
        let leftovers = || leftovers(&self.settings, &self.policy, facts);
        let node = self.nodes.entry(facts.name.clone()).or_insert_with(|| {
            let share = ShareState::from_annotation(share);
            let schedule = Schedule::new(&facts.name, &self.policy);
            let pods = PodsSchedule::new(&facts.name, *pod_use_period);
            let readings = NodeReadings::new(Arc::clone(self.rules.of(&facts.labels)));
            let annotations = NodeAnnotations::new(leftovers());
            let node =
                NodeState::new(schedule, readings, share, annotations, pods, endpoint.clone());
            self.counts += node.counts();
            node
        });
        if !self.leading {
            node.share.observe(share);
        }
        node.annotations.observe(&facts.annotations);
        node.set_facts(facts);
        node.uid.clone_from(&facts.uid);
        node.set_labels(&facts.labels, &self.rules);
        node.set_endpoint(endpoint);
        node
    }

    fn remove_node(&mut self, name: &NodeName, now: Timestamp) {
        if let Some(node) = self.nodes.remove(name) {
            if node.annotations.note_waits() {
                self.wakeups.cooled(name.clone(), now);
            }
            self.counts -= node.counts();
            self.missing.update(node.missing(), &BTreeSet::new(), now);
            node.places.iter().for_each(|place| self.lanes.remove(*place, name));
        }
        self.rounds.gone(name);
        self.ledgers.remove_cards(name);
        self.recent_bindings.forget(name);
    }

    /// Applies a complete list of bound pods.
    pub fn pods_listed(&mut self, pods: &[BoundPod], now: Timestamp) {
        self.pods_listed = true;
        pods.iter().for_each(|pod| self.record_binding(pod, now));
        let changed = self.ledgers.replace(pods);
        changed.iter().for_each(|name| self.update_share(name, now));
    }

    /// A bound pod is new or has changed.
    pub fn pod_applied(&mut self, pod: &BoundPod, now: Timestamp) {
        self.pod_changes += 1;
        self.record_binding(pod, now);
        if let Some(name) = self.ledgers.apply(pod) {
            self.update_share(&name, now);
        }
    }

    /// A pod was deleted.
    pub fn pod_gone(&mut self, uid: &PodUid, now: Timestamp) {
        self.pod_changes += 1;
        if let Some(name) = self.ledgers.remove(uid) {
            self.update_share(&name, now);
        }
    }

    fn record_binding(&mut self, pod: &BoundPod, now: Timestamp) {
        self.recent_bindings.record(pod, self.policy.hot_horizon(), now);
    }

    fn update_share(&mut self, name: &NodeName, now: Timestamp) {
        let shares = self.ledgers.shares(name);
        let burst = self.bursts.map(Bursts::next);
        if let Some(node) = self.nodes.get_mut(name) {
            node.share.set_target(shares, burst, now);
        }
        self.requeue(name, now);
    }

    fn requeue_all(&mut self, now: Timestamp) {
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.requeue(name, now));
    }

    /// Puts a node into the lanes at the times of its next jobs, or nowhere while it has a job in flight.
    fn requeue(&mut self, name: &NodeName, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.places.drain(..).for_each(|place| self.lanes.remove(place, name));
        if node.job.is_none() {
            node.places = node.next_jobs(now);
        }
        node.places.iter().for_each(|place| self.lanes.insert(*place, name.clone()));
    }

    fn start_bursts(&mut self, now: Timestamp) {
        if let Some(bursts) = &mut self.bursts {
            bursts.start(now);
        }
    }

    /// When the next burst, or the next job with a free slot, is due; it may be past.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        let burst = self.bursts.filter(|_| !self.nodes.is_empty()).map(Bursts::next);
        self.lanes.next().into_iter().chain(burst).chain(self.wakeups.next()).min()
    }

    /// Makes writes due on all nodes with a reason for a write, if there is a burst at `now`.
    fn burst(&mut self, now: Timestamp) {
        if !self.bursts.as_mut().is_some_and(|bursts| bursts.take(now)) {
            return;
        }
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.burst_of(name, now));
    }

    fn burst_of(&mut self, name: &NodeName, now: Timestamp) {
        let (hot_value, next) = (self.hot_value(name, now), self.bursts.map(Bursts::next));
        let Some((node, next)) = self.nodes.get_mut(name).zip(next) else { return };
        if node.job.is_some() {
            return node.readings.burst_missed();
        }
        node.readings.burst(hot_value, now, next);
        if node.readings.due().is_some() {
            self.requeue(name, now);
        }
    }

    /// Makes the write of a note on one Node due, if nodes have cooled and the note is due at `now`.
    fn note_cooled(&mut self, now: Timestamp) {
        let Some(cooled) = self.wakeups.take(now) else { return };
        // A change of any Node has the same effect.
        let idle = |name: &&NodeName| self.nodes.get(*name).is_some_and(|node| node.job.is_none());
        let name = Some(&cooled).filter(idle).or_else(|| self.nodes.keys().find(idle));
        let name = name.unwrap_or(&cooled).clone();
        if let Some(node) = self.nodes.get_mut(&name) {
            node.annotations.cooled(self.settings.names.cooled_at(), now);
            self.requeue(&name, now);
        }
    }

    /// The node's hot value; `None` before the first list of pods, if the policy has no rule for it, or if readings are in NodeLoads,
    /// which crane does not read.
    fn hot_value(&self, name: &NodeName, now: Timestamp) -> Option<u64> {
        let rules = &self.policy.hot;
        let is_read = self.settings.readings_in == ReadingsIn::Annotations;
        let is_known = is_read && self.pods_listed && !rules.is_empty();
        is_known.then(|| self.recent_bindings.hot_value(name, rules, now))
    }

    /// Starts the next job that is due at `now`; `None` if none is due or no slot is free. Each job must be ended
    /// with [`Fleet::finish`].
    pub fn take_job(&mut self, now: Timestamp) -> Option<Job> {
        self.burst(now);
        self.note_cooled(now);
        while let Some((place, name)) = self.lanes.pop(now) {
            if let Some(job) = self.start_job(&name, place, now) {
                self.lanes.job_started(place.lane);
                return Some(job);
            }
            // The due job has no tasks: the node pauses, so that other nodes come first.
            if let Some(node) = self.nodes.get_mut(&name) {
                node.pause(now);
            }
            self.requeue(&name, now);
        }
        None
    }

    fn start_job(&mut self, name: &NodeName, place: Place, now: Timestamp) -> Option<Job> {
        let hot_value = self.hot_value(name, now);
        let (burst, least) = (self.bursts.map(Bursts::next), self.least_urgent());
        let node = self.nodes.get_mut(name)?;
        let (poll, share, pods) = node.tasks(place.lane, now);
        let on_node = node.annotations.changes(now);
        let writes = node.readings.due().is_some()
            || share.as_ref().is_some_and(|share| share.needed)
            || !on_node.is_empty();
        if poll.is_none() && !writes && pods.is_none() {
            return None;
        }
        let write = node.write_plan(least, burst, now);
        node.places.drain(..).for_each(|place| self.lanes.remove(place, name));
        self.last_job += 1;
        node.job = Some(self.last_job);
        let due = Some(place.at).filter(|due| *due > Timestamp::MIN);
        let (id, lane) = (self.last_job, place.lane);
        let (uid, name) = (node.uid.clone(), name.clone());
        Some(Job { id, node: name, uid, lane, due, poll, write, hot_value, share, on_node, pods })
    }

    /// The least urgent reason for which a job writes at once instead of waiting for a burst. kube-scheduler does not watch NodeLoads.
    fn least_urgent(&self) -> Urgency {
        match (self.bursts, self.settings.readings_in) {
            (None, _) => Urgency::NextBurst,
            (Some(_), ReadingsIn::Annotations) => Urgency::AtOnce,
            (Some(_), ReadingsIn::NodeLoads) => Urgency::Soon,
        }
    }

    /// Applies the result of a job. Returns the changes of the node's state.
    pub fn finish(&mut self, report: Report, now: Timestamp) -> Vec<Transition> {
        self.lanes.job_ended(report.job.lane);
        let name = report.job.node.clone();
        let burst = self.bursts.map(Bursts::next);
        let current = |node: &&mut NodeState| node.job == Some(report.job.id);
        let Some(node) = self.nodes.get_mut(&name).filter(current) else { return Vec::new() };
        let missing = node.missing().clone();
        let saved = node.readings.writes_saved();
        self.counts -= node.counts();
        let polled = report.poll.is_some();
        let soon = self.bursts.filter(|_| report.write.is_none());
        let in_node_loads = self.settings.readings_in == ReadingsIn::NodeLoads;
        if in_node_loads && report.has_cooled() {
            self.wakeups.cooled(name.clone(), now);
        }
        let transitions = node.finish(report, burst, now);
        if let Some(bursts) = soon {
            node.readings.due_soon(bursts.soon(now), now, bursts.next());
        }
        self.counts += node.counts();
        self.missing.update(&missing, node.missing(), now);
        self.writes_saved += node.readings.writes_saved() - saved;
        if node.readings.job_ended() {
            self.burst_of(&name, now);
        }
        if polled {
            let heard = self.nodes.iter().filter(|(_, node)| !node.is_silent());
            self.rounds.polled(&name, now, || heard.map(|(name, _)| name.clone()).collect());
        }
        self.requeue(&name, now);
        transitions
    }

    /// The time of one poll of every node, if that round has ended since the last call; silent nodes are left out.
    pub fn take_ended_round(&mut self) -> Option<SignedDuration> {
        self.rounds.take_ended()
    }

    /// The metrics that no exporter provides, each once after the start and after a change of the policy. Empty until all
    /// exporters were polled.
    pub fn report_missing(&mut self, now: Timestamp) -> Vec<MetricName> {
        match self.counts.unpolled {
            0 => self.missing.report(self.counts.answering, now),
            _ => Vec::new(),
        }
    }
}

/// The annotations with readings that this program wrote on a node before its readings moved to the NodeLoad.
fn leftovers(settings: &Settings, policy: &LoadPolicy, facts: &NodeFacts) -> Vec<String> {
    if settings.readings_in == ReadingsIn::Annotations {
        return Vec::new();
    }
    let is_ours = |(key, text): &(&String, &String)| match key.as_str() {
        HOT_VALUE => !policy.hot.is_empty() && settings.codec.decode_hot_value(text).is_ok(),
        key => {
            let is_polled = policy.sync.iter().any(|rule| rule.metric.as_str() == key);
            is_polled && settings.codec.decode(text).is_ok()
        }
    };
    facts.annotations.iter().filter(is_ours).map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests;
