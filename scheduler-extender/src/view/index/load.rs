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

use super::{Index, Notice, PodRequest};

/// The largest number of nodes whose bindings are kept before the watch shows the node. A pod's author can name any
/// node, also one that does not exist.
const MAX_EARLY: usize = 1024;

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
            None => update.joined(&mut self.early),
        };
        let policy = Arc::clone(&self.policy);
        let now = self.now;
        self.change_node(&facts.name, |node| {
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
        let in_flight = self.in_flight.remove(pod);
        if let Some(in_flight) = in_flight.as_ref().filter(|in_flight| in_flight.node != *node) {
            self.change_recent(&in_flight.node, |recent| recent.remove_in_flight(pod));
        }
        let amounts = uses.or(in_flight.map(|in_flight| in_flight.uses)).unwrap_or_default();
        if self.has_joined(node) {
            self.change_recent(node, |recent| recent.bound(pod, at, amounts, horizon));
            return;
        }
        // The watches of pods and nodes are not ordered against each other.
        if self.early.len() >= MAX_EARLY {
            // Nodes that never joined, or were deleted.
            self.early.retain(|_, recent| recent.within(horizon, at) > 0);
        }
        if self.early.len() < MAX_EARLY || self.early.contains_key(node) {
            self.early.entry(node.clone()).or_default().bound(pod, at, amounts, horizon);
        }
    }

    /// Records that all containers of a pod on `node` had started at `at`: readings show it from then on.
    pub(super) fn record_start(&mut self, pod: &PodUid, node: &NodeName, at: Timestamp) {
        self.change_recent(node, |recent| recent.started(pod, at));
    }

    /// Ends the pod's in-flight entry, as at its next scheduling attempt, in which it must not count itself.
    pub fn not_in_flight(&mut self, pod: &PodUid) {
        if let Some(in_flight) = self.in_flight.remove(pod) {
            self.change_recent(&in_flight.node, |recent| recent.remove_in_flight(pod));
        }
    }

    /// Records the end of a pod on `node`: it no longer uses anything.
    pub(super) fn record_end(&mut self, node: &NodeName, pod: &PodUid) {
        self.not_in_flight(pod);
        self.change_recent(node, |recent| recent.ended(pod));
    }

    /// What a pod declares that the watch shows as bound, or ended, no longer counts as in flight: its node's requests
    /// have it.
    pub(super) fn forget_declared_in_flight(&mut self, pod: &PodRequest) {
        let expected = self.in_flight.node(&pod.uid).filter(|node| **node != pod.node).cloned();
        for node in expected.iter().chain([&pod.node]) {
            self.change_recent(node, |recent| recent.forget_declared(&pod.uid));
        }
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
        if !has_effect || !self.has_joined(node) {
            return;
        }
        let Ok(lost) = self.in_flight.insert((namespace, pod), node, uses, now) else { return };
        if let Some((lost, entry)) = lost {
            self.change_recent(&entry.node, |recent| recent.remove_in_flight(&lost));
        }
        self.change_recent(node, |recent| {
            let changed = recent.in_flight(pod, now, uses);
            if changed && !declares.is_none() {
                recent.declared(pod, now, declares);
            }
            changed
        });
    }

    /// An in-flight pod has volumes that are bound before it is: it counts for longer.
    pub fn wait_for_volumes(&mut self, pod: &PodUid) {
        if let Some(node) = self.in_flight.wait_for_volumes(pod) {
            self.change_recent(&node, |recent| recent.waits_for_volumes(pod));
        }
    }

    /// Changes the recent pods of a node. `change` returns whether it has changed anything.
    fn change_recent(&mut self, name: &NodeName, change: impl FnOnce(&mut RecentPods) -> bool) {
        let known = self.nodes.get(name).and_then(|node| node.load.as_ref());
        let Some(load) = known else {
            if let Some(early) = self.early.get_mut(name) {
                change(early);
            }
            return;
        };
        let mut recent = RecentPods::clone(&load.recent);
        if change(&mut recent) {
            self.change_known(name, |node| {
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
        assert_eq!(index.early.len(), MAX_EARLY);
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
        let early = index.early;
        assert_eq!((early.len(), early.contains_key("n1024")), (1, true));
    }
}
