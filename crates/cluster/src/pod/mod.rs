//! Reads a Pod object into facts.
//!
//! The watch and the Pod that kube-scheduler sends with every request are read in the same way.

mod declared;
mod ending;
mod expected_use;
mod gpu;
mod resources;
mod start;
mod words;
mod workload;

pub use declared::Declared;
pub use ending::Deletion;
pub use expected_use::ExpectedUseError;
pub(crate) use resources::thousandths;

pub use gpu::{GpuAnnotation, GpuRequestError, MAX_GPU_POD, ValueError};

use std::collections::{BTreeMap, HashMap};

use api::stored::{Moment, time};
use jiff::Timestamp;
use placement::gpu::{Claim, GpuRequest, MpsConflict};
use placement::load::PodKind;
use placement::names::{Names, limits};
use placement::node_rules::Toleration;
use placement::units::{NodeName, PodUid};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::gpu::ClaimError;
use crate::meta::{Meta, core_resource, null_is_default};
use crate::quantity::Quantities;
use words::Words;

/// The parts of a v1 Pod that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Pod {
    #[serde(default)]
    pub(crate) metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

core_resource!(Pod, NamespaceResourceScope, "Pod", "pods");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "null_is_default")]
    node_name: String,
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "null_is_default")]
    init_containers: Vec<Container>,
    #[serde(deserialize_with = "null_is_default")]
    priority_class_name: String,
    #[serde(deserialize_with = "null_is_default")]
    runtime_class_name: String,
    #[serde(rename = "hostIPC", deserialize_with = "null_is_default")]
    host_ipc: bool,
    #[serde(deserialize_with = "null_is_default")]
    priority: i32,
    #[serde(deserialize_with = "null_is_default")]
    preemption_policy: String,
    /// Requests and limits of the pod as a whole.
    #[serde(deserialize_with = "null_is_default")]
    resources: Resources,
    /// Claims of dynamic resource allocation.
    #[serde(deserialize_with = "null_is_default")]
    resource_claims: Vec<PodResourceClaim>,
    /// What the sandbox takes in addition to the containers, by the pod's RuntimeClass.
    #[serde(deserialize_with = "null_is_default")]
    overhead: Quantities,
    #[serde(deserialize_with = "null_is_default")]
    tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "null_is_default")]
    volumes: Vec<Volume>,
    #[serde(deserialize_with = "null_is_default")]
    scheduling_group: SchedulingGroup,
}

/// Where kube-scheduler places pods together: from Kubernetes 1.37 on, with its feature gate.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SchedulingGroup {
    #[serde(deserialize_with = "null_is_default")]
    pod_group_name: String,
}

/// An entry of a pod's resource claims.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodResourceClaim {
    /// The name within the pod.
    #[serde(deserialize_with = "null_is_default")]
    name: String,
    /// The ResourceClaim; in a spec, none where it is made of a template.
    #[serde(deserialize_with = "null_is_default")]
    resource_claim_name: String,
}

/// Only whether it is one of a claim is read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<IgnoredAny>,
    /// A volume of a claim of its own, by a template.
    ephemeral: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "null_is_default")]
    name: String,
    image: Option<String>,
    command: Words,
    args: Words,
    #[serde(deserialize_with = "null_is_default")]
    resources: Resources,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    volume_mounts: Vec<VolumeMount>,
    #[serde(deserialize_with = "null_is_default")]
    volume_devices: Vec<VolumeDevice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeMount {
    #[serde(deserialize_with = "null_is_default")]
    mount_path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeDevice {
    #[serde(deserialize_with = "null_is_default")]
    device_path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "null_is_default")]
    requests: Quantities,
    #[serde(deserialize_with = "null_is_default")]
    limits: Quantities,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_is_default")]
    phase: String,
    /// Why the kubelet or another component ended the pod as a whole.
    #[serde(deserialize_with = "null_is_default")]
    reason: String,
    /// The same in words.
    #[serde(deserialize_with = "null_is_default")]
    message: String,
    start_time: Option<Moment>,
    /// The node where kube-scheduler has evicted pods for this one.
    #[serde(deserialize_with = "null_is_default")]
    nominated_node_name: String,
    #[serde(deserialize_with = "null_is_default")]
    conditions: Vec<PodCondition>,
    #[serde(deserialize_with = "null_is_default")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_is_default")]
    init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_is_default")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
    /// The claims that were made of templates, by the names of the spec's entries.
    #[serde(deserialize_with = "null_is_default")]
    resource_claim_statuses: Vec<PodResourceClaim>,
    /// The claim that kube-scheduler made for resources of containers that a DRA driver serves.
    extended_resource_claim_status: Option<PodResourceClaim>,
    /// What the kubelet has admitted for the pod as a whole.
    #[serde(deserialize_with = "null_is_default")]
    allocated_resources: Quantities,
    /// What is in force for the pod as a whole.
    #[serde(deserialize_with = "null_is_default")]
    resources: Resources,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    #[serde(deserialize_with = "null_is_default")]
    name: String,
    /// `containerd://ID`; of the container that runs, or of the last that ran.
    #[serde(rename = "containerID", deserialize_with = "null_is_default")]
    container_id: String,
    /// What the kubelet has admitted.
    #[serde(deserialize_with = "null_is_default")]
    allocated_resources: Quantities,
    /// What is in force.
    #[serde(deserialize_with = "null_is_default")]
    resources: Resources,
    #[serde(deserialize_with = "null_is_default")]
    state: ContainerState,
    /// The state of the container before its last restart.
    #[serde(deserialize_with = "null_is_default")]
    last_state: ContainerState,
}

/// The kubelet sets one of its three members.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    running: Option<RunTimes>,
    terminated: Option<RunTimes>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    #[serde(deserialize_with = "null_is_default")]
    reason: String,
    #[serde(deserialize_with = "null_is_default")]
    message: String,
}

/// Of a container that could not be started, `startedAt` is absent or the epoch.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RunTimes {
    #[serde(deserialize_with = "time")]
    started_at: Option<Timestamp>,
    #[serde(deserialize_with = "time")]
    finished_at: Option<Timestamp>,
    /// Of a container that has ended; 0 without an error.
    #[serde(deserialize_with = "null_is_default")]
    exit_code: i64,
}

impl ContainerState {
    /// When it started and ended; `None` if it has not run. The end is `None` while it runs.
    fn run(&self) -> Option<(Timestamp, Option<Timestamp>)> {
        let times = self.running.as_ref().or(self.terminated.as_ref())?;
        let started_at = times.started_at.filter(|at| *at > Timestamp::UNIX_EPOCH)?;
        Some((started_at, times.finished_at))
    }
}

/// When a pod's containers ran, by its kubelet's last report. Init containers do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerRuns {
    /// When all of them had started, by their first starts that are known.
    pub started_at: Timestamp,
    /// Since when all of them have run without a restart.
    pub from: Timestamp,
    /// When the first of them ended; `None` while all run.
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodCondition {
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    kind: String,
    #[serde(deserialize_with = "null_is_default")]
    status: String,
    #[serde(deserialize_with = "null_is_default")]
    reason: String,
    #[serde(deserialize_with = "time")]
    last_transition_time: Option<Timestamp>,
}

/// A PodGroup: kube-scheduler places its pods together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodGroup {
    /// Its namespace, which is that of its pods.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The facts of a pod that requests GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPod {
    /// What it requests; if there is a fault, by the limits of its containers only.
    pub request: GpuRequest,
    /// Why it cannot be placed: an annotation that cannot be read, or a request that no node can ever fulfil.
    pub fault: Option<GpuRequestError>,
    /// The annotation `gpu-isolation`, as its author wrote it, cut off after 64 characters.
    pub isolation: Option<String>,
    /// The containers that cannot be clients of NVIDIA's MPS, by name.
    pub mps_conflicts: BTreeMap<String, MpsConflict>,
    /// The claim of its annotation; `Ok(None)` if there is none, an error if Bind does not write such a claim for the
    /// pod's spec. Any user who may edit the pod can write it.
    pub claim: Result<Option<Claim>, ClaimError>,
    /// Whether its annotation says that a container has got the GPU.
    pub assigned: bool,
}

/// What the device plugin adds to the text of a refusal that is the node's fault and not the pod's. The kubelet copies
/// it into the pod's status. Without it, a refusal says nothing of the node: other device plugins refuse in the same
/// way, and a pod can be refused for its own spec.
pub const NODE_FAULT: &str = "(the fault is the node's)";

/// How the kubelet refuses a pod by itself where it has no device plugin for a resource, or none with a healthy device:
/// `devicesToAllocate`, `allocateContainerResources` and `endpointImpl` of its device manager. The resource's name
/// follows. Too few free devices are not among them: other pods hold the rest.
const WITHOUT_PLUGIN: [&str; 5] = [
    "no healthy devices present; cannot allocate unhealthy devices",
    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices",
    "cannot allocate unregistered device",
    "unknown Device Plugin",
    // The endpoint is printed with its fields.
    "endpoint &{",
];

/// Whether the message is one of the kubelet's own for this resource, and not for one whose name contains it.
fn is_without_plugin(message: &str, resource: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
    WITHOUT_PLUGIN.iter().any(|text| {
        let Some((_, rest)) = message.split_once(text) else { return false };
        rest.split(|c| !is_part(c)).any(|word| word == resource)
    })
}

/// The facts of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The version of the object that these are of; `None` where it has none.
    pub version: Option<String>,
    /// The node that it is bound to.
    pub node: Option<NodeName>,
    /// Whether a DaemonSet owns it.
    pub kind: PodKind,
    /// The node on which kube-scheduler has evicted pods for it; `None` once it is bound.
    pub nominated_node: Option<NodeName>,
    /// The group that kube-scheduler places together with it.
    pub group: Option<PodGroup>,
    /// The facts of its GPU request; `Ok(None)` if it has none.
    pub gpu: Result<Option<GpuPod>, GpuRequestError>,
    /// Whether its kubelet has reported that it admitted the pod: `status.startTime`, which the kubelet sets in its
    /// first report, after it has allocated devices to the pod.
    pub admitted: bool,
    /// Whether its phase is Succeeded or Failed: it holds nothing any more.
    pub finished: bool,
    /// Whether it was refused for a fault of the node. At admission: it is Failed with the reason
    /// `UnexpectedAdmissionError`, and the message has the device plugin's [`NODE_FAULT`], or says in the kubelet's own
    /// words that there is no plugin, or none with a healthy device, for our resource. After it: a container that
    /// requests units waits in `CreateContainerError` or `RunContainerError`, and the message says that the runtime
    /// cannot give it its GPU.
    pub refused: bool,
    /// Whether a container of it that requests units has run.
    pub started: bool,
    /// Whether its kubelet has reported all of its containers as ended. The kubelet does so before it removes a deleted
    /// pod, except after a deletion by force.
    pub stopped: bool,
    /// Whether its deletion has begun.
    pub deleting: bool,
    /// Its priority, if kube-scheduler has found no node for it and it may preempt others.
    pub waits_at: Option<i32>,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When it was bound.
    pub bound_at: Option<Timestamp>,
}

/// Since when kube-scheduler has found no node for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It has not tried yet, or has found a node.
    None,
    /// Since that time.
    Since(Timestamp),
    /// Not known: the pod may have had scheduling gates, and kube-scheduler does not try pods with gates.
    Unknown,
}

impl PodFacts {
    /// Whether it may have processes: it is bound, and its kubelet has not reported that all have ended. The kubelet
    /// reports the admission of a pod only after it has allocated its devices, so a pod without that report may run
    /// already.
    pub fn may_run(&self) -> bool {
        self.node.is_some() && !self.finished && !self.stopped
    }

    /// The facts of its GPU request; `None` if it has none, or if that cannot be read.
    pub fn gpu_pod(&self) -> Option<&GpuPod> {
        self.gpu.as_ref().ok()?.as_ref()
    }

    /// Its claim; `None` if it has none that agrees with its spec.
    pub fn claim(&self) -> Option<&Claim> {
        self.gpu_pod()?.claim.as_ref().ok()?.as_ref()
    }
}

impl Pod {
    /// Its namespace; empty where the object has none.
    pub fn namespace(&self) -> &str {
        self.metadata.object.namespace.as_deref().unwrap_or_default()
    }

    /// Its name; empty where the object has none.
    pub fn name(&self) -> &str {
        self.metadata.object.name.as_deref().unwrap_or_default()
    }

    /// Its UID; empty where the object has none.
    pub fn uid(&self) -> PodUid {
        PodUid::from(self.metadata.object.uid.as_deref().unwrap_or_default())
    }

    /// The same pod under another UID.
    #[must_use]
    pub fn with_uid(mut self, uid: String) -> Self {
        self.metadata.object.uid = Some(uid);
        self
    }

    /// The node that it is bound to.
    pub fn node(&self) -> Option<&str> {
        Some(self.spec.node_name.as_str()).filter(|node| !node.is_empty())
    }

    /// The node where kube-scheduler has evicted pods for it; `None` once it is bound.
    pub fn nominated_node(&self) -> Option<&str> {
        let node = self.status.nominated_node_name.as_str();
        Some(node).filter(|node| !node.is_empty() && self.node().is_none())
    }

    /// The group that kube-scheduler places together with it.
    pub fn group(&self) -> Option<PodGroup> {
        let name = &self.spec.scheduling_group.pod_group_name;
        let namespace = self.namespace().to_owned();
        let is_name = (1..=limits::NAME).contains(&name.len());
        is_name.then(|| PodGroup { namespace, name: name.clone() })
    }

    /// Its priority.
    pub fn priority(&self) -> i32 {
        self.spec.priority
    }

    /// Whether it is not known what it requests, since not every field of its spec or its metadata could be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.metadata.lost.iter().any(|field| !field.starts_with("status"))
    }

    /// Whether it has devices by resource claims: its own, or one that kube-scheduler made for its requests.
    pub fn has_resource_claims(&self) -> bool {
        let by_request = self.status.extended_resource_claim_status.is_some();
        by_request || !self.spec.resource_claims.is_empty()
    }

    /// The names of its ResourceClaims, which are in its namespace. One that is still to be made of a template is not
    /// among them.
    pub fn resource_claims(&self) -> Vec<&str> {
        let mut made: HashMap<&str, &str> = HashMap::new();
        for PodResourceClaim { name, resource_claim_name, .. } in
            &self.status.resource_claim_statuses
        {
            made.insert(name, resource_claim_name);
        }
        let mut names = Vec::new();
        for entry in &self.spec.resource_claims {
            let of_template = made.get(&*entry.name).copied().unwrap_or_default();
            let own = entry.resource_claim_name.as_str();
            names.push(if own.is_empty() { of_template } else { own });
        }
        let by_request = self.status.extended_resource_claim_status.as_ref();
        names.extend(by_request.map(|made| made.resource_claim_name.as_str()));
        names.retain(|name| !name.is_empty());
        names
    }

    /// Its only ResourceClaim; `None` where it has none or several, or where it is still to be made.
    pub fn sole_resource_claim(&self) -> Option<&str> {
        let ([_], [name]) = (&self.spec.resource_claims[..], &self.resource_claims()[..]) else {
            return None;
        };
        Some(name)
    }

    /// Whether it has volumes of claims, which kube-scheduler may have to bind before the pod.
    pub fn has_volume_claims(&self) -> bool {
        self.spec
            .volumes
            .iter()
            .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
    }

    /// Names and ids of its started containers of every kind, by the kubelet's last report. Ids have the form
    /// `containerd://ID`.
    pub fn container_ids(&self) -> impl Iterator<Item = (&str, &str)> {
        let Status { container_statuses, init_container_statuses, .. } = &self.status;
        [container_statuses, init_container_statuses, &self.status.ephemeral_container_statuses]
            .into_iter()
            .flatten()
            .filter(|status| !status.container_id.is_empty())
            .map(|status| (status.name.as_str(), status.container_id.as_str()))
    }

    /// Whether other pods may be evicted for it: not if its preemption policy is Never.
    pub fn may_preempt(&self) -> bool {
        self.spec.preemption_policy != "Never"
    }

    /// Whether its deletion has begun.
    pub fn is_deleting(&self) -> bool {
        self.metadata.object.deletion_timestamp.is_some()
    }

    /// The number of its spec's versions, from 1 on.
    pub fn generation(&self) -> i64 {
        self.metadata.object.generation.unwrap_or_default()
    }

    /// When its kubelet admitted it.
    pub(crate) fn started_at(&self) -> Option<Timestamp> {
        self.status.start_time?.at
    }

    /// The name of its priority class; empty where it has none.
    pub fn priority_class(&self) -> &str {
        &self.spec.priority_class_name
    }

    /// Whether kube-scheduler has tried it and found no node. False for a pod behind scheduling gates.
    pub fn is_unschedulable(&self) -> bool {
        // kube-scheduler writes SchedulerError after an extender's error.
        self.status.conditions.iter().any(|c| {
            let reason = c.reason.as_str();
            c.kind == "PodScheduled"
                && c.status == "False"
                && matches!(reason, "Unschedulable" | "SchedulerError")
        })
    }

    /// Since when kube-scheduler has found no node for it.
    ///
    /// The condition `PodScheduled` of a pod with scheduling gates is False from its creation on, and keeps that time
    /// once the gates are gone. Taking a gate away raises `metadata.generation` above 1.
    pub fn wait(&self) -> Wait {
        let condition =
            self.status.conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "False");
        let never_changed = self.metadata.object.generation == Some(1);
        match condition.map(|c| (c.reason.as_str(), c.last_transition_time)) {
            // kube-scheduler writes SchedulerError after an extender's error: the pod waits too.
            Some(("Unschedulable" | "SchedulerError", Some(since))) if never_changed => {
                Wait::Since(since)
            }
            Some(("Unschedulable" | "SchedulerError" | "SchedulingGated", _)) => Wait::Unknown,
            _ => Wait::None,
        }
    }

    /// When its containers ran, by a report that is received at `now`; `None` unless all of them have started. The
    /// times are of the node's clock, so none counts that is before the binding or after `now`.
    pub fn container_runs(&self, now: Timestamp) -> Option<ContainerRuns> {
        let statuses = &self.status.container_statuses;
        if statuses.is_empty() || statuses.len() < self.spec.containers.len() {
            return None;
        }
        let mut all: Option<ContainerRuns> = None;
        for status in statuses {
            let last = status.state.run();
            let before = status.last_state.run();
            let (from, until) = last.or(before)?;
            let started_at = before.map_or(from, |(before, _)| from.min(before));
            let run = ContainerRuns { started_at, from, until };
            all = Some(all.map_or(run, |all| ContainerRuns {
                started_at: all.started_at.max(run.started_at),
                from: all.from.max(run.from),
                until: all.until.into_iter().chain(run.until).min(),
            }));
        }
        let bound_at = self.bound_at().unwrap_or(Timestamp::MIN);
        let possible = |at: Timestamp| at.max(bound_at).min(now);
        all.map(|all| ContainerRuns {
            started_at: possible(all.started_at),
            from: possible(all.from),
            until: all.until.map(possible),
        })
    }

    /// When it ended, at `now` at the latest: the last change of its conditions; `None` where it has not ended.
    pub fn ended_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.is_finished() {
            return None;
        }
        self.status.conditions.iter().filter_map(|c| Some(c.last_transition_time?.min(now))).max()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    fn is_refused(&self, names: &Names) -> bool {
        let Status { phase, reason, message, .. } = &self.status;
        phase == "Failed"
            && reason == "UnexpectedAdmissionError"
            && (message.contains(NODE_FAULT) || is_without_plugin(message, names.gpu_resource()))
    }

    fn is_stopped(&self) -> bool {
        let Status { container_statuses: apps, init_container_statuses: inits, .. } = &self.status;
        !apps.is_empty() && apps.iter().chain(inits).all(|of| of.state.terminated.is_some())
    }

    /// The taints that it tolerates.
    pub fn tolerations(&self) -> &[Toleration] {
        &self.spec.tolerations
    }

    /// Whether its node made it, from a manifest of its own: an eviction does not end it.
    pub fn is_static(&self) -> bool {
        self.metadata.owners.iter().any(|owner| owner.kind == "Node")
    }

    /// Whether a DaemonSet owns it, as the pod's controller.
    pub fn kind(&self) -> PodKind {
        if self.metadata.owners.iter().any(|o| o.controller && o.kind == "DaemonSet") {
            PodKind::Daemon
        } else {
            PodKind::Ordinary
        }
    }

    /// All facts of it.
    pub fn facts(&self, names: &Names) -> PodFacts {
        let meta = &self.metadata.object;
        PodFacts {
            uid: self.uid(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            version: meta.resource_version.clone().filter(|version| !version.is_empty()),
            node: self.node().map(NodeName::from),
            nominated_node: self.nominated_node().map(NodeName::from),
            group: self.group(),
            kind: self.kind(),
            gpu: self.gpu(names),
            admitted: self.status.start_time.is_some(),
            finished: self.is_finished(),
            refused: self.is_refused(names) || self.cannot_start(names),
            started: self.has_started(names),
            stopped: self.is_stopped(),
            deleting: meta.deletion_timestamp.is_some(),
            waits_at: self.waits().then(|| self.priority()),
            created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
            bound_at: self.bound_at(),
        }
    }

    fn waits(&self) -> bool {
        let is_free = self.node().is_none() && !self.is_finished() && !self.is_deleting();
        is_free && self.is_unschedulable() && self.may_preempt()
    }

    fn bound_at(&self) -> Option<Timestamp> {
        let condition = self
            .status
            .conditions
            .iter()
            .find(|c| c.kind == "PodScheduled" && c.status == "True")?;
        condition.last_transition_time
    }
}
