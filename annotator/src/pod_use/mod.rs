//! The use of pods, from the exporters' answers, joined to the pods' workloads.
//!
//! Invariants: a node reports only its own pods: a UID counts only if the pod is bound to the node that reports it; use
//! is limited to the node's capacity; observations that may come from a restart or a changed clock are dropped.

pub(crate) mod leaders_list;
pub(crate) mod serve;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use api::pods::{NodePods, PodUse};
use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::learning::Learner;
use placement::resources::{PerResource, PodResources};
use placement::units::{NodeName, PodUid};
use placement::workload::WorkloadId;

use self::leaders_list::{LeadersList, take_over};
use crate::pods::BoundPod;

/// The path of the list of workloads, which every replica serves.
const PATH: &str = "/v1/workloads";

/// The longest time between two answers that are compared: the mean over a longer time says little about a minute.
const MAX_SPAN: SignedDuration = SignedDuration::from_mins(15);

/// The allowed difference between the node's clock and ours in the time between two answers, if a quarter of that time
/// is less.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(10);

/// How much more than its capacity a node can use: the counters and the times are not read at the same instant.
const CAPACITY_TOLERANCE: f64 = 1.25;

/// The learner, which the controller fills and the server reads. Where the leader's list is needed too, it is locked
/// first.
pub(crate) type SharedLearner = Arc<Mutex<Learner>>;

/// The numbers of pods in one answer. One of which one amount was learned and the other refused counts as both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ObservedPods {
    /// Observations that were learned.
    pub observed: u64,
    /// Pods that are not bound to the node by our watch. Some are deleted, or not in the watch yet.
    pub elsewhere: u64,
    /// Pods with an amount beyond the node's capacity.
    pub refused: u64,
}

/// The pods of each node, with their last counters.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    learner: SharedLearner,
    list: LeadersList,
    pods: HashMap<PodUid, PlacedPod>,
    /// Each workload of `pods`, once.
    workloads: HashSet<Arc<WorkloadId>>,
    nodes: HashMap<NodeName, NodeRecord>,
}

/// A pod of a workload.
#[derive(Debug)]
struct PlacedPod {
    node: NodeName,
    workload: Arc<WorkloadId>,
    resources: PodResources,
}

#[derive(Debug, Default)]
struct NodeRecord {
    capacity: PerResource<Option<f64>>,
    last: Option<LastAnswer>,
}

#[derive(Debug)]
struct LastAnswer {
    /// By the node's clock.
    time: Timestamp,
    /// By ours.
    received: Timestamp,
    /// The CPU seconds of the node's own pods.
    cpu: HashMap<PodUid, Option<f64>>,
}

impl Observer {
    /// An observer without nodes and pods.
    pub(crate) fn new(learner: SharedLearner, list: LeadersList) -> Self {
        Self { learner, list, ..Self::default() }
    }

    /// This replica leads from `now` on. The leader before has learned from the pods until then, so what it had learned
    /// counts, and the next answers are compared with none before.
    pub(crate) fn begin_to_lead(&mut self, now: Timestamp) {
        take_over(&self.learner, &self.list, now);
        self.nodes.values_mut().for_each(|node| node.last = None);
    }

    /// Applies a complete list of bound pods.
    pub(crate) fn pods_listed(&mut self, pods: &[BoundPod]) {
        let present: HashSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let gone: Vec<PodUid> =
            self.pods.keys().filter(|uid| !present.contains(uid)).cloned().collect();
        for uid in gone {
            self.pod_gone(&uid);
        }
        for pod in pods {
            self.pod_applied(pod);
        }
    }

    /// A bound pod is new or has changed.
    pub(crate) fn pod_applied(&mut self, pod: &BoundPod) {
        let Some(pod_workload) = &pod.workload else { return self.pod_gone(&pod.uid) };
        let workload = match self.workloads.get(&pod_workload.workload) {
            Some(known) => Arc::clone(known),
            None => Arc::new(pod_workload.workload.clone()),
        };
        self.workloads.insert(Arc::clone(&workload));
        let placed =
            PlacedPod { node: pod.node.clone(), workload, resources: pod_workload.resources };
        if let Some(before) = self.pods.insert(pod.uid.clone(), placed) {
            self.release(before);
        }
    }

    /// A pod was deleted.
    pub(crate) fn pod_gone(&mut self, uid: &PodUid) {
        if let Some(placed) = self.pods.remove(uid) {
            self.release(placed);
        }
    }

    /// Drops a workload with its last pod.
    fn release(&mut self, placed: PlacedPod) {
        let workload = placed.workload;
        // This reference, and the one in the set.
        if Arc::strong_count(&workload) == 2 {
            self.workloads.remove(&workload);
        }
    }

    /// Applies a complete list of nodes.
    pub(crate) fn nodes_listed(&mut self, nodes: &[NodeFacts]) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        self.nodes.retain(|name, _| present.contains(name));
        for facts in nodes {
            self.node_applied(facts);
        }
    }

    /// A node is new or has changed.
    pub(crate) fn node_applied(&mut self, facts: &NodeFacts) {
        self.nodes.entry(facts.name.clone()).or_default().capacity = facts.capacity;
    }

    /// A node was deleted.
    pub(crate) fn node_gone(&mut self, name: &NodeName) {
        self.nodes.remove(name);
    }

    /// Records the exporter's answer for `node` at `now`, and learns from the difference to its last answer.
    pub(crate) fn record_answer(
        &mut self,
        node: &NodeName,
        answer: &NodePods,
        now: Timestamp,
    ) -> ObservedPods {
        let mut counts = ObservedPods::default();
        let Some(record) = self.nodes.get_mut(node) else { return counts };
        // The pods that are bound to the node. One that is listed twice counts once.
        let mut own: HashMap<&PodUid, (&PlacedPod, &PodUse)> = HashMap::new();
        for pod in &answer.pods {
            if let Some(placed) = self.pods.get(&pod.uid)
                && placed.node == *node
            {
                own.insert(&pod.uid, (placed, pod));
            }
        }
        counts.elsewhere = (answer.pods.len() - own.len()) as u64;
        let cpu = own.values().map(|(_, pod)| (pod.uid.clone(), pod.cpu_seconds_total)).collect();
        let last = LastAnswer { time: answer.time, received: now, cpu };
        let Some(before) = record.last.replace(last) else { return counts };
        let Some(span) = before.span(answer.time, now) else { return counts };
        let mut learner = self.learner.lock().unwrap_or_else(PoisonError::into_inner);
        for (uid, (placed, pod)) in own {
            let Some(cpu_before) = before.cpu.get(uid) else { continue };
            let Some(used) = mean_use(pod, *cpu_before, span) else { continue };
            let possible = within(&record.capacity, used);
            counts.refused += u64::from(possible != used);
            counts.observed += 1;
            learner.observe(&placed.workload, &placed.resources, possible, span, now);
        }
        counts
    }
}

impl LastAnswer {
    /// The time from this answer to one with the time `time`, received at `now`; `None` if it is too long, or one of
    /// the clocks was set in between.
    fn span(&self, time: Timestamp, now: Timestamp) -> Option<SignedDuration> {
        let span = time.duration_since(self.time);
        let by_our_clock = now.duration_since(self.received);
        if !span.is_positive() || !by_our_clock.is_positive() || span > MAX_SPAN {
            return None;
        }
        let tolerance = CLOCK_TOLERANCE.max(by_our_clock / 4);
        ((span - by_our_clock).abs() <= tolerance).then_some(span)
    }
}

/// The mean use over `span` in cores, and the bytes at its end; `None` if neither is known, or the counter went back,
/// as after a restart.
fn mean_use(
    pod: &PodUse,
    cpu_before: Option<f64>,
    span: SignedDuration,
) -> Option<PerResource<Option<f64>>> {
    // 0 is no value: the containers of such a pod run outside of its control group, and older exporters report 0 for
    // it.
    let now = pod.cpu_seconds_total.filter(|seconds| *seconds != 0.0);
    let seconds = now.zip(cpu_before).map(|(now, before)| now - before);
    if seconds.is_some_and(|seconds| seconds < 0.0) {
        return None;
    }
    let cpu = seconds.map(|seconds| seconds / span.as_secs_f64());
    let memory = pod.memory_used_bytes.filter(|bytes| *bytes > 0).map(|bytes| bytes as f64);
    (cpu.is_some() || memory.is_some()).then_some(PerResource { cpu, memory })
}

/// Drops amounts beyond the node's capacity.
fn within(
    capacity: &PerResource<Option<f64>>,
    used: PerResource<Option<f64>>,
) -> PerResource<Option<f64>> {
    PerResource::of(|resource| {
        let amount = (*used.get(resource))?;
        let is_possible =
            capacity.get(resource).is_none_or(|most| amount <= most * CAPACITY_TOLERANCE);
        is_possible.then_some(amount)
    })
}

#[cfg(test)]
mod tests;
