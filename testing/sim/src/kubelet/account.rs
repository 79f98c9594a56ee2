//! The device manager's account: the pods in the order of their admission, the ids that each container holds, and the
//! ids that count as taken.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_api::v1beta1::ContainerAllocateResponse;
use prost::Message as _;
use serde_json::{Value, json};

/// The plugin's Allocate response for each container, by the container's name.
pub type Answers = BTreeMap<String, ContainerAllocateResponse>;
/// Device ids.
pub type Ids = BTreeSet<String>;

/// What kind of container it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// An init container: runs to its end before the next container starts.
    Init,
    /// An init container with `restartPolicy: Always`: keeps running.
    Sidecar,
    /// A container of `spec.containers`.
    App,
}

/// A container as far as the device manager reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The container's name.
    pub name: String,
    /// Its kind.
    pub part: Part,
    /// Number of devices that it asks for.
    pub size: usize,
}

/// A pod as far as the device manager reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Its containers in the order of their admission: init containers and sidecars first.
    pub containers: Vec<ContainerSpec>,
}

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodKey {
    namespace: String,
    name: String,
}

impl PodKey {
    /// Of these two.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// The pod of this name in the namespace `default`.
impl From<&str> for PodKey {
    fn from(name: &str) -> Self {
        Self::new("default", name)
    }
}

/// The pod of this name in the namespace `default`.
impl From<&String> for PodKey {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl PodSpec {
    /// The pod's namespace and name.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.name)
    }
}

/// A pod on the node, with the ids and answers of each container.
#[derive(Debug, Clone)]
pub(super) struct PodOnNode {
    pub(super) spec: PodSpec,
    pub(super) held: BTreeMap<String, Ids>,
    pub(super) answers: Answers,
    /// Whether its containers have stopped. It stays in the account until the next [`Account::collect`].
    pub(super) dead: bool,
}

/// The account of one node.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) pods: Vec<PodOnNode>,
    /// Ids that count as taken: those of `pods`, and those whose Allocate is under way.
    pub(super) taken: Ids,
    /// The pods as they were written last. It survives the kubelet's process.
    checkpoint: Vec<PodOnNode>,
    /// Whether the pods that were there at the start are still being admitted. Until then no pod counts as dead.
    starting: bool,
}

impl Account {
    /// Adds a pod without devices, unless it is there.
    pub(super) fn add(&mut self, spec: PodSpec) {
        if self.pod(&spec.key()).is_none() {
            let held = BTreeMap::new();
            let answers = Answers::new();
            self.pods.push(PodOnNode { spec, held, answers, dead: false });
        }
    }

    pub(super) fn pod(&self, key: &PodKey) -> Option<&PodOnNode> {
        self.pods.iter().find(|pod| pod.spec.key() == *key && !pod.dead)
    }

    /// Whether a container of a pod that is there asks for devices.
    pub(super) fn asks(&self, pod: &PodKey, container: &str) -> bool {
        let containers = self.pod(pod).into_iter().flat_map(|on| &on.spec.containers);
        containers.filter(|spec| spec.name == container).any(|spec| spec.size > 0)
    }

    pub(super) fn ids(&self, pod: &PodKey, container: &str) -> Ids {
        self.pod(pod).and_then(|pod| pod.held.get(container)).cloned().unwrap_or_default()
    }

    pub(super) fn answers(&self, pod: &PodKey) -> Answers {
        self.pod(pod).map(|pod| pod.answers.clone()).unwrap_or_default()
    }

    pub(super) fn hold(
        &mut self,
        pod: &PodKey,
        container: &str,
        ids: Ids,
        answer: ContainerAllocateResponse,
    ) {
        if let Some(pod) = self.pods.iter_mut().find(|on| on.spec.key() == *pod && !on.dead) {
            pod.held.insert(container.to_owned(), ids);
            pod.answers.insert(container.to_owned(), answer);
        }
    }

    pub(super) fn remove(&mut self, pod: &PodKey) {
        self.pods.retain(|on| on.spec.key() != *pod);
        self.rebuild();
    }

    pub(super) fn stop(&mut self, pod: &PodKey) {
        for on in self.pods.iter_mut().filter(|on| on.spec.key() == *pod) {
            on.dead = true;
        }
    }

    /// Removes dead pods (UpdateAllocatedDevices). If there is one, the taken ids are counted anew from the pods alone,
    /// and ids whose Allocate is under way are forgotten (kubernetes/kubernetes#137534).
    pub(super) fn collect(&mut self) {
        if !self.starting && self.pods.iter().any(|pod| pod.dead) {
            self.pods.retain(|pod| !pod.dead);
            self.rebuild();
        }
    }

    /// Writes the checkpoint: after each admission and after each device list.
    pub(super) fn write_checkpoint(&mut self) {
        self.checkpoint = self.pods.clone();
    }

    /// Starts anew from the checkpoint. Pods that have been removed since it was written are there again.
    pub(super) fn restore(&mut self) {
        let mut pods = self.checkpoint.clone();
        for pod in &mut pods {
            pod.dead = self.pod(&pod.spec.key()).is_none();
        }
        self.pods = pods;
        self.starting = true;
        self.rebuild();
    }

    /// Forgets the devices of all pods, as a kubelet that finds no checkpoint.
    pub(super) fn lose_checkpoint(&mut self) {
        for pod in &mut self.pods {
            pod.held.clear();
            pod.answers.clear();
        }
        self.write_checkpoint();
        self.rebuild();
    }

    /// Notes that the pods that were there at the start are admitted.
    pub(super) fn started(&mut self) {
        self.starting = false;
    }

    /// The checkpoint as the kubelet writes it to its file. `resource` is the plugin's, `registered` has the
    /// healthy ids of all plugins by resource.
    pub(super) fn checkpoint(&self, resource: &str, registered: &BTreeMap<String, Ids>) -> Value {
        let entries = self.checkpoint.iter().flat_map(|pod| {
            pod.held.iter().map(move |(container, ids)| {
                let answer = pod.answers.get(container).cloned().unwrap_or_default();
                json!({
                    "PodUID": pod.spec.uid, "ContainerName": container, "ResourceName": resource,
                    "DeviceIDs": {"-1": ids}, "AllocResp": BASE64_STANDARD.encode(answer.encode_to_vec()),
                })
            })
        });
        let entries: Vec<Value> = entries.collect();
        json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 0})
    }

    /// The ids in the checkpoint.
    pub(super) fn written(&self) -> Ids {
        self.checkpoint.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect()
    }

    fn rebuild(&mut self) {
        self.taken =
            self.pods.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect();
    }

    /// Ids of the pod's init containers that no sidecar or app container has taken over.
    pub(super) fn reusable(&self, pod: &PodKey) -> Ids {
        let Some(on) = self.pod(pod) else { return Ids::new() };
        let mut by_init = Ids::new();
        let mut by_others = Ids::new();
        for container in &on.spec.containers {
            let ids = on.held.get(&container.name).into_iter().flatten().cloned();
            if container.part == Part::Init {
                by_init.extend(ids);
            } else {
                by_others.extend(ids);
            }
        }
        &by_init - &by_others
    }

    /// Ids that two pods hold at the same time.
    pub(super) fn doubles(&self) -> Ids {
        let mut seen = Ids::new();
        let mut doubles = Ids::new();
        for pod in &self.pods {
            let ids: BTreeSet<&String> = pod.held.values().flatten().collect();
            let again = ids.into_iter().filter(|id| !seen.insert((*id).clone()));
            doubles.extend(again.cloned());
        }
        doubles
    }
}
