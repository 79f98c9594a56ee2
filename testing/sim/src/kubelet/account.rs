//! The device manager's books: pods in the order of their admission, what each container holds,
//! what counts as taken.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_api::v1beta1::ContainerAllocateResponse;

/// What the plugin answered for each container.
pub type Answers = BTreeMap<String, ContainerAllocateResponse>;
/// A set of device ids.
pub type Ids = BTreeSet<String>;

/// How a container takes part in its pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that keeps running.
    Sidecar,
    /// An ordinary container.
    App,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// Its part in the pod's life.
    pub part: Part,
    /// How many devices it asks for.
    pub size: usize,
}

/// One pod, init containers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its containers in the order of their admission.
    pub containers: Vec<ContainerSpec>,
}

/// Which pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodKey {
    namespace: String,
    name: String,
}

impl PodKey {
    /// The one of this name in this namespace.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// A name alone is one in `default`.
impl From<&str> for PodKey {
    fn from(name: &str) -> Self {
        Self::new("default", name)
    }
}

/// As of a `&str`.
impl From<&String> for PodKey {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl PodSpec {
    /// Which pod it is of.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.name)
    }
}

/// A pod on the node.
#[derive(Debug, Clone)]
pub(super) struct PodOnNode {
    pub(super) spec: PodSpec,
    pub(super) held: BTreeMap<String, Ids>,
    pub(super) answers: Answers,
    /// Its containers have stopped, but nobody has taken it off the books.
    pub(super) dead: bool,
}

/// All books.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) pods: Vec<PodOnNode>,
    /// Ids that count as taken. Meant to be those of `pods` and those in flight.
    pub(super) taken: Ids,
    /// What was last written down: survives the process.
    checkpoint: Vec<PodOnNode>,
    /// Until the first pods after a start are admitted, nothing counts as dead.
    starting: bool,
}

impl Account {
    /// A pod that was there before keeps what it holds.
    pub(super) fn add(&mut self, spec: PodSpec) {
        if self.pod(&spec.key()).is_none() {
            let (held, answers) = (BTreeMap::new(), Answers::new());
            self.pods.push(PodOnNode { spec, held, answers, dead: false });
        }
    }

    pub(super) fn pod(&self, key: &PodKey) -> Option<&PodOnNode> {
        self.pods.iter().find(|pod| pod.spec.key() == *key && !pod.dead)
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

    /// UpdateAllocatedDevices: with a dead pod on the books, everything is counted anew from what is
    /// written down, so that ids in flight are forgotten (kubernetes/kubernetes#137534).
    pub(super) fn collect(&mut self) {
        if !self.starting && self.pods.iter().any(|pod| pod.dead) {
            self.pods.retain(|pod| !pod.dead);
            self.rebuild();
        }
    }

    /// Written after each admission and after each device list.
    pub(super) fn write_checkpoint(&mut self) {
        self.checkpoint = self.pods.clone();
    }

    /// Starts anew from what was written down. Pods that have gone since are on the books still.
    pub(super) fn restore(&mut self) {
        let alive = |key: &PodKey| self.pod(key).is_some();
        let mut pods = self.checkpoint.clone();
        pods.iter_mut().for_each(|pod| pod.dead = !alive(&pod.spec.key()));
        self.pods = pods;
        self.starting = true;
        self.rebuild();
    }

    /// All pods that there were at the start have been admitted.
    pub(super) fn started(&mut self) {
        self.starting = false;
    }

    /// Ids that are written down as taken.
    pub(super) fn written(&self) -> Ids {
        self.checkpoint.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect()
    }

    fn rebuild(&mut self) {
        self.taken =
            self.pods.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect();
    }

    /// Ids of the pod's init containers that no sidecar or app container has taken over yet.
    pub(super) fn reusable(&self, pod: &PodKey) -> Ids {
        let Some(on) = self.pod(pod) else { return Ids::new() };
        let held = |init: bool| -> Ids {
            let which = on.spec.containers.iter().filter(|c| (c.part == Part::Init) == init);
            which.filter_map(|container| on.held.get(&container.name)).flatten().cloned().collect()
        };
        &held(true) - &held(false)
    }

    /// Ids that two pods hold at once.
    pub(super) fn doubles(&self) -> Ids {
        let (mut seen, mut doubles) = (Ids::new(), Ids::new());
        for pod in &self.pods {
            let ids: BTreeSet<&String> = pod.held.values().flatten().collect();
            let again = ids.into_iter().filter(|id| !seen.insert((*id).clone()));
            doubles.extend(again.cloned());
        }
        doubles
    }
}
