//! Nodes' loads: their readings, and the pods that came, went or will come.
//!
//! Invariant: a binding or another policy parses no annotation again; a pod counts once.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::NodeFacts;
use jiff::Timestamp;
use placement::demand::{PerDemand, Rates};
use placement::load::{NodeLoad, Readings, RecentPods, STARTS_WITHIN};
use placement::policy::LoadPolicy;
use placement::reading::{HotValueNote, is_fresh};
use placement::resources::Amounts;
use placement::selector::Labels;
use placement::units::{NodeName, PodUid};

use super::in_flight::InFlightPods;
use super::nodes::Nodes;
use super::{Index, Notice, PodRequest};

/// The largest number of nodes whose bindings are kept before the watch shows the node. A pod's author can name any
/// node, also one that does not exist.
const MAX_EARLY: usize = 1024;

/// The pods that came, went or will come: their place beside the nodes' own [`RecentPods`].
#[derive(Debug, Clone, Default)]
pub(super) struct Loads {
    /// Recent pods of nodes that the watch has not shown yet.
    pub(super) early: HashMap<NodeName, RecentPods>,
    pub(super) in_flight: InFlightPods,
}

impl Index {
    /// Sets the readings, the capacity and the labels of a node that the watch has shown.
    pub(super) fn set_load(&mut self, facts: &NodeFacts) {
        let annotated = self.believed(
            &facts.name,
            facts.readings.iter().map(|(metric, reading)| (metric, reading.clone())),
        );
        let crane_hot_value = if self.believe_crane_hot_value { facts.hot_value } else { None };
        let speeds = self.speeds(facts);
        let update = NodeUpdate { facts, crane_hot_value, speeds };
        let node = self.nodes.get(&facts.name);
        let mut sources = node.map(|node| node.sources.clone()).unwrap_or_default();
        let are_same = sources.annotated == annotated;
        sources.annotated = annotated;
        let load = match node.and_then(|node| node.load.as_ref()) {
            // Most changes of a node are its kubelet's heartbeats.
            Some(known) if are_same && update.is_of(known) => return,
            Some(known) => {
                if known.created_at != facts.created_at {
                    sources.polled = Readings::default();
                }
                update.with(known)
            }
            None => update.joined(&mut self.loads.early),
        };
        let policy = Arc::clone(&self.policy);
        let now = self.now;
        self.nodes.change(&facts.name, |node| {
            node.load = Some(load);
            node.sources = sources;
            node.choose_readings(&policy, now);
        });
    }

    /// What the node's annotations say that it can do. One that cannot be read is left out.
    fn speeds(&mut self, facts: &NodeFacts) -> PerDemand<Option<u64>> {
        PerDemand::of(|demand| match facts.speeds.get(demand) {
            Some(Ok(speed)) => Some(*speed),
            Some(Err(error)) if self.policy.policy.demand.are_on() => {
                self.refused_objects += 1;
                let error = format!("{}: {error}", demand.name());
                self.notices.push(Notice::RefusedSpeed { node: facts.name.clone(), error });
                None
            }
            Some(Err(_)) | None => None,
        })
    }

    /// Records a binding: the pod counts in the node's hot value, and with what it `uses` until readings show it. A pod
    /// counts once. Without `uses`, the estimate of its in-flight entry counts.
    pub fn record_binding(
        &mut self,
        pod: &PodUid,
        node: &NodeName,
        at: Timestamp,
        uses: Option<Amounts>,
    ) {
        let horizon = self.policy.policy.binding_horizon();
        let (loads, nodes) = (&mut self.loads, &mut self.nodes);
        let in_flight = loads.in_flight.remove(pod);
        if let Some(in_flight) = in_flight.as_ref().filter(|in_flight| in_flight.node != *node) {
            loads.change(nodes, &in_flight.node, |recent| recent.remove_in_flight(pod));
        }
        let amounts = uses.or(in_flight.map(|in_flight| in_flight.uses)).unwrap_or_default();
        if nodes.has_joined(node) {
            loads.change(nodes, node, |recent| recent.bound(pod, at, amounts, horizon));
            return;
        }
        // The watches of pods and nodes are not ordered against each other.
        let early = &mut loads.early;
        if early.len() >= MAX_EARLY {
            // Nodes that never joined, or were deleted.
            early.retain(|_, recent| recent.within(horizon, at) > 0);
        }
        if early.len() < MAX_EARLY || early.contains_key(node) {
            early.entry(node.clone()).or_default().bound(pod, at, amounts, horizon);
        }
    }

    /// Ends the pod's in-flight entry, as at its next scheduling attempt, in which it must not count itself.
    pub fn not_in_flight(&mut self, pod: &PodUid) {
        self.loads.not_in_flight(&mut self.nodes, pod);
    }

    /// Counts a pod as in flight on a node, with its estimated use and what it declares, until its
    /// binding is known or the entry expires. Does nothing for an unknown node, and for a pod that is known to be
    /// bound.
    pub fn count_in_flight(
        &mut self,
        namespace: &str,
        pod: &PodUid,
        node: &NodeName,
        now: Timestamp,
        uses: Amounts,
        declares: Rates,
    ) {
        let policy = &self.policy.policy;
        let declares = if policy.demand.are_on() { declares } else { Rates::NONE };
        let has_effect =
            !policy.hot.is_empty() || policy.estimates.is_some() || !declares.is_none();
        let (loads, nodes) = (&mut self.loads, &mut self.nodes);
        if !has_effect || !nodes.has_joined(node) {
            return;
        }
        let Ok(lost) = loads.in_flight.insert((namespace, pod), node, uses, now) else { return };
        if let Some((lost, entry)) = lost {
            loads.change(nodes, &entry.node, |recent| recent.remove_in_flight(&lost));
        }
        loads.change(nodes, node, |recent| {
            let changed = recent.in_flight(pod, now, uses);
            if changed && !declares.is_none() {
                recent.declared(pod, now, declares);
            }
            changed
        });
    }

    /// An in-flight pod has volumes that are bound before it is: it counts for longer.
    pub fn wait_for_volumes(&mut self, pod: &PodUid) {
        if let Some(node) = self.loads.in_flight.wait_for_volumes(pod) {
            self.loads.change(&mut self.nodes, &node, |recent| recent.waits_for_volumes(pod));
        }
    }
}

impl Loads {
    /// Records the end of a pod on `node`: it no longer uses anything.
    pub(super) fn ended(&mut self, nodes: &mut Nodes, pod: &PodUid, node: &NodeName) {
        self.not_in_flight(nodes, pod);
        self.change(nodes, node, |recent| recent.ended(pod));
    }

    fn not_in_flight(&mut self, nodes: &mut Nodes, pod: &PodUid) {
        if let Some(in_flight) = self.in_flight.remove(pod) {
            self.change(nodes, &in_flight.node, |recent| recent.remove_in_flight(pod));
        }
    }

    /// What a pod declares that the watch shows as bound, or ended, no longer counts as in flight: its node's requests
    /// have it.
    pub(super) fn forget_declared(&mut self, nodes: &mut Nodes, pod: &PodRequest) {
        let expected = self.in_flight.node(&pod.uid).filter(|node| **node != pod.node).cloned();
        for node in expected.iter().chain([&pod.node]) {
            self.change(nodes, node, |recent| recent.forget_declared(&pod.uid));
        }
    }

    /// Changes the recent pods of a node. `change` returns whether it has changed anything.
    pub(super) fn change(
        &mut self,
        nodes: &mut Nodes,
        name: &NodeName,
        change: impl FnOnce(&mut RecentPods) -> bool,
    ) {
        let known = nodes.get(name).and_then(|node| node.load.as_ref());
        let Some(load) = known else {
            if let Some(early) = self.early.get_mut(name) {
                change(early);
            }
            return;
        };
        let mut recent = RecentPods::clone(&load.recent);
        if change(&mut recent) {
            nodes.change_known(name, |node| {
                if let Some(load) = &mut node.load {
                    load.recent = Arc::new(recent);
                }
            });
        }
    }
}

/// Whether a binding at `at` still affects decisions at `now`. A time far in the future does not count: it would count
/// until then, and displace the node's other bindings.
pub(in crate::view) fn is_recent(policy: &LoadPolicy, at: Timestamp, now: Timestamp) -> bool {
    is_fresh(at, now, policy.binding_horizon())
}

/// Whether a pod that was bound at `at` counts at `now` if its containers have not started.
pub(in crate::view) fn may_start(policy: &LoadPolicy, at: Timestamp, now: Timestamp) -> bool {
    policy.estimates.is_some() && is_fresh(at, now, STARTS_WITHIN)
}

/// The load data of a node's object: its load without readings and recent pods.
struct NodeUpdate<'f> {
    facts: &'f NodeFacts,
    crane_hot_value: Option<HotValueNote>,
    speeds: PerDemand<Option<u64>>,
}

impl NodeUpdate<'_> {
    /// Whether a known load has the same data.
    fn is_of(&self, known: &NodeLoad) -> bool {
        known.crane_hot_value == self.crane_hot_value
            && known.capacity == self.facts.capacity
            && known.speeds == self.speeds
            && known.created_at == self.facts.created_at
            && *known.labels == self.facts.labels
            && known.is_to_be_removed == self.facts.taints.is_deletion_candidate()
            && known.repels_pods == self.facts.taints.repel_pods()
    }

    /// The load of a node that was known before.
    fn with(&self, known: &NodeLoad) -> NodeLoad {
        let labels = if *known.labels == self.facts.labels {
            Arc::clone(&known.labels)
        } else {
            Arc::new(self.facts.labels.clone())
        };
        let requested_cpu = known.requested_cpu;
        let declared = known.declared.clone();
        NodeLoad { requested_cpu, declared, ..self.load(Arc::clone(&known.recent), labels) }
    }

    /// The load of a node that joins. Pods may have been bound to it already.
    fn joined(&self, early: &mut HashMap<NodeName, RecentPods>) -> NodeLoad {
        let recent = early.remove(&self.facts.name).unwrap_or_default();
        self.load(Arc::new(recent), Arc::new(self.facts.labels.clone()))
    }

    fn load(&self, recent: Arc<RecentPods>, labels: Arc<Labels>) -> NodeLoad {
        NodeLoad {
            readings: Arc::default(),
            recent,
            crane_hot_value: self.crane_hot_value,
            capacity: self.facts.capacity,
            requested_cpu: None,
            speeds: self.speeds,
            declared: None,
            labels,
            is_to_be_removed: self.facts.taints.is_deletion_candidate(),
            repels_pods: self.facts.taints.repel_pods(),
            created_at: self.facts.created_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// No nodes are known, and a binding counts for 5 minutes.
    fn index() -> Index {
        let policy = LoadPolicy::from_yaml(
            "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {hotValue: [{timeRange: 5m, \
             count: 1}]}",
        );
        Index::new(policy.unwrap(), false)
    }

    #[test]
    fn pods_that_name_nodes_that_do_not_exist_take_bounded_memory() {
        let mut index = index();
        for pod in 0..2 * MAX_EARLY {
            let (uid, node) = (PodUid::from(format!("p{pod}")), NodeName::from(format!("n{pod}")));
            index.record_binding(&uid, &node, Timestamp::UNIX_EPOCH, None);
        }
        assert_eq!(index.loads.early.len(), MAX_EARLY);
    }

    #[test]
    fn old_bindings_to_nodes_that_do_not_exist_leave_room_for_new_ones() {
        let mut index = index();
        let mut bind = |number: usize, at| {
            let node = NodeName::from(format!("n{number}"));
            index.record_binding(&PodUid::from(format!("p{number}")), &node, at, None);
        };
        (0..MAX_EARLY).for_each(|number| bind(number, Timestamp::UNIX_EPOCH));
        let later = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(5);
        bind(MAX_EARLY, later);
        let early = index.loads.early;
        assert_eq!((early.len(), early.contains_key("n1024")), (1, true));
    }
}
