//! The cluster of one policy: where its pods are, how kube-scheduler places them, and what is counted.

mod figures;
mod in_tree;
mod nodes;
mod observation;
mod scheduler;
mod spread;

pub use self::figures::{Figures, LEVELS, Waits, minutes};
pub use self::in_tree::InTree;
use self::nodes::Nodes;
use self::observation::Measured;
pub use self::observation::{NodeSample, Observation, PodUse};
use self::scheduler::Scheduler;
use self::spread::{Burst, Probes};
pub use self::spread::{REPLICAS, Spread, SpreadFigures, Spreads};
use crate::cluster::{NODE_CORES, NODE_CPU, NODE_MEMORY, NODE_PODS, NodeId, zone};
use crate::policies::{PodView, Policy};
use crate::time::{MINUTE, Step};
use crate::workload::{AppKind, PodId, Workload, mix};

/// The node of a pod that has none.
const NOWHERE: u16 = u16::MAX;
/// A pod is tried again so long after a refusal: kube-scheduler's back-off of at most 10 s lies within.
const RETRY_AFTER: Step = MINUTE;
/// The longest time that a start or a surge takes, for the calendar of changes.
const CALENDAR: usize = 64;

/// Where a pod runs, and how many times its base use it uses: 0 while it starts, above 1 in its surge.
#[derive(Debug, Clone, Copy)]
struct Place {
    node: u16,
    boost: f32,
}

/// What a world keeps of a pod.
#[derive(Debug, Clone, Copy)]
struct PodState {
    node: u16,
    phase: Phase,
    bound_at: Step,
    requested_at: Step,
    ends_at: Step,
    evictions: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not arrived, or ended.
    Absent,
    Waiting,
    Bound,
}

/// What all worlds share at a step.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// The workload.
    pub workload: &'a Workload,
    /// The step.
    pub now: Step,
    /// Base use in cores of the pod in each slot; slots are reused.
    pub uses: &'a [f32],
    /// The pod in each slot.
    pub pod_in_slot: &'a [u32],
    /// The slot of each pod that has arrived and has not ended in every world.
    pub slot_of: &'a [u32],
    /// Pods that arrive at this step: the first, and the one after the last.
    pub arriving: (PodId, PodId),
}

/// One policy's cluster.
pub struct World {
    policy: Box<dyn Policy>,
    scheduler: Scheduler,
    nodes: Nodes,
    pods: Vec<PodState>,
    /// By slot.
    places: Vec<Place>,
    /// Pods by the step of their end. An entry counts only if the pod still ends then.
    ends: Vec<Vec<u32>>,
    /// Changes of boosts, by step modulo [`CALENDAR`]: pod, time of its binding, boost.
    boosts: Vec<Vec<(u32, Step, f32)>>,
    /// Pods to be tried, by step modulo [`RETRY_AFTER`] + 1.
    due: Vec<Vec<u32>>,
    demand: Vec<f64>,
    /// By node, the part of the demand that its CPU suffices for.
    shares: Vec<f64>,
    samples: Vec<NodeSample>,
    counter: figures::Counter,
    spreads: Spreads,
    finished: Vec<u32>,
}

impl World {
    /// An empty cluster under a policy, whose weight may be another than its own.
    pub fn new(
        workload: &Workload,
        in_tree: InTree,
        policy: Box<dyn Policy>,
        weight: Option<i64>,
    ) -> Self {
        let seed = mix(workload.cell.code()) ^ workload.seed;
        let scale = &workload.scale;
        let absent = PodState {
            node: NOWHERE,
            phase: Phase::Absent,
            bound_at: 0,
            requested_at: 0,
            ends_at: Step::MAX,
            evictions: 0,
        };
        Self {
            policy,
            scheduler: Scheduler::new(in_tree, seed, weight),
            nodes: Nodes::new(scale, workload.services()),
            pods: vec![absent; workload.pods.len()],
            places: Vec::new(),
            ends: vec![Vec::new(); scale.steps as usize],
            boosts: vec![Vec::new(); CALENDAR],
            due: vec![Vec::new(); RETRY_AFTER as usize + 1],
            demand: vec![0.0; scale.all_nodes()],
            shares: vec![1.0; scale.all_nodes()],
            samples: Vec::new(),
            counter: figures::Counter::new(scale.counted_from, scale.all_nodes()),
            spreads: Spreads::default(),
            finished: Vec::new(),
        }
    }

    /// Moves on by one step: pods end, nodes come and go, everything is measured, and waiting pods are placed.
    pub fn step(&mut self, shared: &Shared<'_>) {
        let nowhere = Place { node: NOWHERE, boost: 0.0 };
        self.places.resize(shared.pod_in_slot.len().max(self.places.len()), nowhere);
        self.end_pods(shared);
        self.change_nodes(shared);
        self.change_boosts(shared);
        self.measure(shared);
        let measured = Measured {
            workload: shared.workload,
            places: &self.places,
            uses: shared.uses,
            pod_in_slot: shared.pod_in_slot,
            slot_of: shared.slot_of,
            shares: &self.shares,
        };
        self.policy.observe(&Observation::new(shared.now, &self.samples, measured));
        self.place_pods(shared);
        let scale = &shared.workload.scale;
        if shared.now >= scale.counted_from {
            let (nodes, policy) = (&self.nodes, &*self.policy);
            let probes = Probes { nodes, scheduler: &self.scheduler, policy };
            probes.count(&mut self.spreads, scale, shared.workload.apps.len(), shared.now);
        }
    }

    /// The pods that ended here since the last call.
    pub fn take_finished(&mut self) -> std::vec::Drain<'_, u32> {
        self.finished.drain(..)
    }

    /// The figures at the end.
    pub fn finish(self, now: Step) -> Figures {
        let waiting = self.pods.iter().filter(|pod| pod.phase == Phase::Waiting);
        let writes_an_hour = self.policy.writes_an_hour();
        let figures = self.counter.finish(now, waiting.map(|pod| pod.requested_at));
        Figures { writes_an_hour, spreads: self.spreads, ..figures }
    }

    /// Checks that no node has more requested than it has, and that the sums are those of its pods.
    ///
    /// # Errors
    ///
    /// Says which node, and what is wrong.
    pub fn check(&self, workload: &Workload) -> Result<(), String> {
        let mut sums = vec![(0, 0, 0); self.demand.len()];
        for (id, state) in self.pods.iter().enumerate().filter(|(_, pod)| pod.phase == Phase::Bound)
        {
            let pod = view(workload, id);
            let (cpu, memory, pods) = &mut sums[usize::from(state.node)];
            (*cpu, *memory, *pods) = (*cpu + pod.cpu, *memory + pod.memory, *pods + 1);
        }
        for (node, sum) in sums.into_iter().enumerate() {
            let (cpu, memory, pods) = self.nodes.requested(node);
            if sum != (cpu, memory, pods) {
                return Err(format!(
                    "node {node}: its pods request {sum:?}, it counts {:?}",
                    (cpu, memory, pods)
                ));
            }
            if cpu > NODE_CPU || memory > NODE_MEMORY || pods > NODE_PODS {
                return Err(format!("node {node} of zone {}: {cpu} {memory} {pods}", zone(node)));
            }
            if node >= self.nodes.joined && pods > 0 {
                return Err(format!("node {node} has pods and has not joined"));
            }
        }
        Ok(())
    }

    fn end_pods(&mut self, shared: &Shared<'_>) {
        for pod in std::mem::take(&mut self.ends[shared.now as usize]) {
            let state = self.pods[pod as usize];
            if state.ends_at != shared.now || state.phase == Phase::Absent {
                continue;
            }
            if state.phase == Phase::Bound {
                self.unbind(shared, pod as PodId);
            }
            self.pods[pod as usize].phase = Phase::Absent;
            self.finished.push(pod);
        }
    }

    fn change_nodes(&mut self, shared: &Shared<'_>) {
        let scale = &shared.workload.scale;
        if shared.now == scale.join_at {
            self.nodes.joined = scale.all_nodes();
        }
        if let Some(node) = scale.reboots_at(shared.now) {
            self.nodes.set_open(node, false);
            self.evict(shared, node);
        }
        if let Some(node) = scale.returns_at(shared.now) {
            self.nodes.set_open(node, true);
        }
    }

    /// Evicts all pods of a node; they ask to be bound again at once.
    fn evict(&mut self, shared: &Shared<'_>, node: NodeId) {
        let mut evicted: Vec<PodId> = Vec::new();
        for (pod, state) in self.pods.iter().enumerate() {
            if state.phase == Phase::Bound && usize::from(state.node) == node {
                evicted.push(pod);
            }
        }
        for pod in evicted {
            self.unbind(shared, pod);
            let state = &mut self.pods[pod];
            self.counter.evicted(state.evictions > 0);
            state.evictions = state.evictions.saturating_add(1);
            if view(shared.workload, pod).kind == AppKind::Job {
                state.ends_at = Step::MAX;
            }
            self.ask(shared.now, pod);
        }
    }

    fn unbind(&mut self, shared: &Shared<'_>, pod: PodId) {
        let view = view(shared.workload, pod);
        let node = usize::from(self.pods[pod].node);
        self.nodes.unbind(node, &view, shared.workload.pods[pod].memory_used);
        self.policy.unbound(&view, node, shared.now);
        self.pods[pod].node = NOWHERE;
        self.places[shared.slot_of[pod] as usize] = Place { node: NOWHERE, boost: 0.0 };
    }

    fn ask(&mut self, now: Step, pod: PodId) {
        let state = &mut self.pods[pod];
        (state.phase, state.requested_at) = (Phase::Waiting, now);
        self.due_at(now).push(pod as u32);
    }

    fn due_at(&mut self, step: Step) -> &mut Vec<u32> {
        let slots = self.due.len();
        &mut self.due[step as usize % slots]
    }

    fn change_boosts(&mut self, shared: &Shared<'_>) {
        for (pod, bound_at, boost) in
            std::mem::take(&mut self.boosts[shared.now as usize % CALENDAR])
        {
            let state = &self.pods[pod as usize];
            if state.phase == Phase::Bound && state.bound_at == bound_at {
                self.places[shared.slot_of[pod as usize] as usize].boost = boost;
            }
        }
    }

    fn measure(&mut self, shared: &Shared<'_>) {
        self.demand.fill(0.0);
        for (place, used) in self.places.iter().zip(shared.uses) {
            if let Some(demand) = self.demand.get_mut(usize::from(place.node)) {
                *demand += f64::from(used * place.boost);
            }
        }
        for (share, demand) in self.shares.iter_mut().zip(&self.demand) {
            *share = (NODE_CORES / demand).min(1.0);
        }
        let joined = self.nodes.joined;
        self.samples.resize(joined, NodeSample::default());
        for (node, sample) in self.samples.iter_mut().enumerate() {
            let cpu = (self.demand[node] / NODE_CORES).min(1.0);
            let best_effort = shared.workload.batch(node, shared.now) * (1.0 - cpu);
            *sample = NodeSample {
                up: self.nodes.is_open(node),
                cpu: cpu + best_effort,
                best_effort,
                memory: self.nodes.memory_used[node] as f64 / f64::from(NODE_MEMORY),
            };
        }
        let up = (0..joined).filter(|node| self.nodes.is_open(*node));
        self.counter.step(shared.now, up.map(|node| self.demand[node]));
    }

    /// Tries the pods that are due, in the order of their arrival.
    fn place_pods(&mut self, shared: &Shared<'_>) {
        for pod in shared.arriving.0..shared.arriving.1 {
            self.ask(shared.now, pod);
        }
        let mut burst = self.burst(shared);
        let mut due = std::mem::take(self.due_at(shared.now));
        due.sort_unstable();
        for pod in due.drain(..) {
            if self.pods[pod as usize].phase != Phase::Waiting {
                continue;
            }
            let view = view(shared.workload, pod as PodId);
            let app = &shared.workload.apps[view.app];
            let found = self.scheduler.find(
                &view,
                app.prefers_label,
                &self.nodes,
                &mut *self.policy,
                shared.now,
            );
            match found {
                Some(node) => {
                    self.bind(shared, &view, node);
                    if let Some(burst) = &mut burst {
                        burst.bound(&view, node);
                    }
                }
                None => self.due_at(shared.now + RETRY_AFTER).push(pod),
            }
        }
        // The emptied list is kept for its memory.
        *self.due_at(shared.now) = due;
        if let Some(burst) = burst {
            burst.count(&mut self.spreads, shared.now);
        }
    }

    /// The burst of a service that arrives at this step, where that counts.
    fn burst(&self, shared: &Shared<'_>) -> Option<Burst> {
        if shared.now < shared.workload.scale.counted_from {
            return None;
        }
        let (first, end) = shared.arriving;
        let pods: Vec<(PodView, bool)> = (first..end)
            .map(|pod| view(shared.workload, pod))
            .map(|pod| (pod, shared.workload.apps[pod.app].prefers_label))
            .collect();
        Burst::among(&pods, &self.nodes, &self.scheduler)
    }

    fn bind(&mut self, shared: &Shared<'_>, view: &PodView, node: NodeId) {
        let now = shared.now;
        let workload = shared.workload;
        let pod = &workload.pods[view.id];
        let app = &workload.apps[view.app];
        self.nodes.bind(node, view, pod.memory_used);
        self.policy.bound(view, node, now);
        let state = &mut self.pods[view.id];
        self.counter.bound(now, node, state.requested_at);
        (state.node, state.phase, state.bound_at) = (node as u16, Phase::Bound, now);
        if state.ends_at == Step::MAX {
            state.ends_at = now + pod.life;
            if let Some(ends) = self.ends.get_mut(state.ends_at as usize) {
                ends.push(view.id as u32);
            }
        }
        // A pod that runs when the simulation begins goes on; after an eviction it starts as any other.
        let goes_on = pod.settled && state.evictions == 0;
        let boost = if goes_on { 1.0 } else { 0.0 };
        self.places[shared.slot_of[view.id] as usize] = Place { node: node as u16, boost };
        if !goes_on {
            let pod_id = view.id as u32;
            let started = now + pod.start_delay.max(1);
            self.boosts[started as usize % CALENDAR].push((pod_id, now, app.surge));
            if app.surge_steps > 0 {
                let ended = started + app.surge_steps;
                self.boosts[ended as usize % CALENDAR].push((pod_id, now, 1.0));
            }
        }
    }
}

/// What a scheduler knows of a pod.
fn view(workload: &Workload, id: PodId) -> PodView {
    let app = &workload.apps[workload.pods[id].app];
    PodView { id, app: workload.pods[id].app, kind: app.kind, cpu: app.cpu, memory: app.memory }
}
