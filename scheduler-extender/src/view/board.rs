//! Every node's load, and the policy in force.
//!
//! Invariants: readers (Filter, Prioritize, explain) take no lock; what they hold stays as it is until
//! they let it go. A node's load is one immutable value that is swapped as a whole. A binding or another
//! policy reads no annotation again, and a new node leaves the values of all others in place: only the
//! index of nodes is copied, which takes 270 µs for 5,000 nodes (bench/RESULTS.md).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use cluster::NodeFacts;
use jiff::Timestamp;
use placement::load::{
    EndedPod, Evaluation, MetricTable, NodeLoad, PodToPlace, ReadingStatus, Readings, RecentPods,
    ResolvedPolicy,
};
use placement::policy::LoadPolicy;
use placement::reading::{Reading, is_fresh};
use placement::resources::Amounts;
use placement::units::{MetricName, NodeName, PodUid};

use super::in_flight::InFlight;
use super::refused::{RefusedReading, RefusedReadings};

/// Nodes that the watch has not shown yet and whose bindings are kept, at most. A pod's author can name any node, whether
/// there is one or not.
const MAX_EARLY: usize = 1024;

/// One node's load, swapped as a whole.
type Slot = Arc<ArcSwap<NodeLoad>>;

/// What Filter and Prioritize read: the policy in force and every node's load.
pub struct Board {
    /// The policy in force.
    pub policy: Arc<ResolvedPolicy>,
    nodes: Arc<HashMap<NodeName, Slot>>,
}

impl Board {
    /// A node's load, where the node is known.
    pub fn node(&self, name: &str) -> Option<Guard<Arc<NodeLoad>>> {
        self.nodes.get(name).map(|slot| slot.load())
    }

    /// A node's name, shared, and its load as it is now, where the node is known.
    pub fn known(&self, name: &str) -> Option<(&NodeName, Arc<NodeLoad>)> {
        self.nodes.get_key_value(name).map(|(name, slot)| (name, slot.load_full()))
    }

    /// The names of all known nodes, in no order.
    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// How many nodes are known.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// For each metric of the policy, how many nodes have no fresh reading of it.
    pub fn nodes_without_reading(&self, now: Timestamp) -> Vec<(MetricName, u64)> {
        let metrics = self.policy.policy.metrics();
        let mut missing: Vec<_> = metrics.into_iter().map(|metric| (metric.clone(), 0)).collect();
        for slot in self.nodes.values() {
            let node = slot.load();
            let evaluation =
                Evaluation { policy: &self.policy, node: &node, pod: PodToPlace::ORDINARY, now };
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
}

/// The board and what changes it.
pub struct LoadBoard {
    board: ArcSwap<Board>,
    /// Writers of the board go one at a time. No reader takes this.
    writer: Mutex<Writer>,
    in_flight: InFlight,
    refused: RefusedReadings,
    believe_crane_hot_value: bool,
}

struct Writer {
    metrics: MetricTable,
    /// Recent pods of nodes that the watch has not shown yet.
    early: HashMap<NodeName, RecentPods>,
}

impl LoadBoard {
    /// A board without nodes. `believe_crane_hot_value`: whether `node_hot_value` annotations count, as
    /// crane's own annotator writes them; ours writes them for others, and they outlive the heat.
    #[must_use]
    pub fn new(policy: LoadPolicy, believe_crane_hot_value: bool) -> Self {
        let mut metrics = MetricTable::default();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut metrics));
        Self {
            board: ArcSwap::from_pointee(Board { policy, nodes: Arc::default() }),
            writer: Mutex::new(Writer { metrics, early: HashMap::new() }),
            in_flight: InFlight::default(),
            refused: RefusedReadings::default(),
            believe_crane_hot_value,
        }
    }

    /// The board as it is now.
    pub fn read(&self) -> Guard<Arc<Board>> {
        self.board.load()
    }

    /// Readings that were not believed, by cause.
    pub fn refused(&self) -> &RefusedReadings {
        &self.refused
    }

    /// Puts another policy in force.
    pub fn set_policy(&self, policy: LoadPolicy) {
        let mut writer = self.writer();
        let policy = Arc::new(ResolvedPolicy::new(policy, &mut writer.metrics));
        let nodes = Arc::clone(&self.board.load().nodes);
        self.board.store(Arc::new(Board { policy, nodes }));
    }

    /// Makes a policy that is not put in force ready for decisions about these nodes.
    pub fn resolve(&self, policy: LoadPolicy) -> Arc<ResolvedPolicy> {
        Arc::new(ResolvedPolicy::new(policy, &mut self.writer().metrics))
    }

    /// Replaces all nodes by a list of them.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = NodeFacts>, now: Timestamp) {
        let mut writer = self.writer();
        let board = self.board.load_full();
        let mut index = HashMap::new();
        for facts in nodes {
            let known = board.nodes.get(&facts.name).map(Arc::clone);
            let slot = self.updated(known, &facts, now, &mut writer);
            index.insert(facts.name, slot);
        }
        writer.early.clear();
        self.publish(&board, index);
    }

    /// Adds or updates one node.
    pub fn set_node(&self, facts: &NodeFacts, now: Timestamp) {
        let mut writer = self.writer();
        let board = self.board.load_full();
        let known = board.nodes.get(&facts.name).map(Arc::clone);
        let is_new = known.is_none();
        let slot = self.updated(known, facts, now, &mut writer);
        if is_new {
            let mut index = HashMap::clone(&board.nodes);
            index.insert(facts.name.clone(), slot);
            self.publish(&board, index);
        }
    }

    /// Forgets a node.
    pub fn remove_node(&self, name: &NodeName) {
        let mut writer = self.writer();
        writer.early.remove(name);
        let board = self.board.load_full();
        if board.nodes.contains_key(name) {
            let mut index = HashMap::clone(&board.nodes);
            index.remove(name);
            self.publish(&board, index);
        }
    }

    /// Notes that a pod was bound: it counts on the node from now on, in its hot value and with what it `uses`, until
    /// readings show it. A pod counts once. Without `uses`, what Prioritize knew of it counts.
    pub fn record_binding(
        &self,
        pod: &PodUid,
        node: &NodeName,
        at: Timestamp,
        uses: Option<Amounts>,
    ) {
        let board = self.board.load();
        let horizon = board.policy.policy.binding_horizon();
        let asked = self.in_flight.remove(pod);
        if let Some(other) = asked.as_ref().map(|asked| &asked.node).filter(|other| *other != node)
        {
            change_recent(board.nodes.get(other), |recent| recent.not_in_flight(pod));
        }
        let uses = uses.or(asked.map(|asked| asked.uses)).unwrap_or_default();
        let bound = |recent: &mut RecentPods| recent.bound(pod, at, uses, horizon);
        if change_recent(board.nodes.get(node), bound) {
            return;
        }
        // The watches of pods and nodes are not ordered against each other.
        let mut writer = self.writer();
        let board = self.board.load();
        if change_recent(board.nodes.get(node), bound) {
            return;
        }
        if writer.early.len() >= MAX_EARLY {
            // Those that never showed up, or are gone.
            writer.early.retain(|_, recent| recent.within(horizon, at) > 0);
        }
        if writer.early.len() < MAX_EARLY || writer.early.contains_key(node) {
            bound(writer.early.entry(node.clone()).or_default());
        }
    }

    /// Counts a pod on no node: it is being asked about again, and does not stand in its own way.
    pub fn not_in_flight(&self, pod: &PodUid) {
        if let Some(asked) = self.in_flight.remove(pod) {
            let board = self.board.load();
            change_recent(board.nodes.get(&asked.node), |recent| recent.not_in_flight(pod));
        }
    }

    /// A pod on `node` has ended, and uses nothing more.
    pub fn ended(&self, node: &NodeName, pod: &EndedPod) {
        self.not_in_flight(&pod.uid);
        let board = self.board.load();
        let horizon = board.policy.policy.binding_horizon();
        let ended = |recent: &mut RecentPods| recent.ended(pod.clone(), horizon);
        if change_recent(board.nodes.get(node), ended) {
            return;
        }
        let mut writer = self.writer();
        let board = self.board.load();
        if !change_recent(board.nodes.get(node), ended)
            && let Some(early) = writer.early.get_mut(node)
        {
            ended(early);
        }
    }

    /// Counts a pod on the node where it will probably be bound, until its binding is known or some
    /// time is over. Does nothing for a node that is not known, and for a pod that is known to be bound.
    pub fn in_flight(&self, pod: &PodUid, node: &str, now: Timestamp, uses: Amounts) {
        let board = self.board.load();
        let Some((node, slot)) = board.nodes.get_key_value(node) else { return };
        let policy = &board.policy.policy;
        if policy.hot.is_empty() && policy.estimates.is_none()
            || !self.in_flight.insert(pod, node, uses, now)
        {
            return;
        }
        change_recent(Some(slot), |recent| recent.in_flight(pod, now, uses));
    }

    /// Whether a binding at `at` still bears on decisions at `now`. One from far ahead is not believed: it
    /// would count until then, and push the node's other bindings out.
    pub fn is_recent(&self, at: Timestamp, now: Timestamp) -> bool {
        is_fresh(at, now, self.board.load().policy.policy.binding_horizon())
    }

    /// The node's slot with the readings of `facts`: the one that is known, or a new one.
    fn updated(
        &self,
        known: Option<Slot>,
        facts: &NodeFacts,
        now: Timestamp,
        writer: &mut Writer,
    ) -> Slot {
        let readings = Readings::new(&mut writer.metrics, self.believed(facts, now));
        let crane_hot_value = facts.hot_value.filter(|_| self.believe_crane_hot_value);
        let capacity = facts.capacity;
        let Some(slot) = known else {
            let recent = Arc::new(writer.early.remove(&facts.name).unwrap_or_default());
            let readings = Arc::new(readings);
            let labels = Arc::new(facts.labels.clone());
            let load = NodeLoad { readings, recent, crane_hot_value, capacity, labels };
            return Arc::new(ArcSwap::from_pointee(load));
        };
        // Most changes of a node are its kubelet's heartbeats.
        let before = slot.load();
        let same = *before.readings == readings
            && before.crane_hot_value == crane_hot_value
            && before.capacity == capacity
            && *before.labels == facts.labels;
        if !same {
            let (readings, labels) = (Arc::new(readings), Arc::new(facts.labels.clone()));
            slot.rcu(|before| NodeLoad {
                readings: Arc::clone(&readings),
                recent: Arc::clone(&before.recent),
                crane_hot_value,
                capacity,
                labels: Arc::clone(&labels),
            });
        }
        drop(before);
        slot
    }

    /// The readings that can be believed; the others are counted where the policy asks for the metric.
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

    fn publish(&self, board: &Board, nodes: HashMap<NodeName, Slot>) {
        let policy = Arc::clone(&board.policy);
        self.board.store(Arc::new(Board { policy, nodes: Arc::new(nodes) }));
    }

    // A panic under this lock leaves no half-made entry: each change is one insert or store.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes a node's recent pods without a lock: where another change came first, this one is made again
/// on top of it. Returns whether the node is known.
fn change_recent(slot: Option<&Slot>, change: impl Fn(&mut RecentPods) -> bool) -> bool {
    let Some(slot) = slot else { return false };
    slot.rcu(|before| {
        let mut recent = RecentPods::clone(&before.recent);
        if !change(&mut recent) {
            return Arc::clone(before);
        }
        Arc::new(NodeLoad { recent: Arc::new(recent), ..NodeLoad::clone(before) })
    });
    true
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// Without nodes; a binding counts for 5 minutes.
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
