//! The board: every node's load, and the policy in force.
//!
//! Invariants: readers (Filter, Prioritize, explain) take no lock; the board is one immutable value, which a decision keeps. A change
//! of a node shares all other nodes with the previous board. A binding or another policy does not parse annotations again. Only a node
//! that joins or leaves copies the index of names (bench/RESULTS.md).

mod nodes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use cluster::NodeFacts;
use jiff::Timestamp;
use placement::load::{
    EndedPod, Evaluation, MetricTable, NodeLoad, PodToPlace, ReadingStatus, Readings, RecentPods,
    ResolvedPolicy, STARTS_WITHIN,
};
use placement::policy::LoadPolicy;
use placement::reading::{HotValueNote, Reading, is_fresh};
use placement::resources::Amounts;
use placement::selector::Labels;
use placement::units::{MetricName, NodeName, PodUid};

pub use self::nodes::{NodeLoads, NodeNames, Place};
use super::in_flight::InFlightPods;
use super::refused::{RefusedReading, RefusedReadings};

/// The largest number of nodes whose bindings are kept before the watch shows the node. A pod's author can name any node, also
/// one that does not exist.
const MAX_EARLY: usize = 1024;

/// What Filter and Prioritize read: the policy in force and every node's load.
#[derive(Debug)]
pub struct Board {
    /// The policy in force.
    pub policy: Arc<ResolvedPolicy>,
    names: Arc<NodeNames>,
    loads: NodeLoads,
}

impl Board {
    /// The names of all known nodes.
    pub fn names(&self) -> &Arc<NodeNames> {
        &self.names
    }

    /// The loads of all known nodes.
    pub fn loads(&self) -> &NodeLoads {
        &self.loads
    }

    /// A node's load, where the node is known.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeLoad>> {
        self.names.place(name).map(|place| self.loads.get(place))
    }

    /// How many nodes are known.
    pub fn nodes(&self) -> usize {
        self.names.len()
    }

    /// For each metric of the policy, how many nodes have no fresh reading of it.
    pub fn nodes_without_reading(&self, now: Timestamp) -> Vec<(MetricName, u64)> {
        let metrics = self.policy.policy.metrics();
        let mut missing: Vec<_> = metrics.into_iter().map(|metric| (metric.clone(), 0)).collect();
        for node in self.loads.iter() {
            let evaluation =
                Evaluation { policy: &self.policy, node, pod: PodToPlace::ORDINARY, now };
            let terms =
                evaluation.terms().map(|term| (&term.weight.metric.name, term.load.reading));
            let limits =
                evaluation.limits().map(|check| (&check.limit.metric.name, check.load.reading));
            let readings: HashMap<&MetricName, ReadingStatus> = terms.chain(limits).collect();
            for (metric, count) in &mut missing {
                let reading = readings.get(metric);
                *count += u64::from(reading.is_some_and(|reading| reading.fresh().is_none()));
            }
        }
        missing
    }

    /// The same nodes under another policy.
    fn under(&self, policy: &Arc<ResolvedPolicy>) -> Self {
        let (names, loads) = (Arc::clone(&self.names), self.loads.clone());
        Self { policy: Arc::clone(policy), names, loads }
    }

    /// The same nodes, one with another load.
    fn with(&self, place: Place, load: NodeLoad) -> Self {
        let (policy, names) = (Arc::clone(&self.policy), Arc::clone(&self.names));
        Self { policy, names, loads: self.loads.with(place, Arc::new(load)) }
    }

    /// Other nodes under the same policy.
    fn of_nodes(&self, nodes: impl IntoIterator<Item = (NodeName, Arc<NodeLoad>)>) -> Self {
        let (names, loads): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let names = Arc::new(names.into_iter().collect());
        Self { policy: Arc::clone(&self.policy), names, loads: loads.into_iter().collect() }
    }

    /// All nodes with their loads, in the order of their places.
    fn nodes_with_loads(&self) -> impl Iterator<Item = (NodeName, Arc<NodeLoad>)> {
        self.names.iter().cloned().zip(self.loads.iter().cloned())
    }
}

/// The current board, and its writers.
pub struct LoadBoard {
    board: ArcSwap<Board>,
    /// Serialises writers of the board. No reader takes this lock.
    writer: Mutex<Writer>,
    in_flight: InFlightPods,
    refused: RefusedReadings,
    believe_crane_hot_value: bool,
}

struct Writer {
    metrics: MetricTable,
    /// Recent pods of nodes that the watch has not shown yet.
    early: HashMap<NodeName, RecentPods>,
}

impl LoadBoard {
    /// A board without nodes. `believe_crane_hot_value`: whether `node_hot_value` annotations count, for clusters with
    /// crane's own annotator. Our annotator writes them for other readers only, and they stay after the hot value has fallen.
    #[must_use]
    pub fn new(policy: LoadPolicy, believe_crane_hot_value: bool) -> Self {
        let mut metrics = MetricTable::default();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut metrics));
        Self {
            board: ArcSwap::from_pointee(Board {
                policy,
                names: Arc::default(),
                loads: NodeLoads::default(),
            }),
            writer: Mutex::new(Writer { metrics, early: HashMap::new() }),
            in_flight: InFlightPods::default(),
            refused: RefusedReadings::default(),
            believe_crane_hot_value,
        }
    }

    /// The current board.
    pub fn read(&self) -> Guard<Arc<Board>> {
        self.board.load()
    }

    /// The current board, as a value to keep.
    pub fn current(&self) -> Arc<Board> {
        self.board.load_full()
    }

    /// Counts of refused readings, by cause.
    pub fn refused(&self) -> &RefusedReadings {
        &self.refused
    }

    /// Puts another policy in force.
    pub fn set_policy(&self, policy: LoadPolicy) {
        let mut writer = self.writer();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut writer.metrics));
        // Loads prepared for the previous policy are replaced on their next use.
        self.board.rcu(|board| board.under(&policy));
    }

    /// Resolves a policy that does not come into force, for decisions about these nodes.
    pub fn resolve(&self, policy: LoadPolicy) -> Arc<ResolvedPolicy> {
        Arc::new(ResolvedPolicy::new(policy, &mut self.writer().metrics))
    }

    /// Replaces all nodes by a list of them.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = NodeFacts>, now: Timestamp) {
        let mut writer = self.writer();
        let nodes: Vec<NodeFacts> = nodes.into_iter().collect();
        let updates =
            nodes.iter().map(|facts| (&facts.name, self.node_update(facts, now, &mut writer)));
        let listed: HashMap<&NodeName, NodeUpdate<'_>> = updates.collect();
        let early = std::mem::take(&mut writer.early);
        // Nodes that stay keep their order.
        let board = self.read();
        let stay = board.names.iter().filter(|name| listed.contains_key(*name));
        let join = nodes.iter().map(|facts| &facts.name);
        let join = join.filter(|name| board.names.place(name.as_str()).is_none());
        let order: Vec<&NodeName> = stay.chain(join).collect();
        let before = self.board.rcu(|board| {
            let load = |name: &NodeName| match board.node(name.as_str()) {
                Some(known) if listed[name].is_of(known) => Arc::clone(known),
                Some(known) => Arc::new(listed[name].with(known)),
                None => Arc::new(listed[name].joined(&early)),
            };
            board.of_nodes(order.iter().map(|name| (NodeName::clone(name), load(name))))
        });
        before.loads.retire_all();
    }

    /// Adds or updates one node.
    pub fn set_node(&self, facts: &NodeFacts, now: Timestamp) {
        let mut writer = self.writer();
        let update = self.node_update(facts, now, &mut writer);
        // Most changes of a node are its kubelet's heartbeats.
        let change = |known: &NodeLoad| (!update.is_of(known)).then(|| update.with(known));
        if self.change(facts.name.as_str(), change) {
            return;
        }
        let joins = (facts.name.clone(), Arc::new(update.joined(&writer.early)));
        let joined =
            |board: &Arc<Board>| board.of_nodes(board.nodes_with_loads().chain([joins.clone()]));
        self.board.rcu(joined).loads.retire_all();
        writer.early.remove(&facts.name);
    }

    /// Forgets a node.
    pub fn remove_node(&self, name: &NodeName) {
        let mut writer = self.writer();
        writer.early.remove(name);
        if self.read().names.place(name.as_str()).is_some() {
            let stays = |(other, _): &(NodeName, _)| other != name;
            let left = |board: &Arc<Board>| board.of_nodes(board.nodes_with_loads().filter(stays));
            self.board.rcu(left).loads.retire_all();
        }
    }

    /// Records a binding: the pod counts in the node's hot value, and with what it `uses` until readings show it. A pod counts
    /// once. Without `uses`, the estimate of its in-flight entry counts.
    pub fn record_binding(
        &self,
        pod: &PodUid,
        node: &NodeName,
        at: Timestamp,
        uses: Option<Amounts>,
    ) {
        let horizon = self.read().policy.policy.binding_horizon();
        let in_flight = self.in_flight.remove(pod);
        let in_flight_on = in_flight.as_ref().map(|in_flight| &in_flight.node);
        if let Some(other) = in_flight_on.filter(|other| *other != node) {
            self.change_recent(other.as_str(), |recent| recent.remove_in_flight(pod));
        }
        let uses = uses.or(in_flight.map(|in_flight| in_flight.uses)).unwrap_or_default();
        let bound = |recent: &mut RecentPods| recent.bound(pod, at, uses, horizon);
        if self.change_recent(node.as_str(), bound) {
            return;
        }
        // The watches of pods and nodes are not ordered against each other.
        let mut writer = self.writer();
        if self.change_recent(node.as_str(), bound) {
            return;
        }
        if writer.early.len() >= MAX_EARLY {
            // Nodes that never joined, or were deleted.
            writer.early.retain(|_, recent| recent.within(horizon, at) > 0);
        }
        if writer.early.len() < MAX_EARLY || writer.early.contains_key(node) {
            bound(writer.early.entry(node.clone()).or_default());
        }
    }

    /// Records that all containers of a pod on `node` had started at `at`: readings show it from then on.
    pub fn record_start(&self, pod: &PodUid, node: &NodeName, at: Timestamp) {
        let started = |recent: &mut RecentPods| recent.started(pod, at);
        if self.change_recent(node.as_str(), started) {
            return;
        }
        let mut writer = self.writer();
        if !self.change_recent(node.as_str(), started)
            && let Some(early) = writer.early.get_mut(node)
        {
            started(early);
        }
    }

    /// Sets how many cores the pods of a node request; `None` where that is not known. Does nothing for an unknown node. `cores`
    /// is called within the swap of the board, so that of two concurrent calls none sets an outdated value.
    pub fn set_requested_cpu(&self, node: &NodeName, cores: impl Fn() -> Option<f64>) {
        let change = |known: &NodeLoad| {
            let requested_cpu = cores();
            let load = || NodeLoad { requested_cpu, ..known.clone() };
            (known.requested_cpu != requested_cpu).then(load)
        };
        self.change(node.as_str(), change);
    }

    /// As [`LoadBoard::set_requested_cpu`], for all nodes.
    pub fn set_requested_cpus(&self, cores: impl Fn(&NodeName) -> Option<f64>) {
        let before = self.board.rcu(|board| {
            let load = |(name, known): (&NodeName, &Arc<NodeLoad>)| match cores(name) {
                cores if cores == known.requested_cpu => Arc::clone(known),
                requested_cpu => Arc::new(NodeLoad { requested_cpu, ..NodeLoad::clone(known) }),
            };
            let loads = board.names.iter().zip(board.loads.iter()).map(load).collect();
            let (policy, names) = (Arc::clone(&board.policy), Arc::clone(&board.names));
            Board { policy, names, loads }
        });
        before.loads.retire_all();
    }

    /// Ends the pod's in-flight entry, as at its next scheduling attempt, in which it must not count itself.
    pub fn not_in_flight(&self, pod: &PodUid) {
        if let Some(in_flight) = self.in_flight.remove(pod) {
            self.change_recent(in_flight.node.as_str(), |recent| recent.remove_in_flight(pod));
        }
    }

    /// Records the end of a pod on `node`: it no longer uses anything.
    pub fn ended(&self, node: &NodeName, pod: &EndedPod) {
        self.not_in_flight(&pod.uid);
        let horizon = self.read().policy.policy.binding_horizon();
        let ended = |recent: &mut RecentPods| recent.ended(pod.clone(), horizon);
        if self.change_recent(node.as_str(), ended) {
            return;
        }
        let mut writer = self.writer();
        if !self.change_recent(node.as_str(), ended)
            && let Some(early) = writer.early.get_mut(node)
        {
            ended(early);
        }
    }

    /// Counts a pod as in flight on a node, with its estimated use and its requested cores, until its binding is known or the entry
    /// expires. Does nothing for an unknown node, and for a pod that is known to be bound.
    pub fn in_flight(
        &self,
        pod: &PodUid,
        node: &str,
        now: Timestamp,
        uses: Amounts,
        requested_cpu: f64,
    ) {
        let board = self.board.load();
        let Some(node) = board.names.place(node).map(|place| board.names.name(place)) else {
            return;
        };
        let policy = &board.policy.policy;
        if policy.hot.is_empty() && policy.estimates.is_none()
            || !self.in_flight.insert(pod, node, uses, now)
        {
            return;
        }
        self.change_recent(node.as_str(), |recent| recent.in_flight(pod, now, uses, requested_cpu));
    }

    /// Whether a binding at `at` still affects decisions at `now`. A time far in the future does not count: it
    /// would count until then, and displace the node's other bindings.
    pub fn is_recent(&self, at: Timestamp, now: Timestamp) -> bool {
        is_fresh(at, now, self.board.load().policy.policy.binding_horizon())
    }

    /// Whether a pod that was bound at `at` counts at `now` if its containers have not started.
    pub fn may_start(&self, at: Timestamp, now: Timestamp) -> bool {
        let is_estimated = self.board.load().policy.policy.estimates.is_some();
        is_estimated && is_fresh(at, now, STARTS_WITHIN)
    }

    /// The load data of a node's object.
    fn node_update<'f>(
        &self,
        facts: &'f NodeFacts,
        now: Timestamp,
        writer: &mut Writer,
    ) -> NodeUpdate<'f> {
        let readings = Readings::new(&mut writer.metrics, self.believed(facts, now));
        let crane_hot_value = facts.hot_value.filter(|_| self.believe_crane_hot_value);
        NodeUpdate { facts, readings, crane_hot_value }
    }

    /// The plausible readings. The others are counted if the policy uses the metric.
    fn believed(&self, facts: &NodeFacts, now: Timestamp) -> Vec<(MetricName, Reading)> {
        let board = self.board.load();
        let believed = facts.readings.iter().filter_map(|(metric, reading)| {
            let refused = match reading {
                Ok(reading) => match reading.check(metric, now) {
                    Ok(reading) => return Some((metric.clone(), reading)),
                    Err(error) => RefusedReading::from(error),
                },
                Err(error) => RefusedReading::from(error.clone()),
            };
            if board.policy.policy.metrics().contains(&metric) {
                self.refused.count(&facts.name, metric, &refused);
            }
            None
        });
        believed.collect()
    }

    /// Changes a node's load without a lock: after a concurrent change, `change` is called again. Returns whether the node is known.
    fn change(&self, node: &str, change: impl Fn(&NodeLoad) -> Option<NodeLoad>) -> bool {
        let mut is_known = false;
        let mut changed_at = None;
        let before = self.board.rcu(|board| {
            let place = board.names.place(node);
            is_known = place.is_some();
            let changed = place.and_then(|place| Some((place, change(board.loads.get(place))?)));
            changed_at = changed.as_ref().map(|(place, _)| *place);
            changed.map_or_else(
                || Arc::clone(board),
                |(place, load)| Arc::new(board.with(place, load)),
            )
        });
        if let Some(place) = changed_at {
            before.loads.retire(place);
        }
        is_known
    }

    fn change_recent(&self, node: &str, change: impl Fn(&mut RecentPods) -> bool) -> bool {
        self.change(node, |before| {
            let mut recent = RecentPods::clone(&before.recent);
            change(&mut recent).then(|| NodeLoad { recent: Arc::new(recent), ..before.clone() })
        })
    }

    // A panic under this lock leaves no partial change: each change is one insert or store.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The load data of a node's object: its load without recent pods.
struct NodeUpdate<'f> {
    facts: &'f NodeFacts,
    readings: Readings,
    crane_hot_value: Option<HotValueNote>,
}

impl NodeUpdate<'_> {
    /// Whether a known load has the same data.
    fn is_of(&self, known: &NodeLoad) -> bool {
        *known.readings == self.readings
            && known.crane_hot_value == self.crane_hot_value
            && known.capacity == self.facts.capacity
            && known.created_at == self.facts.created_at
            && *known.labels == self.facts.labels
    }

    /// The load of a node that was known before.
    fn with(&self, known: &NodeLoad) -> NodeLoad {
        let same = *known.labels == self.facts.labels;
        let labels =
            if same { Arc::clone(&known.labels) } else { Arc::new(self.facts.labels.clone()) };
        let requested_cpu = known.requested_cpu;
        NodeLoad { requested_cpu, ..self.load(Arc::clone(&known.recent), labels) }
    }

    /// The load of a node that joins. Pods may have been bound to it already.
    fn joined(&self, early: &HashMap<NodeName, RecentPods>) -> NodeLoad {
        let recent = early.get(&self.facts.name).cloned().unwrap_or_default();
        self.load(Arc::new(recent), Arc::new(self.facts.labels.clone()))
    }

    fn load(&self, recent: Arc<RecentPods>, labels: Arc<Labels>) -> NodeLoad {
        NodeLoad {
            readings: Arc::new(self.readings.clone()),
            recent,
            crane_hot_value: self.crane_hot_value,
            capacity: self.facts.capacity,
            requested_cpu: None,
            labels,
            created_at: self.facts.created_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// A board without nodes, on which a binding counts for 5 minutes.
    fn board() -> LoadBoard {
        let policy = LoadPolicy::from_yaml(
            "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {hotValue: [{timeRange: 5m, \
             count: 1}]}",
        );
        LoadBoard::new(policy.unwrap(), false)
    }

    #[test]
    fn pods_that_name_nodes_that_do_not_exist_take_bounded_memory() {
        let board = board();
        for pod in 0..2 * MAX_EARLY {
            let (uid, node) = (PodUid::from(format!("p{pod}")), NodeName::from(format!("n{pod}")));
            board.record_binding(&uid, &node, Timestamp::UNIX_EPOCH, None);
        }
        assert_eq!(board.writer().early.len(), MAX_EARLY);
    }

    #[test]
    fn old_bindings_to_nodes_that_do_not_exist_leave_room_for_new_ones() {
        let board = board();
        let bind = |number: usize, at| {
            let node = NodeName::from(format!("n{number}"));
            board.record_binding(&PodUid::from(format!("p{number}")), &node, at, None);
        };
        (0..MAX_EARLY).for_each(|number| bind(number, Timestamp::UNIX_EPOCH));
        let later = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(5);
        bind(MAX_EARLY, later);
        let early = &board.writer().early;
        assert_eq!((early.len(), early.contains_key("n1024")), (1, true));
    }
}
