//! The device manager's books: pods in the order of their admission, what each container holds,
//! what counts as taken.

use std::collections::{BTreeMap, BTreeSet};

/// How a container takes part in its pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Init,
    Sidecar,
    App,
}

/// One container.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    pub name: String,
    pub part: Part,
    pub size: usize,
}

/// One pod: init containers first.
#[derive(Debug, Clone)]
pub struct PodSpec {
    pub namespace: String,
    pub name: String,
    pub containers: Vec<ContainerSpec>,
}

/// A pod on the node.
#[derive(Clone)]
pub struct PodOnNode {
    pub spec: PodSpec,
    pub held: BTreeMap<String, BTreeSet<String>>,
    /// Its containers have stopped, but nobody has taken it off the books.
    pub dead: bool,
}

/// All books.
#[derive(Default)]
pub struct Account {
    pub pods: Vec<PodOnNode>,
    /// Ids that count as taken. Meant to be those of `pods` and those in flight.
    pub taken: BTreeSet<String>,
    /// What was last written down: survives the process.
    checkpoint: Vec<PodOnNode>,
    /// Until the first pods after a start are admitted, nothing counts as dead.
    starting: bool,
}

impl Account {
    pub fn add(&mut self, spec: PodSpec) {
        self.pods.push(PodOnNode { spec, held: BTreeMap::new(), dead: false });
    }

    pub fn pod(&self, name: &str) -> Option<&PodOnNode> {
        self.pods.iter().find(|pod| pod.spec.name == name && !pod.dead)
    }

    pub fn ids(&self, pod: &str, container: &str) -> BTreeSet<String> {
        self.pod(pod).and_then(|pod| pod.held.get(container)).cloned().unwrap_or_default()
    }

    pub fn hold(&mut self, pod: &str, container: &str, ids: BTreeSet<String>) {
        if let Some(pod) = self.pods.iter_mut().find(|on| on.spec.name == pod && !on.dead) {
            pod.held.insert(container.to_owned(), ids);
        }
    }

    pub fn remove(&mut self, pod: &str) {
        self.pods.retain(|on| on.spec.name != pod);
        self.rebuild();
    }

    pub fn stop(&mut self, pod: &str) {
        for on in self.pods.iter_mut().filter(|on| on.spec.name == pod) {
            on.dead = true;
        }
    }

    /// UpdateAllocatedDevices: with a dead pod on the books, everything is counted anew from what
    /// is written down, so that ids in flight are forgotten.
    pub fn collect(&mut self) {
        if !self.starting && self.pods.iter().any(|pod| pod.dead) {
            self.pods.retain(|pod| !pod.dead);
            self.rebuild();
        }
    }

    /// Written after each admission and after each device list.
    pub fn write_checkpoint(&mut self) {
        self.checkpoint = self.pods.clone();
    }

    /// Starts anew from what was written down. Pods that have gone since are on the books still.
    pub fn restore(&mut self) {
        let alive = |name: &str| self.pods.iter().any(|pod| pod.spec.name == name && !pod.dead);
        let mut pods = self.checkpoint.clone();
        pods.iter_mut().for_each(|pod| pod.dead = !alive(&pod.spec.name));
        self.pods = pods;
        self.starting = true;
        self.rebuild();
    }

    /// All pods that there were at the start have been admitted.
    pub fn started(&mut self) {
        self.starting = false;
    }

    /// Ids that are written down as taken.
    pub fn written(&self) -> BTreeSet<String> {
        self.checkpoint.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect()
    }

    fn rebuild(&mut self) {
        self.taken =
            self.pods.iter().flat_map(|pod| pod.held.values().flatten().cloned()).collect();
    }

    /// Ids of the pod's init containers, which later containers take over.
    pub fn reusable(&self, pod: &str) -> BTreeSet<String> {
        let Some(on) = self.pod(pod) else { return BTreeSet::new() };
        let inits = on.spec.containers.iter().filter(|container| container.part == Part::Init);
        inits
            .flat_map(|container| on.held.get(&container.name).into_iter().flatten().cloned())
            .collect()
    }

    pub fn doubles(&self) -> BTreeSet<String> {
        let (mut seen, mut doubles) = (BTreeSet::new(), BTreeSet::new());
        for pod in &self.pods {
            let ids: BTreeSet<&String> = pod.held.values().flatten().collect();
            for id in ids {
                if !seen.insert(id.clone()) {
                    doubles.insert(id.clone());
                }
            }
        }
        doubles
    }
}
