//! This project's own policy: the load decision of `placement`, with estimates that are learned from the pods that run.
//!
//! The exporter's windows are means of 5 minutes; one that is not half full, as after a reboot, is left out. The
//! annotator reads each node once a minute, a node after the other: its windows, and what each pod used since the last
//! reading. It tells the extender each reading. What was learned reaches the extender within a minute.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::SignedDuration;
use placement::estimate::{EstimateRules, LearnedUse, NamespaceRatios, PodProfile};
use placement::learning::Learner;
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, PreparedNodes, Readings, ResolvedPolicy,
    Verdict, pass_over_limits, typical_load,
};
use placement::policy::{LoadPolicy, WhenAllOverloaded};
use placement::reading::Reading;
use placement::resources::{Amounts, PerResource, PodResources};
use placement::units::{MetricName, PodUid, Ratio};
use placement::workload::WorkloadId;

use super::{Hook, PodView, Policy};
use crate::cluster::{NODE_CORES, NODE_MEMORY, NodeId, ZONES, zone};
use crate::readings::Samples;
use crate::time::{MINUTE, STEP_SECONDS, Step, timestamp};
use crate::workload::{AppId, AppKind, PodId};
use crate::world::Observation;

/// The policy as it is shipped.
const POLICY: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");
/// How often what a pod used is read, and the extender is told what was learned.
const LEARNED_EVERY: Step = MINUTE;
/// How often the annotator reads a node.
const PERIOD: Step = MINUTE;
const ZONE_NAMES: [&str; ZONES] = ["a", "b", "c"];
/// Namespaces that the apps are of.
const NAMESPACES: AppId = 15;
/// How often is summed up what namespaces use by their requests.
const SUM_UP_EVERY: Step = 15 * MINUTE;
/// The window of `avg_5m`.
const WINDOW: Step = 5 * MINUTE;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

pub(super) struct Plimsoll {
    policy: Arc<ResolvedPolicy>,
    /// The points of an idle node. kube-scheduler counts each ten times.
    scale: i64,
    table: MetricTable,
    metrics: [MetricName; 2],
    nodes: Vec<Node>,
    /// What was measured of the pod in each slot since it was last read.
    measured: Vec<Measured>,
    learning: Learning,
    /// Pods that were refused, and when at first.
    refused: HashMap<PodId, Step>,
}

struct Node {
    load: NodeLoad,
    /// The load as the policy sees it; `None` since it changed.
    prepared: Option<PreparedNodes>,
    /// CPU and memory, as fractions of the node.
    samples: [Samples; 2],
    pods: Vec<BoundPod>,
}

struct BoundPod {
    view: PodView,
    /// Its slot in the observations and the MiB that it uses, both constant while it is bound, once it runs.
    runs: Option<(usize, u32)>,
}

/// What was measured of a pod since the last reading.
#[derive(Clone, Copy, Default)]
struct Measured {
    /// Sum of the samples in cores.
    cpu: f64,
    samples: Step,
}

/// What pods of each app used.
#[derive(Default)]
struct Learning {
    learner: Learner,
    /// By app, of those that ran.
    apps: Vec<Option<App>>,
    namespaces: HashMap<Arc<str>, NamespaceRatios>,
}

struct App {
    id: WorkloadId,
    learned: PerResource<Option<LearnedUse>>,
    told_at: Step,
}

impl App {
    fn new(pod: &PodView) -> Self {
        let kind = match pod.kind {
            AppKind::Service => "Deployment",
            AppKind::Job => "CronJob",
        };
        let namespace = namespace(pod.app);
        let name = pod.app.to_string().into();
        Self {
            id: WorkloadId { namespace, kind: kind.into(), name, template: 0 },
            learned: PerResource::default(),
            told_at: 0,
        }
    }
}

/// Apps belong to teams by their number: what an app is like says nothing of its namespace.
fn namespace(app: AppId) -> Arc<str> {
    format!("team-{}", app % NAMESPACES).into()
}

fn resources(pod: &PodView) -> PodResources {
    let cpu = Some(f64::from(pod.cpu) / 1000.0);
    let memory = Some(f64::from(pod.memory) * MIB);
    PodResources { requests: PerResource { cpu, memory }, limits: PerResource::default() }
}

fn uid(pod: &PodView) -> PodUid {
    PodUid::from(pod.id.to_string())
}

impl Learning {
    fn observe(&mut self, pod: &PodView, measured: Measured, mebibytes: u32, now: Step) {
        if self.apps.len() <= pod.app {
            self.apps.resize_with(pod.app + 1, || None);
        }
        let app = self.apps[pod.app].get_or_insert_with(|| App::new(pod));
        let cpu = Some(measured.cpu / f64::from(measured.samples));
        let used = PerResource { cpu, memory: Some(f64::from(mebibytes) * MIB) };
        let lasting =
            SignedDuration::from_secs(i64::from(measured.samples) * i64::from(STEP_SECONDS));
        self.learner.observe(&app.id, &resources(pod), used, lasting, timestamp(now));
    }

    /// What pods like this one used, as last told.
    fn of(&mut self, pod: &PodView, now: Step) -> PerResource<Option<LearnedUse>> {
        let Some(Some(app)) = self.apps.get_mut(pod.app) else { return PerResource::default() };
        if now / LEARNED_EVERY != app.told_at / LEARNED_EVERY {
            app.learned = self.learner.learned(&app.id).unwrap_or_default();
            app.told_at = now;
        }
        app.learned
    }

    fn sum_up(&mut self) {
        self.namespaces.clear();
        for workload in self.learner.snapshot().iter() {
            self.namespaces.entry(workload.id.namespace).or_default().add(&workload.used);
        }
    }

    /// What apps of the same namespace use by their requests.
    fn in_namespace(&self, pod: &PodView) -> PerResource<Option<f64>> {
        self.namespaces.get(&namespace(pod.app)).map(NamespaceRatios::means).unwrap_or_default()
    }
}

impl Node {
    fn new() -> Self {
        let capacity =
            PerResource { cpu: Some(NODE_CORES), memory: Some(f64::from(NODE_MEMORY) * MIB) };
        Self {
            load: NodeLoad { capacity, ..NodeLoad::default() },
            prepared: None,
            samples: [Samples::new(WINDOW), Samples::new(WINDOW)],
            pods: Vec::new(),
        }
    }

    /// Reads the means of windows that are half full; without one, what was read before a reboot stays.
    fn read(&mut self, metrics: &[MetricName; 2], table: &mut MetricTable, now: Step) {
        let mut readings = Vec::new();
        for (metric, samples) in metrics.iter().zip(&self.samples) {
            if samples.len() >= WINDOW as usize / 2
                && let Some(value) = samples.mean().and_then(Ratio::new)
            {
                readings.push((metric.clone(), Reading::new(value, timestamp(now))));
            }
        }
        if !readings.is_empty() {
            self.load.readings = Arc::new(Readings::new(table, readings));
            self.prepared = None;
        }
    }
}

impl Plimsoll {
    /// The policy as it is shipped, or with a hard limit of CPU.
    pub(super) fn new(hard_limit: Option<f64>) -> anyhow::Result<Self> {
        let mut policy = LoadPolicy::from_yaml(POLICY)?;
        if let Some(most) = hard_limit {
            policy.overload.when_all = WhenAllOverloaded::Wait { max_wait: None };
            let limits = policy.limits.iter_mut();
            limits
                .filter(|limit| limit.metric.as_str().starts_with("cpu_"))
                .for_each(|limit| limit.max = most);
        }
        let mut table = MetricTable::default();
        Ok(Self {
            scale: i64::from(policy.scoring.scale.highest()),
            policy: Arc::new(ResolvedPolicy::new(policy, &mut table)),
            table,
            metrics: ["cpu_shared_busy_avg_5m".into(), "mem_usage_avg_5m".into()],
            nodes: Vec::new(),
            measured: Vec::new(),
            learning: Learning::default(),
            refused: HashMap::new(),
        })
    }

    /// What the pod will probably use; `None` where the policy estimates nothing.
    fn profile(&mut self, pod: &PodView, now: Step) -> Option<(PodProfile, EstimateRules)> {
        let rules = self.policy.policy.estimates?;
        let learned = self.learning.of(pod, now);
        let in_namespace = self.learning.in_namespace(pod);
        let resources = resources(pod);
        let profile = PodProfile { resources, learned, in_namespace, ..PodProfile::default() };
        Some((profile, rules))
    }

    fn uses(&mut self, pod: &PodView, now: Step) -> Amounts {
        let profile = self.profile(pod, now);
        profile.map(|(profile, rules)| profile.estimate(&rules).amounts).unwrap_or_default()
    }

    fn pod_to_place(&mut self, pod: &PodView, now: Step) -> PodToPlace<'static> {
        let uses = self.uses(pod, now);
        let waited = self.refused.get(&pod.id).map_or(0, |since| now - since);
        let waited = SignedDuration::from_secs(i64::from(waited) * i64::from(STEP_SECONDS));
        PodToPlace { uses, waited, ..PodToPlace::ORDINARY }
    }

    /// Computes the loads of nodes that changed.
    fn prepare(&mut self, now: Step) {
        let now = timestamp(now);
        for node in &mut self.nodes {
            let is_valid = |prepared: &PreparedNodes| prepared.is_valid(&self.policy, 0, now);
            if !node.prepared.as_ref().is_some_and(is_valid) {
                node.prepared = Some(PreparedNodes::new(&self.policy, [Some(&node.load)], now));
            }
        }
    }

    fn verdict(&self, node: NodeId, pod: &PodToPlace<'_>) -> Verdict<'_> {
        let prepared = self.nodes[node].prepared.as_ref();
        prepared.map_or(Verdict::Accepted, |node| node.verdict(&self.policy, 0, &pod.adds()))
    }

    fn limit_ratio(&self, node: NodeId, pod: PodToPlace<'_>, now: Step) -> f64 {
        let node = &self.nodes[node].load;
        Evaluation { policy: &self.policy, node, pod, now: timestamp(now) }.limit_ratio()
    }

    /// The load of each resource that is typical of these nodes.
    fn typical(&self, nodes: &[NodeId]) -> Vec<f64> {
        let mut typical = Vec::new();
        for group in 0..self.policy.groups() {
            let mut loads = Vec::with_capacity(nodes.len());
            for node in nodes {
                let prepared = self.nodes[*node].prepared.as_ref();
                loads.extend(prepared.and_then(|node| node.present_load(0, group)));
            }
            typical.push(typical_load(&mut loads));
        }
        typical
    }

    fn waits(&self) -> bool {
        matches!(self.policy.policy.overload.when_all, WhenAllOverloaded::Wait { .. })
    }
}

impl Policy for Plimsoll {
    fn hook(&self) -> Hook {
        Hook::Extender { weight: 1 }
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        self.nodes.resize_with(observation.nodes.len(), Node::new);
        if now.is_multiple_of(SUM_UP_EVERY) {
            self.learning.sum_up();
        }
        observation.for_each_slot(|slot, cpu| {
            if self.measured.len() <= slot {
                self.measured.resize(slot + 1, Measured::default());
            }
            let measured = &mut self.measured[slot];
            if let Some(cpu) = cpu {
                measured.cpu += cpu;
                measured.samples += 1;
            } else {
                *measured = Measured::default();
            }
        });
        for (id, (node, sample)) in self.nodes.iter_mut().zip(observation.nodes).enumerate() {
            if !sample.up {
                node.samples.iter_mut().for_each(Samples::clear);
                continue;
            }
            node.samples[0].push(now, sample.cpu);
            node.samples[1].push(now, sample.memory);
            if (now + id as Step).is_multiple_of(PERIOD) {
                node.read(&self.metrics, &mut self.table, now);
            }
            if (now + id as Step).is_multiple_of(LEARNED_EVERY) {
                for pod in &mut node.pods {
                    pod.runs = pod.runs.or_else(|| observation.running(pod.view.id));
                    let Some((slot, mebibytes)) = pod.runs else { continue };
                    let measured = std::mem::take(&mut self.measured[slot]);
                    self.learning.observe(&pod.view, measured, mebibytes, now);
                }
            }
        }
    }

    fn filter(&mut self, pod: &PodView, nodes: &mut Vec<NodeId>, now: Step) {
        if self.policy.policy.limits.is_empty() {
            return;
        }
        let place = self.pod_to_place(pod, now);
        self.prepare(now);
        let verdicts: Vec<Verdict<'_>> =
            nodes.iter().map(|node| self.verdict(*node, &place)).collect();
        let over = pass_over_limits(
            &self.policy.policy.overload,
            place.waited,
            &verdicts,
            |_| true,
            |at| self.limit_ratio(nodes[at], place, now),
            |at| Some(ZONE_NAMES[zone(nodes[at])]),
        );
        let mut passes: Vec<bool> =
            verdicts.iter().map(|verdict| *verdict == Verdict::Accepted).collect();
        over.into_iter().for_each(|at| passes[at] = true);
        let mut passes = passes.into_iter();
        nodes.retain(|_| passes.next().unwrap_or(true));
        if nodes.is_empty() && self.waits() {
            self.refused.entry(pod.id).or_insert(now);
        }
    }

    fn score(&mut self, pod: &PodView, nodes: &[NodeId], points: &mut [i64], now: Step) {
        let place = self.pod_to_place(pod, now);
        self.prepare(now);
        let typical = self.typical(nodes);
        for (node, points) in nodes.iter().zip(points) {
            let Some(node) = &self.nodes[*node].prepared else { continue };
            let score = node.score(&self.policy, 0, &place.adds(), &typical);
            *points = (i64::from(score.get()) * self.scale + 50) / 100;
        }
    }

    fn bound(&mut self, pod: &PodView, node: NodeId, now: Step) {
        self.refused.remove(&pod.id);
        let uses = self.uses(pod, now);
        let horizon = self.policy.policy.binding_horizon();
        let node = &mut self.nodes[node];
        let recent = Arc::make_mut(&mut node.load.recent);
        // Pods start when they are bound.
        recent.bound(&uid(pod), timestamp(now), uses, horizon);
        recent.started(&uid(pod), timestamp(now));
        node.pods.push(BoundPod { view: *pod, runs: None });
        node.prepared = None;
    }

    fn unbound(&mut self, pod: &PodView, node: NodeId, _now: Step) {
        let node = &mut self.nodes[node];
        let Some(at) = node.pods.iter().position(|bound| bound.view.id == pod.id) else { return };
        node.pods.swap_remove(at);
        Arc::make_mut(&mut node.load.recent).ended(&uid(pod));
        node.prepared = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{NodeSample, PodUse};

    const POD: PodView =
        PodView { id: 7, app: 0, kind: AppKind::Service, cpu: 4_000, memory: 8_192 };
    const SAMPLE: NodeSample = NodeSample { up: true, cpu: 0.5, memory: 0.25 };

    fn other(id: PodId) -> PodView {
        PodView { id, ..POD }
    }

    /// Nodes that were measured for so many steps; all their readings are of the last one.
    fn measured(hard_limit: Option<f64>, samples: &[NodeSample], steps: Step) -> Plimsoll {
        let mut plimsoll = Plimsoll::new(hard_limit).unwrap();
        (1..=steps).for_each(|now| plimsoll.observe(&Observation::of_nodes(now, samples)));
        plimsoll
    }

    /// The estimate of what the pod uses, in cores.
    fn estimate(plimsoll: &mut Plimsoll, now: Step) -> f64 {
        plimsoll.uses(&POD, now).cpu
    }

    fn passing(plimsoll: &mut Plimsoll, nodes: usize, now: Step) -> Vec<NodeId> {
        let mut nodes = (0..nodes).collect();
        plimsoll.filter(&POD, &mut nodes, now);
        nodes
    }

    #[test]
    fn pods_are_estimated_by_what_others_of_their_app_use() {
        let mut plimsoll = measured(None, &[SAMPLE], 30);
        assert!((estimate(&mut plimsoll, 30) - 3.4).abs() < 1e-9, "85% of the request");
        plimsoll.bound(&other(1), 0, 30);
        let pods = [(other(1), 0, PodUse { cpu: 1.0, memory: 1_024 })];
        for now in 31..=90 {
            plimsoll.observe(&Observation::of_nodes_and_pods(now, &[SAMPLE], &pods));
        }
        let learned = estimate(&mut plimsoll, 90);
        assert!((learned - 1.0).abs() < 0.01, "{learned}");
    }

    #[test]
    fn a_window_that_is_not_half_full_is_not_read() {
        let mut plimsoll = measured(None, &[SAMPLE], 14);
        let unknown = scores(&mut plimsoll, 1, 14);
        (15..=18).for_each(|now| plimsoll.observe(&Observation::of_nodes(now, &[SAMPLE])));
        assert!(unknown < scores(&mut plimsoll, 1, 18), "{unknown:?}");
    }

    fn scores(plimsoll: &mut Plimsoll, nodes: usize, now: Step) -> Vec<i64> {
        let nodes: Vec<NodeId> = (0..nodes).collect();
        let mut points = vec![0; nodes.len()];
        plimsoll.score(&POD, &nodes, &mut points, now);
        points
    }

    #[test]
    fn a_node_loses_points_for_what_it_would_be_above_what_is_typical() {
        let samples = [busy(0.5), busy(0.1), busy(0.7)];
        let mut plimsoll = measured(None, &samples, 30);
        // 0.5 of CPU and 0.25 of memory are typical. The pod adds 0.10625 and 0.04375, of which the cold node has the
        // latter.
        assert_eq!(scores(&mut plimsoll, 3, 30), [27, 29, 21]);
        // A pod in flight counts.
        plimsoll.bound(&other(1), 1, 30);
        assert!(scores(&mut plimsoll, 3, 30)[1] < 29);
    }

    #[test]
    fn hard_limits_let_a_pod_wait_and_soft_ones_let_the_least_loaded_pass() {
        let samples = [busy(0.9), busy(0.8), busy(0.95)];
        let mut soft = measured(None, &samples, 36);
        assert_eq!(passing(&mut soft, 3, 36), [0, 1, 2]);
        let mut hard = measured(Some(0.6), &samples, 36);
        assert!(passing(&mut hard, 3, 36).is_empty());
        // 0.45 + 0.10625 is below 0.6; at 0.5 it is not.
        let samples = [busy(0.5), busy(0.45)];
        let mut hard = measured(Some(0.6), &samples, 36);
        assert_eq!(passing(&mut hard, 2, 36), [1]);
    }

    fn busy(cpu: f64) -> NodeSample {
        NodeSample { cpu, ..SAMPLE }
    }
}
