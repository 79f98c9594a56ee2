//! A model of the API server, its watches, the nodes and their kubelets. What the extender does is real.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use cluster::{Event, NodeFacts, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, Gpu, GpuRequest};
use placement::units::{NodeName, PodUid, Units};

use super::ways::{LookUp, Request, Way};
use crate::binder::machine::Bindings;
use crate::view::{Current, GpuPodId, Index, PodUse, WatchedPod, fixtures};

/// Of each GPU.
pub(super) const UNITS: u32 = 16;

/// A pod as the API server has it.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) slot: usize,
    pub(super) uid: String,
    pub(super) units: u32,
    pub(super) version: usize,
    pub(super) node: Option<usize>,
    pub(super) claim: Option<String>,
    /// What Bind wrote.
    pub(super) chosen: Option<String>,
    pub(super) admitted: Option<String>,
    pub(super) failed: bool,
    /// Its containers have ended when its object goes.
    pub(super) stopped: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) exists: bool,
    pub(super) gpus: Vec<String>,
    report: Vec<Gpu>,
}

#[derive(Debug, Clone)]
pub(super) enum Listing {
    No,
    Begun,
    Read(Vec<Object>),
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) index: Index,
    current: Arc<Current>,
    pub(super) bindings: Bindings<()>,
    /// By slot, which is the name.
    pub(super) pods: BTreeMap<usize, Object>,
    pub(super) machines: Vec<Machine>,
    pub(super) ways: Vec<Way>,
    /// On their way to the API server.
    pub(super) requests: Vec<Request>,
    pub(super) look_ups: Vec<LookUp>,
    pub(super) events: VecDeque<Event<Object>>,
    pub(super) node_events: VecDeque<Event<usize>>,
    pub(super) listing: Listing,
    pub(super) settled: HashSet<PodUid>,
    /// Where pods are or were bound, by UID.
    pub(super) bound: BTreeMap<String, usize>,
    /// Pods on GPUs that were deleted by force, with GPU and units. They may still have processes.
    pub(super) lingering: Vec<(String, u32)>,
    pub(super) made: usize,
    /// Whether this replica leads.
    pub(super) leads: bool,
}

pub(super) fn name(node: usize) -> NodeName {
    format!("n{node}").into()
}

pub(super) fn id(slot: usize, uid: &str) -> GpuPodId {
    GpuPodId { uid: uid.into(), namespace: "ml".to_owned(), name: format!("p{slot}") }
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

impl Object {
    pub(super) fn id(&self) -> GpuPodId {
        id(self.slot, &self.uid)
    }

    pub(super) fn request(&self) -> GpuRequest {
        GpuRequest::single("c", Units(self.units)).unwrap()
    }

    pub(super) fn facts(&self) -> PodFacts {
        let mut facts = fixtures::gpu_pod(&self.id(), self.units, None);
        if let Ok(Some(gpu)) = &mut facts.gpu {
            let on_gpu = |gpu: &String| Claim::on_gpu(&self.request(), &gpu.as_str().into());
            gpu.claim = Ok(self.claim.as_ref().map(on_gpu));
        }
        PodFacts {
            version: Some(self.version.to_string()),
            node: self.node.map(name),
            admitted: self.admitted.is_some(),
            finished: self.failed,
            started: self.admitted.is_some(),
            stopped: self.stopped,
            ..facts
        }
    }

    fn watched(&self) -> WatchedPod {
        WatchedPod::Gpu(Box::new(self.facts()), PodUse::default())
    }

    /// The GPU that it is on, or may be: what the kubelet did, else what Bind chose, unless its claim was removed, as
    /// the device plugin then refuses it.
    pub(super) fn gpu(&self) -> Option<&String> {
        let chosen = self.chosen.as_ref().filter(|_| self.claim.is_some());
        self.admitted.as_ref().or(chosen).filter(|_| !self.failed)
    }
}

impl World {
    pub(super) fn new(nodes: usize, gpus: usize) -> Self {
        let mut index = fixtures::index();
        let machine = |node: usize| Machine {
            exists: true,
            gpus: (0..gpus).map(|gpu| format!("GPU-{node}-{gpu}")).collect(),
            report: Vec::new(),
        };
        let mut world = Self {
            current: Arc::new(index.first()),
            index,
            bindings: Bindings::default(),
            pods: BTreeMap::new(),
            machines: (0..nodes).map(machine).collect(),
            ways: Vec::new(),
            requests: Vec::new(),
            look_ups: Vec::new(),
            events: VecDeque::new(),
            node_events: VecDeque::new(),
            listing: Listing::No,
            settled: HashSet::new(),
            bound: BTreeMap::new(),
            lingering: Vec::new(),
            made: 0,
            leads: true,
        };
        (0..nodes).for_each(|node| world.report(node));
        world.restart();
        world
    }

    /// As `View::change`.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Index) -> T) -> T {
        let outcome = change(&mut self.index);
        if let Some(next) = self.index.publish(&self.current) {
            self.current = Arc::new(next);
        }
        outcome
    }

    /// The pod has changed.
    pub(super) fn show(&mut self, slot: usize) {
        if let Some(pod) = self.pods.get_mut(&slot) {
            pod.version += 1;
            self.events.push_back(Event::Applied(pod.clone()));
        }
    }

    pub(super) fn create(&mut self, slot: usize, units: u32) {
        if self.pods.contains_key(&slot) {
            return;
        }
        self.made += 1;
        let pod = Object {
            slot,
            uid: format!("uid-{}", self.made),
            units,
            version: 0,
            node: None,
            claim: None,
            chosen: None,
            admitted: None,
            failed: false,
            stopped: true,
        };
        self.pods.insert(slot, pod);
        self.show(slot);
    }

    /// A pod that is not bound changes.
    pub(super) fn touch(&mut self, slot: usize, units: u32) {
        if let Some(pod) = self.pods.get_mut(&slot).filter(|pod| pod.node.is_none()) {
            pod.units = units;
            self.show(slot);
        }
    }

    pub(super) fn delete(&mut self, slot: usize, by_force: bool) {
        let Some(mut pod) = self.pods.remove(&slot) else { return };
        if by_force && pod.admitted.is_none() {
            pod.stopped = false;
            self.lingering.extend(pod.gpu().map(|gpu| (gpu.clone(), pod.units)));
        }
        self.events.push_back(Event::Gone(pod));
    }

    /// The time for reports of pods that nobody saw ending is over.
    pub(super) fn pass_time(&mut self) {
        self.lingering.clear();
        self.change(|index| index.end_departures(Timestamp::MAX));
    }

    pub(super) fn edit(&mut self, slot: usize, gpu: Option<usize>) {
        let bound = self.pods.get_mut(&slot).and_then(|pod| pod.node.map(|node| (pod, node)));
        let Some((pod, node)) = bound else { return };
        let gpus = &self.machines[node].gpus;
        pod.claim = gpu.map(|gpu| gpus.get(gpu).cloned().unwrap_or("GPU-none".to_owned()));
        self.show(slot);
    }

    /// Another scheduler binds the pod, without a claim.
    pub(super) fn take_away(&mut self, slot: usize, node: usize) {
        if let Some(pod) = self.pods.get_mut(&slot).filter(|pod| pod.node.is_none()) {
            pod.node = Some(node);
            self.bound.insert(pod.uid.clone(), node);
            self.show(slot);
        }
    }

    pub(super) fn admit(&mut self, slot: usize) {
        let is_new = |pod: &&Object| pod.admitted.is_none() && !pod.failed;
        let Some(pod) = self.pods.get(&slot).filter(is_new) else { return };
        let Some(node) = pod.node else { return };
        // The device plugin goes by what a user has written; the extender is to have had the time to see it.
        let is_seen = self.events.is_empty() && matches!(self.listing, Listing::No);
        if pod.claim != pod.chosen && !is_seen {
            return;
        }
        let room = |gpu: &String| {
            let is_there = |other: &&Object| other.admitted.as_ref() == Some(gpu) && !other.failed;
            let held: u32 = self.pods.values().filter(is_there).map(|other| other.units).sum();
            self.machines[node].gpus.contains(gpu) && held + pod.units <= UNITS
        };
        let gpu = pod.claim.clone().filter(room);
        if let Some(pod) = self.pods.get_mut(&slot) {
            (pod.failed, pod.admitted) = (gpu.is_none(), gpu);
        }
        self.show(slot);
    }

    fn apply(&mut self, event: Event<WatchedPod>) {
        let mut settled = std::mem::take(&mut self.settled);
        let doubtful = self.change(|index| index.apply_pods(event, &mut settled, now()));
        self.settled = settled;
        self.look_ups.extend(doubtful.into_iter().map(LookUp::new));
    }

    /// The next event of the pods' watch arrives.
    pub(super) fn pod_event(&mut self) {
        if !matches!(self.listing, Listing::No) {
            return;
        }
        match self.events.pop_front() {
            Some(Event::Applied(pod)) => self.apply(Event::Applied(pod.watched())),
            Some(Event::Gone(pod)) => self.apply(Event::Gone(pod.watched())),
            _ => {}
        }
    }

    /// The pods' watch breaks, and a list begins; the API server reads the list; the list arrives.
    pub(super) fn relist(&mut self) {
        match std::mem::replace(&mut self.listing, Listing::No) {
            Listing::No => {
                self.apply(Event::Listing);
                self.listing = Listing::Begun;
            }
            Listing::Begun => {
                self.events.clear();
                self.listing = Listing::Read(self.pods.values().cloned().collect());
            }
            Listing::Read(pods) => {
                self.apply(Event::Listed(pods.iter().map(Object::watched).collect()));
            }
        }
    }

    fn facts(&self, node: usize) -> NodeFacts {
        fixtures::node(name(node).as_str(), self.machines[node].report.clone())
    }

    /// The node's plugin writes its report.
    pub(super) fn report(&mut self, node: usize) {
        let gpu = |(index, uuid): (u32, &String)| {
            let is_there = |pod: &&Object| pod.admitted.as_ref() == Some(uuid) && !pod.failed;
            let there = self.pods.values().filter(is_there);
            let pods = there.map(|pod| (pod.id().uid, Units(pod.units))).collect();
            Gpu { uuid: uuid.as_str().into(), index, pods, ..fixtures::gpu() }
        };
        self.machines[node].report = (0..).zip(&self.machines[node].gpus).map(gpu).collect();
        if self.machines[node].exists {
            self.node_events.push_back(Event::Applied(node));
        }
    }

    /// A watch may leave out states that were overwritten: the event shows the newest.
    pub(super) fn node_event(&mut self) {
        let event = match self.node_events.pop_front() {
            Some(Event::Applied(node)) if self.machines[node].exists => {
                Event::Applied(self.facts(node))
            }
            Some(Event::Gone(node)) => Event::Gone(self.facts(node)),
            _ => return,
        };
        self.change(|index| index.apply_nodes(event, now()));
    }

    pub(super) fn relist_nodes(&mut self) {
        self.node_events.clear();
        let there = (0..self.machines.len()).filter(|node| self.machines[*node].exists);
        let nodes = there.map(|node| self.facts(node)).collect();
        self.change(|index| index.apply_nodes(Event::Listed(nodes), now()));
    }

    pub(super) fn toggle(&mut self, node: usize) {
        let exists = &mut self.machines[node].exists;
        *exists = !*exists;
        let event = if *exists { Event::Applied(node) } else { Event::Gone(node) };
        self.node_events.push_back(event);
    }

    /// A GPU that nobody uses makes room for a new one.
    pub(super) fn replace(&mut self, node: usize, gpu: usize) {
        let old = self.machines[node].gpus[gpu].clone();
        if self.pods.values().all(|pod| pod.admitted.as_ref() != Some(&old)) {
            self.made += 1;
            self.machines[node].gpus[gpu] = format!("GPU-{node}-{gpu}-{}", self.made);
            self.report(node);
        }
    }

    /// The extender restarts. Until it assigns GPUs again, no request is under way ([`crate::replicas`]).
    pub(super) fn restart(&mut self) {
        self.index = fixtures::index();
        self.current = Arc::new(self.index.first());
        self.bindings = Bindings::default();
        // What Bind chose for a pod without its claim is known to nobody now.
        for pod in self.pods.values_mut().filter(|pod| pod.claim.is_none()) {
            pod.chosen = None;
        }
        (self.ways, self.requests, self.look_ups) = Default::default();
        (self.listing, self.leads) = (Listing::No, true);
        self.lingering.clear();
        self.settled.clear();
        self.relist_nodes();
        (0..3).for_each(|_| self.relist());
    }

    /// Units on a GPU by the API server and the kubelet.
    pub(super) fn claimed(&self, gpu: &str) -> u32 {
        let bound = self.pods.values().filter(|pod| pod.gpu().is_some_and(|on| on == gpu));
        bound.map(|pod| pod.units).sum()
    }

    /// As [`World::claimed`], with deleted pods that may still run, and what requests under way may put there.
    pub(super) fn carried(&self, gpu: &str) -> u32 {
        let lingering = self.lingering.iter().filter(|(on, _)| on == gpu);
        let is_coming = |request: &&Request| {
            request.gpu == gpu && self.pods.get(&request.slot).is_some_and(|it| request.fits(it))
        };
        let coming: BTreeMap<_, _> =
            self.requests.iter().filter(is_coming).map(|it| (it.slot, it.units)).collect();
        self.claimed(gpu)
            + lingering.map(|(_, units)| units).sum::<u32>()
            + coming.values().sum::<u32>()
    }

    pub(super) fn charged(&self) -> Vec<(String, u32)> {
        let nodes = self.current.snapshot.nodes_with_gpus();
        let gpus = nodes.flat_map(|(_, node)| node.accounts()).map(|account| &account.gpu);
        gpus.map(|gpu| (gpu.uuid.to_string(), gpu.units.saturating_sub(gpu.free).0)).collect()
    }

    pub(super) fn has_forgotten_all(&self) -> bool {
        self.index.has_no_pods() && self.current.snapshot.totals().reserved == 0
    }

    /// The ledgers as text.
    pub(super) fn accounts(&self) -> String {
        let nodes: Vec<_> = self.current.snapshot.nodes_with_gpus().collect();
        format!("{nodes:?}")
    }
}
