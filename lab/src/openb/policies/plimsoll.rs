//! Ours: `placement::gpu::choose` under the shipped rule, as the extender calls it, with what pods ask for learnt from
//! those that have arrived.
//!
//! Pods without GPUs are rated as the extender rates them, with what kube-scheduler says of CPU and memory in place of
//! a load.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::gpu::fragmentation::{
    Cost, HeldParts, Measure, NodeClass, PodShape, RequestCounter,
};
use placement::gpu::{
    BeyondUnits, ChoiceRule, ContainerKind, ContainerRequest, FreeGpu, GpuFilter, GpuIsolation,
    GpuOptions, GpuRequest, GpuUse, Rating, Sharers, Topology, choose, score_less_gpu_cost,
};
use placement::load::Score;
use placement::units::{Cores, GpuId, GpuModel, Units};

use super::Policy;
use super::by_state::{ByState, Place};
use crate::openb::cluster::{Gpus, Node, NodeRoom};
use crate::openb::trace::{MOST_GPUS, PodKind, Trace, WHOLE};

/// The policy.
#[derive(Debug)]
pub struct Plimsoll {
    /// By kind of pod; `None` for one without GPUs.
    requests: Vec<Option<GpuRequest>>,
    models: Vec<GpuModel>,
    uuids: Vec<GpuId>,
    classes: Vec<NodeClass>,
    /// `None` where the measure stays.
    learner: Option<RequestCounter>,
    rule: ChoiceRule,
    memory: ByState,
    /// The nodes without pods.
    empty: Vec<Node>,
    /// Pods that have arrived.
    arrived: usize,
    /// By kind, the pods that run.
    running: Vec<u64>,
}

/// Places are priced anew after so many pods: about what kube-scheduler places in the time of the extender's tick.
const REPRICED_AFTER: usize = 16;

impl Plimsoll {
    /// Learns from what is placed.
    pub fn learning(trace: &Trace) -> Self {
        Self {
            requests: trace.kinds.iter().map(|kind| request(kind, &trace.models)).collect(),
            models: trace.models.iter().map(|model| model.as_str().into()).collect(),
            uuids: (0..MOST_GPUS).map(|at| format!("GPU-{at}").into()).collect(),
            classes: classes(trace),
            learner: Some(RequestCounter::default()),
            rule: ChoiceRule::default(),
            memory: ByState::default(),
            empty: Vec::new(),
            arrived: 0,
            running: vec![0; trace.kinds.len()],
        }
    }

    /// Knows the whole list beforehand, as published policies do.
    pub fn knowing(trace: &Trace) -> Self {
        let mut policy = Self::learning(trace);
        let mut learner = RequestCounter::default();
        let requests = trace.pods.iter().filter_map(|kind| policy.requests[*kind].as_ref());
        requests.for_each(|request| learner.observe(&PodShape::of(request)));
        policy.set_measure(learner.measure(&HeldParts::default(), &policy.classes));
        policy.learner = None;
        policy
    }

    fn learn(&mut self, request: &GpuRequest, nodes: &[Node]) {
        let Some(learner) = &mut self.learner else { return };
        learner.observe(&PodShape::of(request));
        if learner.is_due() {
            let mut held = HeldParts::default();
            for (running, request) in self.running.iter().zip(&self.requests) {
                for share in request.iter().flat_map(GpuRequest::shares) {
                    held.count(Units(WHOLE), share.units, *running);
                }
            }
            let measure = learner.measure(&held, &self.classes);
            self.set_measure(measure);
            self.reprice(nodes);
        }
    }

    fn reprice(&mut self, nodes: &[Node]) {
        let Some(measure) = &self.rule.measure else { return };
        let free = nodes.iter().map(|node| {
            let gpus = free_gpus(&self.models, &self.uuids, &node.room);
            (Some(u64::from(node.room.cpu)), gpus.unwrap_or_default())
        });
        let free: Vec<_> = free.collect();
        if let Some(next) = measure.repriced(free.iter().map(|(cpu, gpus)| (*cpu, gpus))) {
            self.set_measure(next);
        }
    }

    /// Where a pod without GPUs goes: by what kube-scheduler's NodeResourcesFit says of CPU and memory, in place of a
    /// load, and by what that costs the GPUs; the first of equals.
    fn plain(&self, nodes: &[Node], pod: &PodKind) -> Option<usize> {
        let fitting = (0..nodes.len()).filter(|at| nodes[*at].fits(pod));
        let costs: Vec<(usize, Cost)> =
            fitting.map(|at| (at, self.plain_cost(&nodes[at].room, pod))).collect();
        let least = costs.iter().map(|(_, cost)| *cost).min()?;
        let scores = costs.into_iter().map(|(at, cost)| {
            let by_load = by_resources(&nodes[at], &self.empty[at], pod);
            (at, score_less_gpu_cost(by_load, cost.beyond(least)))
        });
        scores.rev().max_by_key(|(_, score)| *score).map(|(at, _)| at)
    }

    /// What a pod without GPUs costs those of a node.
    fn plain_cost(&self, room: &NodeRoom, pod: &PodKind) -> Cost {
        let Some(measure) = self.rule.for_plain_pods() else { return Cost(0) };
        let gpus = free_gpus(&self.models, &self.uuids, room).unwrap_or_default();
        measure.cost_of_cpu(gpus.iter(), u64::from(room.cpu), u64::from(pod.cpu))
    }

    fn set_measure(&mut self, measure: Measure) {
        self.rule.measure = Some(Arc::new(measure));
        self.memory.forget();
    }
}

/// What NodeResourcesFit says of a node for a pod. `whole` is the node without pods.
fn by_resources(node: &Node, whole: &Node, pod: &PodKind) -> Score {
    let cpu = part(node.room.cpu - pod.cpu, whole.room.cpu);
    let memory = part(node.memory - pod.memory, whole.memory);
    Score::truncated(50.0 * (cpu + memory))
}

fn part(left: u32, of: u32) -> f64 {
    f64::from(left) / f64::from(of.max(1))
}

impl Policy for Plimsoll {
    fn place(&mut self, nodes: &[Node], at: usize, pod: &PodKind) -> Option<(usize, Gpus)> {
        if self.empty.len() != nodes.len() {
            // No pod is there yet.
            self.empty = nodes.to_vec();
        }
        if self.arrived.is_multiple_of(REPRICED_AFTER) {
            self.reprice(nodes);
        }
        self.arrived += 1;
        let Some(request) = self.requests[at].clone() else {
            return self.plain(nodes, pod).map(|node| (node, 0));
        };
        let Self { models, uuids, rule, memory, .. } = self;
        let place = memory.best(nodes, at, pod, |room| judge(models, uuids, rule, room, &request));
        if place.is_some() {
            self.running[at] += 1;
            // As in the extender: a pod counts once it is bound.
            self.learn(&request, nodes);
        }
        place
    }

    fn ended(&mut self, at: usize) {
        self.running[at] = self.running[at].saturating_sub(1);
    }
}

fn judge(
    models: &[GpuModel],
    uuids: &[GpuId],
    rule: &ChoiceRule,
    room: &NodeRoom,
    request: &GpuRequest,
) -> Option<Place> {
    // What kube-scheduler checks.
    if u64::from(room.cpu) < request.cpu() {
        return None;
    }
    let gpus = free_gpus(models, uuids, room)?;
    let choice = choose(&gpus, Some(u64::from(room.cpu)), request, rule).ok()?;
    let goodness = match choice.rate(request, rule) {
        Rating::Score(score) => f64::from(score.get()),
        Rating::Cost(cost) => -(cost.0 as f64),
    };
    Some((goodness, choice.gpus.iter().fold(0, |gpus, gpu| gpus | 1 << gpu.index)))
}

fn free_gpus(models: &[GpuModel], uuids: &[GpuId], room: &NodeRoom) -> Option<Vec<FreeGpu>> {
    let model = models.get(usize::from(room.model))?;
    let gpus = room.free().iter().enumerate().map(|(index, free)| FreeGpu {
        uuid: uuids[index].clone(),
        index: index as u32,
        model: model.clone(),
        topology: Topology::default(),
        units: Units(WHOLE),
        free: Units(u32::from(*free)),
        free_cores: Cores::ALL,
        idle: u32::from(*free) == WHOLE,
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        sharers: Sharers::None,
        clients: 0,
    });
    Some(gpus.collect())
}

/// What a pod of this kind asks for, as its annotations would say it; `None` where it asks for no GPU.
fn request(kind: &PodKind, models: &[String]) -> Option<GpuRequest> {
    let gpus = u32::try_from(kind.gpus).ok()?;
    let gpu_use = GpuUse { gpus, exclusive: kind.milli == WHOLE, ..GpuUse::default() };
    let ask = ContainerRequest {
        name: "main".to_owned(),
        kind: ContainerKind::App,
        position: 0,
        units: Units(kind.milli * gpus),
        gpu_use,
    };
    let named = models.iter().enumerate().filter(|(at, _)| kind.models.contain(*at as u8));
    let named: Vec<&str> = named.map(|(_, name)| name.as_str()).collect();
    let models = if named.len() == models.len() { None } else { named.join(",").parse().ok() };
    let filter = GpuFilter { models: models.unwrap_or_default(), ..GpuFilter::default() };
    let options = GpuOptions { filter, ..GpuOptions::default() };
    let request = GpuRequest::with_options([ask], options).ok()??;
    // Pods of the trace have whole GPUs by their number alone.
    Some(request.with_cpu(u64::from(kind.cpu)).with_beyond_units(BeyondUnits::ALL))
}

fn classes(trace: &Trace) -> Vec<NodeClass> {
    let mut counts = BTreeMap::new();
    for node in &trace.nodes {
        *counts.entry((node.model, node.gpus, node.cpu)).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|((model, gpus, cpu), count): ((u8, usize, u32), usize)| NodeClass {
            count,
            cpu: Some(u64::from(cpu)),
            model: trace.models[usize::from(model)].clone(),
            gpus,
            units: Units(WHOLE),
        })
        .collect()
}
