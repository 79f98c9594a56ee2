//! The pods of this node: a cache that a watch fills, and reads of single pods from the API server.
//!
//! Invariant: the cache holds a past state of the API server. It may be late, so callers that need the
//! current state read the pod.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cluster::{Deletion, Event, Events, MpsConflict, PodFacts};
use futures::StreamExt;
use futures::future::BoxFuture;
use placement::gpu::ContainerRequest;
use placement::names::Names;
use placement::units::PodUid;
use tokio::sync::watch;

/// Digits of a container id; all container runtimes use this length.
const CONTAINER_ID: usize = 64;

/// The id of a container: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Box<str>);

impl ContainerId {
    /// The id in a container's `containerID` of a pod's status, such as `containerd://ID`.
    pub fn of_status(text: &str) -> Option<Self> {
        Self::parse(text.split_once("://")?.1)
    }

    /// The id of these digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == CONTAINER_ID && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { Some(Self(text.into())) } else { None }
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod's namespace and name. The kubelet's PodResources API has no UIDs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name, unique in its namespace at one time; another pod can have it later.
    pub name: String,
}

/// The fields of a log line about a pod, by which the lines of all programs about it are found:
/// docs/monitoring.md#logs. They are absent where the pod is not known.
pub(crate) struct PodFields<'a> {
    pub uid: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub pod: Option<&'a str>,
}

impl<'a> PodFields<'a> {
    /// The fields of that pod.
    pub(crate) fn of(facts: Option<&'a PodFacts>) -> Self {
        Self {
            uid: facts.map(|facts| facts.uid.as_str()),
            namespace: facts.map(|facts| facts.namespace.as_str()),
            pod: facts.map(|facts| facts.name.as_str()),
        }
    }

    /// The fields of a pod of which only this is known.
    pub(crate) fn named(uid: Option<&'a PodUid>, name: Option<&'a PodRef>) -> Self {
        Self {
            uid: uid.map(PodUid::as_str),
            namespace: name.map(|name| name.namespace.as_str()),
            pod: name.map(|name| name.name.as_str()),
        }
    }
}

impl PodRef {
    /// The pod `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The namespace and name of that pod.
    pub fn of(facts: &PodFacts) -> Self {
        Self::new(&facts.namespace, &facts.name)
    }

    /// Whether that pod has this name.
    pub fn is_of(&self, facts: &PodFacts) -> bool {
        self.namespace == facts.namespace && self.name == facts.name
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The requests of a pod's containers, in the order in which the kubelet admits them. Empty for a pod that
/// requests no units, and for one whose request cannot be parsed.
pub fn container_requests(facts: &PodFacts) -> impl Iterator<Item = &ContainerRequest> {
    facts.gpu_pod().into_iter().flat_map(|gpu| gpu.request.containers())
}

/// Reads one pod from the API server.
pub trait ReadPod: Send + Sync {
    /// The current pod; `None` if no pod has that name. The error is a sentence for logs and events.
    fn read<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>>;
}

/// Reads pods from the real API server.
#[derive(Clone)]
pub struct ApiServer {
    /// The client, with its address and credentials.
    pub client: cluster::Client,
    /// Resource and annotation names.
    pub names: Names,
    /// Time for one read; a later answer is an error.
    pub limit: Duration,
}

impl ReadPod for ApiServer {
    fn read<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>> {
        Box::pin(async move {
            match cluster::get_pod(&self.client, &pod.namespace, &pod.name, self.limit).await {
                Ok(found) => Ok(found.map(|pod| pod.facts(&self.names))),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

/// A pod of this node, and the ids of its containers.
#[derive(Debug, Clone)]
pub struct NodePod {
    /// The pod's facts.
    pub facts: Arc<PodFacts>,
    /// Container names by container id, from the pod's status.
    pub containers: Arc<BTreeMap<ContainerId, String>>,
    /// Whether it has resource claims (DRA), whose devices the kubelet keeps in other records.
    pub has_resource_claims: bool,
    /// The names of its resource claims that exist.
    pub resource_claims: Vec<String>,
    /// Why a container of it cannot be a client of MPS, where it has resource claims.
    pub mps_conflict: Option<MpsConflict>,
    /// Its deletion, once it has begun.
    pub deletion: Option<Deletion>,
    /// Whether its containers are being killed without a deletion: its kubelet ends it, or it is Failed while not all
    /// of them have ended.
    pub is_killed: bool,
    /// Whether a container with units fails at its start.
    pub fails_at_start: bool,
}

impl NodePod {
    /// Converts a pod. Container ids of an unknown form are left out.
    pub fn of(pod: &cluster::Pod, names: &Names) -> Self {
        let mut containers = BTreeMap::new();
        for (name, id) in pod.container_ids() {
            if let Some(id) = ContainerId::of_status(id) {
                containers.insert(id, name.to_owned());
            }
        }
        let facts = pod.facts(names);
        // A pod that was refused at admission has no container.
        let runs = !containers.is_empty() && !facts.stopped;
        Self {
            is_killed: runs && (facts.finished || pod.is_ended_by_kubelet()),
            facts: Arc::new(facts),
            containers: Arc::new(containers),
            has_resource_claims: pod.has_resource_claims(),
            mps_conflict: pod
                .mps_conflicts()
                .into_values()
                .next()
                .filter(|_| pod.has_resource_claims()),
            resource_claims: pod.resource_claims().into_iter().map(str::to_owned).collect(),
            deletion: pod.deletion(),
            fails_at_start: pod.fails_at_start(names),
        }
    }
}

/// A pod whose containers the kubelet has not reported.
impl From<PodFacts> for NodePod {
    fn from(facts: PodFacts) -> Self {
        Self {
            facts: Arc::new(facts),
            containers: Arc::default(),
            has_resource_claims: false,
            resource_claims: Vec::new(),
            mps_conflict: None,
            deletion: None,
            is_killed: false,
            fails_at_start: false,
        }
    }
}

/// The pods that are bound to this node, as the watch last showed them.
#[derive(Debug, Default)]
pub struct PodCache {
    pods: RwLock<HashMap<PodRef, NodePod>>,
    changes: watch::Sender<u64>,
    listed: watch::Sender<bool>,
}

impl PodCache {
    /// The pod of that name.
    pub fn get(&self, pod: &PodRef) -> Option<Arc<PodFacts>> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.get(pod).map(|pod| pod.facts.clone())
    }

    /// The pod of that name, if it has that UID or the UID is not known.
    pub fn find(&self, pod: &PodRef, uid: Option<&PodUid>) -> Option<Arc<PodFacts>> {
        let facts = self.get(pod)?;
        if uid.is_none_or(|uid| *uid == facts.uid) { Some(facts) } else { None }
    }

    /// The pod of that UID.
    pub fn by_uid(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.values().find(|pod| pod.facts.uid == *uid).map(|pod| pod.facts.clone())
    }

    /// Every pod, in no order, finished ones included.
    pub fn all(&self) -> Vec<Arc<PodFacts>> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.values().map(|pod| pod.facts.clone()).collect()
    }

    /// The pods of which a container with units fails at its start.
    pub fn failing_at_start(&self) -> Vec<Arc<PodFacts>> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.values().filter(|pod| pod.fails_at_start).map(|pod| pod.facts.clone()).collect()
    }

    /// Every pod by its UID, with the ids of its containers.
    pub fn by_uids(&self) -> HashMap<PodUid, NodePod> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.values().map(|pod| (pod.facts.uid.clone(), pod.clone())).collect()
    }

    /// A receiver of changes from now on. The number counts events and has no other meaning.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits for the watch's first whole list.
    pub async fn listed(&self) {
        // Fails only without a sender, and `self` holds it.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Whether the watch has had its first whole list.
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Applies one watch event.
    pub fn apply(&self, event: Event<NodePod>) {
        let is_whole_list = matches!(event, Event::Listed(_));
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Listing => {}
            Event::Listed(all) => {
                *pods = all.into_iter().map(|pod| (PodRef::of(&pod.facts), pod)).collect();
            }
            Event::Applied(pod) => drop(pods.insert(PodRef::of(&pod.facts), pod)),
            Event::Gone(pod) => drop(pods.remove(&PodRef::of(&pod.facts))),
        }
        drop(pods);
        if is_whole_list {
            self.listed.send_replace(true);
        }
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Applies the events of a watch until it ends.
    pub async fn follow(&self, mut events: Events<NodePod>) {
        while let Some(event) = events.next().await {
            self.apply(event);
        }
    }
}
