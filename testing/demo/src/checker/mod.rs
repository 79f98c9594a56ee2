//! The checker counts what must never happen. It knows the machines' real GPUs and loads, and reads API objects and
//! what processes see.
//!
//! It shares no code with Plimsoll: [`crate::model`] reads claims, readings and records a second time. Invariants: a
//! count never decreases; every wrong thing is a finding, and one finding fails the run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sim::kubelet::{Process, ProcessEvent};
use sim::scheduler::{Decision, Verdict};

use crate::model::loads::Loads;
use crate::model::nodes::{GPU_MIB, UNIT_MIB};
use crate::model::objects::{
    annotated_overload, claim, daemon_node, gpu_of, has_ended, is_daemon, is_running, name,
    peak_units, text, uid,
};
use crate::model::policy::Policy;

/// Longest time from a node's true overload to the extender's knowledge of it. The exporter samples every second and
/// the annotator polls every two; the rest is for a machine that is busy with something else.
const REACTION: Duration = Duration::from_secs(20);
/// Longest time from an overload in the node's annotations to the extender's knowledge of it.
const DELIVERY: Duration = Duration::from_secs(10);
/// Age at which a pod that fits must run.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The counts, as the demo's last line shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Pods created in the whole run.
    pub(crate) pods: usize,
    /// Pods that were bound.
    pub(crate) bound: usize,
    /// Pods that ran, ended ones included.
    pub(crate) running: usize,
    /// Pods that are neither bound nor deleted.
    pub(crate) pending: usize,
    /// MiB promised beyond a GPU's memory: the largest excess of each GPU, summed over all GPUs.
    pub(crate) double_booked_mib: u64,
    /// Containers that saw a GPU other than their claim's, or none, or more.
    #[serde(rename = "card_mismatches")]
    pub(crate) gpu_mismatches: usize,
    /// Pods placed on overloaded nodes.
    pub(crate) hot_node_placements: usize,
}

impl Counts {
    /// Whether everything that must never happen was counted 0 times.
    pub(crate) fn is_clean(&self) -> bool {
        (self.double_booked_mib, self.gpu_mismatches, self.hot_node_placements) == (0, 0, 0)
    }
}

/// What the checker knows of one pod.
#[derive(Debug, Default)]
struct PodRecord {
    name: String,
    /// The newest resource version seen.
    version: String,
    seen_since: Option<Instant>,
    node: Option<String>,
    /// Containers whose start was seen.
    started: BTreeSet<String>,
    ran: bool,
    /// Whether its processes have ended.
    ended: bool,
    deleted: bool,
    /// The kubelet's message, where it refused the pod.
    failed: Option<String>,
}

/// MiB by pod UID, for each GPU UUID.
type MibByGpu = BTreeMap<String, BTreeMap<String, u64>>;

/// The checker's records.
pub(crate) struct Checker {
    loads: Loads,
    /// By UID.
    pods: BTreeMap<String, PodRecord>,
    /// Nodes that their annotations show overloaded, with the time at which they began to.
    annotated_overload: BTreeMap<String, Instant>,
    /// Nodes of which the extender has said that it rejects them for their load.
    rejected_by_extender: BTreeSet<String>,
    /// By the claims of bound pods.
    claimed: MibByGpu,
    /// By the GPUs that processes see.
    visible: MibByGpu,
    /// MiB promised beyond a GPU's memory at the worst moment.
    worst_excess: BTreeMap<String, u64>,
    gpu_mismatches: usize,
    hot_node_placements: usize,
    /// Containers with GPU memory whose GPUs were checked.
    pub(crate) checked_containers: usize,
    /// What went wrong, for people.
    pub(crate) findings: Vec<String>,
}

impl Checker {
    pub(crate) fn new(loads: Loads) -> Self {
        Self {
            loads,
            pods: BTreeMap::new(),
            annotated_overload: BTreeMap::new(),
            rejected_by_extender: BTreeSet::new(),
            claimed: BTreeMap::new(),
            visible: BTreeMap::new(),
            worst_excess: BTreeMap::new(),
            gpu_mismatches: 0,
            hot_node_placements: 0,
            checked_containers: 0,
            findings: Vec::new(),
        }
    }

    /// Takes note of a node that was created or changed.
    pub(crate) fn node_applied(&mut self, node: &Value, now: Instant) {
        if annotated_overload(node, self.loads.policy().limits()).is_any() {
            self.annotated_overload.entry(name(node).to_owned()).or_insert(now);
        } else {
            self.annotated_overload.remove(name(node));
            self.rejected_by_extender.remove(name(node));
        }
    }

    /// From now on any pod placed on this node counts at once, until the node's annotations show no overload. Does
    /// nothing where they show none, and returns whether they do.
    pub(crate) fn extender_rejects(&mut self, node: &str) -> bool {
        let is_annotated = self.annotated_overload.contains_key(node);
        if is_annotated {
            self.rejected_by_extender.insert(node.to_owned());
        }
        is_annotated
    }

    /// Takes note of a pod that was created or changed.
    pub(crate) fn pod_applied(&mut self, pod: &Value, now: Instant) {
        let node = text(&pod["spec"]["nodeName"]);
        let record = self.pods.entry(uid(pod).to_owned()).or_default();
        name(pod).clone_into(&mut record.name);
        text(&pod["metadata"]["resourceVersion"]).clone_into(&mut record.version);
        record.seen_since.get_or_insert(now);
        record.ran |= is_running(pod);
        if pod["status"]["phase"] == "Failed" {
            record.failed = Some(text(&pod["status"]["message"]).to_owned());
        }
        if node.is_empty() {
            return;
        }
        let newly_bound = record.node.replace(node.to_owned()).is_none();
        if newly_bound {
            self.check_node(pod, node, now);
        }
        if has_ended(pod) {
            self.release_claim(uid(pod));
        } else {
            self.charge_claim(pod);
        }
    }

    /// Takes note of a pod that was deleted.
    pub(crate) fn pod_deleted(&mut self, pod: &Value) {
        self.pods.entry(uid(pod).to_owned()).or_default().deleted = true;
        self.release_claim(uid(pod));
    }

    /// Takes note of a process that started or ended. `pod` is its pod as the API shows it now.
    pub(crate) fn process(&mut self, event: &ProcessEvent, pod: Option<&Value>) {
        match event {
            ProcessEvent::Ended { uid } => {
                self.pods.entry(uid.clone()).or_default().ended = true;
                self.visible.values_mut().for_each(|pods| pods.retain(|pod, _| pod != uid));
            }
            ProcessEvent::Started(process) => {
                let record = self.pods.entry(process.uid.clone()).or_default();
                record.started.insert(process.container.clone());
                if let Some(pod) = pod.filter(|pod| uid(pod) == process.uid) {
                    self.check_gpus(process, pod);
                }
            }
        }
    }

    /// Whether the newest state of a pod was seen, and of a running pod the start of each container.
    pub(crate) fn has_seen(&self, pod: &Value) -> bool {
        let Some(record) = self.pods.get(uid(pod)) else { return false };
        let containers = ["initContainers", "containers"].map(|part| pod["spec"][part].as_array());
        let mut containers = containers.into_iter().flatten().flatten();
        record.version == text(&pod["metadata"]["resourceVersion"])
            && (!is_running(pod) || containers.all(|c| record.started.contains(text(&c["name"]))))
    }

    /// Takes note of an attempt of the scheduler. Where it had a choice of nodes, an extender must have given one of
    /// them points. Under crane's policy recent pods may cost all nodes all of theirs.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        if self.loads.policy() == Policy::Crane {
            return;
        }
        let fitting = decision.candidates.iter().filter(|c| c.verdict == Verdict::Fits);
        let points: Vec<i64> = fitting.map(|candidate| candidate.extender_score).collect();
        if decision.outcome.is_ok() && points.len() > 1 && points.iter().all(|points| *points == 0)
        {
            let pod = &decision.pod;
            self.report(format!("{pod} was placed though no node had a point for its load"));
        }
    }

    fn check_node(&mut self, pod: &Value, node: &str, now: Instant) {
        let pod_name = name(pod);
        if is_daemon(pod) {
            if daemon_node(pod) != Some(node) {
                self.report(format!("{pod_name} of a DaemonSet was placed on {node}"));
            }
            return;
        }
        let truly = self.loads.overloaded_since(node).map(|since| now.duration_since(since));
        let annotated = self.annotated_overload.get(node).map(|since| now.duration_since(*since));
        if truly.is_some_and(|time| time > REACTION)
            || annotated.is_some_and(|time| time > DELIVERY)
            || self.rejected_by_extender.contains(node)
        {
            self.hot_node_placements += 1;
            let seconds = truly.or(annotated).unwrap_or_default().as_secs();
            self.report(format!("{pod_name} was placed on {node}, overloaded for {seconds} s"));
        }
    }

    fn charge_claim(&mut self, pod: &Value) {
        let mib = peak_units(pod) * UNIT_MIB;
        let gpus: BTreeSet<String> = claim(pod).into_values().flatten().collect();
        for gpu in gpus {
            self.claimed.entry(gpu.clone()).or_default().insert(uid(pod).to_owned(), mib);
            self.check_memory(&gpu);
        }
    }

    fn release_claim(&mut self, uid: &str) {
        self.claimed.values_mut().for_each(|pods| pods.retain(|pod, _| pod != uid));
    }

    fn check_gpus(&mut self, process: &Process, pod: &Value) {
        let claimed = claim(pod).remove(&process.container).unwrap_or_default();
        let mib = peak_units(pod) * UNIT_MIB;
        let mut gpus: BTreeSet<String> =
            process.devices.iter().map(|device| gpu_of(process, device)).collect();
        gpus.extend(process.env.get("PLIMSOLL_GPU_UUID").cloned());
        for gpu in &gpus {
            self.visible.entry(gpu.clone()).or_default().insert(process.uid.clone(), mib);
            self.check_memory(gpu);
        }
        self.checked_containers += usize::from(mib > 0);
        // Where NVIDIA's runtime hook is installed beside CDI, any other value would add GPUs.
        let visible = process.env.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str);
        let hook_is_off = claimed.is_empty() || visible == Some("void");
        if gpus != claimed || !hook_is_off || (mib > 0 && claimed.is_empty()) {
            self.gpu_mismatches += 1;
            let Process { pod, container, node, .. } = process;
            self.report(format!(
                "{pod}/{container} on {node} claims {claimed:?} and sees {gpus:?} (visible: {visible:?})"
            ));
        }
    }

    fn check_memory(&mut self, gpu: &str) {
        let promised = mib_on(gpu, &self.claimed).max(mib_on(gpu, &self.visible));
        let excess = promised.saturating_sub(GPU_MIB);
        let worst = self.worst_excess.entry(gpu.to_owned()).or_default();
        if excess > *worst {
            *worst = excess;
            self.report(format!("GPU {gpu}: {promised} MiB promised of {GPU_MIB}"));
        }
    }

    fn report(&mut self, finding: String) {
        self.findings.push(finding);
    }

    /// What is wrong with the pods at the scenario's end: each of the `created` pods must have run, and run still
    /// unless it was deleted. The pod named `waiting` must not have been placed.
    pub(crate) fn unfinished(&self, created: usize, waiting: &str) -> Vec<String> {
        let count = self.pods.len();
        let lost =
            (count != created).then(|| format!("{created} pods were made, {count} were seen"));
        lost.into_iter()
            .chain(self.pods.values().filter_map(|record| record.fault(waiting)))
            .collect()
    }

    /// Reports what is wrong with the `created` pods when a run is ended at any time. A pod younger than
    /// [`START_LIMIT`] need not run yet. The pod named `waiting` must not have been placed.
    pub(crate) fn check_at_end(&mut self, created: &BTreeSet<String>, waiting: &str, now: Instant) {
        // Pods that a user made with kubectl are left out.
        for record in self.pods.values().filter(|r| created.contains(&r.name) && !r.deleted) {
            let is_late =
                record.seen_since.is_some_and(|since| now.duration_since(since) > START_LIMIT);
            if record.ran || record.failed.is_some() || is_late {
                self.findings.extend(record.fault(waiting));
            }
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        let pods: Vec<&PodRecord> = self.pods.values().collect();
        let waiting = pods.iter().filter(|pod| pod.node.is_none() && !pod.deleted);
        Counts {
            pods: pods.len(),
            bound: pods.iter().filter(|pod| pod.node.is_some()).count(),
            running: pods.iter().filter(|pod| pod.ran).count(),
            pending: waiting.count(),
            double_booked_mib: self.worst_excess.values().sum(),
            gpu_mismatches: self.gpu_mismatches,
            hot_node_placements: self.hot_node_placements,
        }
    }
}

fn mib_on(gpu: &str, mib: &MibByGpu) -> u64 {
    mib.get(gpu).map_or(0, |pods| pods.values().sum::<u64>())
}

impl PodRecord {
    /// What is wrong with the pod, if it should run by now; the pod named `waiting` should not be placed.
    fn fault(&self, waiting: &str) -> Option<String> {
        let Self { name, ran, ended, deleted, failed, .. } = self;
        if name == waiting {
            return self.node.as_ref().map(|node| format!("{waiting} was placed, on {node}"));
        }
        let node = self.node.as_deref().unwrap_or("no node");
        if let Some(why) = failed {
            Some(format!("{name} was refused by {node}: {why}"))
        } else if !ran {
            Some(format!("{name} is on {node} and did not run"))
        } else if *ended && !deleted {
            Some(format!("{name} ended on {node}, though it was not deleted"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
