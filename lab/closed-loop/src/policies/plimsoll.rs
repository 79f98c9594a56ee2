//! This project's own policy: the load decision of `placement`, with estimates that `workloads` learns from the pods
//! that run.
//!
//! The exporter's windows are means of 5 minutes; one that is not half full, as after a reboot, is left out. The
//! annotator reads each node once a minute, a node after the other: its windows, and what each pod used since the last
//! reading. It tells the extender each reading, and writes the windows when they have moved by more than the dead band,
//! cross a limit, or would expire. What was learned reaches the extender within a minute.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::ensure;
use jiff::SignedDuration;
use placement::estimate::{EstimateRules, LearnedUse, NamespaceRatios, PodProfile};
use placement::learning::Learner;
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, PreparedNodes, Readings, ResolvedPolicy,
    Verdict, pass_over_limits, typical_load,
};
use placement::policy::{LoadPolicy, WhenAllOverloaded};
use placement::publish::{DEFAULT_DEAD_BAND, NodeValues, WriteRules};
use placement::reading::Reading;
use placement::resources::{Amounts, PerResource, PodResources};
use placement::selector::Labels;
use placement::units::{MetricName, PodUid, Ratio};
use placement::workload::WorkloadId;

use super::{Hook, PodView, Policy, Settings};
use crate::cluster::{NODE_CORES, NODE_MEMORY, NodeId, ZONES, zone};
use crate::readings::Samples;
use crate::time::{HOUR, MINUTE, STEP_SECONDS, Step, timestamp};
use crate::workload::{AppId, AppKind, PodId};
use crate::world::Observation;

/// The policy as it is shipped.
const POLICY: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");
/// How often what a pod used is read, and the extender is told what was learned.
const LEARNED_EVERY: Step = MINUTE;
const ZONE_NAMES: [&str; ZONES] = ["a", "b", "c"];
/// Namespaces that the apps are of.
const NAMESPACES: AppId = 15;
/// How often is summed up what namespaces use by their requests.
const SUM_UP_EVERY: Step = 15 * MINUTE;
/// The window of `avg_5m`.
const WINDOW: Step = 5 * MINUTE;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// The policy and how it is run: as shipped, but for what settings say.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    policy: LoadPolicy,
    /// The points of an idle node. kube-scheduler counts each ten times.
    scale: i64,
    /// How often the annotator reads a node.
    period: Step,
    /// Whether a node loses points only for what it would be above what is typical of the candidates; otherwise it is
    /// judged for itself, and the coldest node is the best.
    typical: bool,
    /// Whether a bound pod counts until readings show it.
    in_flight: bool,
    /// Whether kube-scheduler looks at every node, as in the configuration that is shipped for it.
    all_nodes: bool,
    /// Whether readings of CPU count best-effort batch.
    best_effort: bool,
}

impl Setup {
    /// Takes its settings out of the list.
    pub(super) fn of(settings: &mut Settings) -> anyhow::Result<Self> {
        let mut policy = LoadPolicy::from_yaml(POLICY)?;
        let scale = settings.take("scale")?.unwrap_or(i64::from(policy.scoring.scale.highest()));
        if let Some(estimates) = &mut policy.estimates {
            estimates.learned = settings.take_switch("learned")?.unwrap_or(estimates.learned);
        }
        let hard = settings.take("hardLimit")?;
        if hard.is_some() {
            policy.overload.when_all = WhenAllOverloaded::Wait { max_wait: None };
        }
        if let Some(most) = settings.take("limit")?.or(hard) {
            for limit in &mut policy.limits {
                if limit.metric.as_str().starts_with("cpu_") {
                    limit.max = most;
                }
            }
        }
        let seconds = settings.take("period")?.unwrap_or(MINUTE * STEP_SECONDS);
        ensure!(
            seconds > 0 && seconds.is_multiple_of(STEP_SECONDS),
            "setting `period` cannot be `{seconds}`, expected a multiple of {STEP_SECONDS} seconds"
        );
        Ok(Self {
            policy,
            scale,
            period: seconds / STEP_SECONDS,
            typical: settings.take_switch("typical")?.unwrap_or(true),
            in_flight: settings.take_switch("inFlight")?.unwrap_or(true),
            all_nodes: settings.take_switch("allNodes")?.unwrap_or(false),
            best_effort: settings.take_switch("bestEffort")?.unwrap_or(true),
        })
    }
}

pub(super) struct Plimsoll {
    setup: Arc<Setup>,
    policy: Arc<ResolvedPolicy>,
    /// Which of what was read is written, beside what the extender is told.
    write_rules: Arc<WriteRules>,
    /// Readings of nodes that had something to tell, and how many of them were written.
    read: u64,
    written: u64,
    table: MetricTable,
    metrics: [MetricName; 2],
    nodes: Vec<Node>,
    /// What was measured of the pod in each slot since it was last read.
    measured: Vec<Measured>,
    learning: Learning,
    /// Pods that were refused, and when at first.
    refused: HashMap<PodId, Step>,
}

#[derive(Clone)]
struct Node {
    load: NodeLoad,
    /// The load as the policy sees it; `None` since it changed.
    prepared: Option<PreparedNodes>,
    /// As last written.
    written: Vec<(MetricName, Reading)>,
    /// CPU and memory, as fractions of the node.
    samples: [Samples; 2],
    pods: Vec<BoundPod>,
}

#[derive(Clone)]
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

    /// What is known of apps that never ran: nothing but their namespaces.
    fn of_new_apps(&self) -> Self {
        Self { namespaces: self.namespaces.clone(), ..Self::default() }
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
            written: Vec::new(),
            samples: [Samples::new(WINDOW), Samples::new(WINDOW)],
            pods: Vec::new(),
        }
    }

    /// The means of windows that are half full.
    fn read(&self, metrics: &[MetricName; 2], now: Step) -> Vec<(MetricName, Reading)> {
        metrics
            .iter()
            .zip(&self.samples)
            .filter_map(|(metric, samples): (&MetricName, &Samples)| {
                if samples.len() < WINDOW as usize / 2 {
                    return None;
                }
                let value = samples.mean()?;
                Some((metric.clone(), Reading::new(Ratio::new(value)?, timestamp(now))))
            })
            .collect()
    }

    /// Goes by what was read, which the extender is told. What was read before a reboot stays until there is something
    /// new. Returns whether it is written too.
    fn write(
        &mut self,
        readings: Vec<(MetricName, Reading)>,
        rules: &WriteRules,
        table: &mut MetricTable,
        now: Step,
        next: Step,
    ) -> bool {
        let written = NodeValues { readings: &self.written, hot_value: None };
        let read = NodeValues { readings: &readings, hot_value: None };
        let rules = rules.of(&Labels::default());
        let reason = rules.reason(written, read, timestamp(now), timestamp(next));
        if !readings.is_empty() {
            self.load.readings = Arc::new(Readings::new(table, readings.iter().cloned()));
            self.prepared = None;
        }
        if reason.is_some() {
            self.written = readings;
        }
        reason.is_some()
    }
}

impl Plimsoll {
    pub(super) fn new(setup: Setup) -> Self {
        let mut table = MetricTable::default();
        let policy = setup.policy.clone();
        Self {
            write_rules: Arc::new(WriteRules::new(&policy, DEFAULT_DEAD_BAND, None)),
            read: 0,
            written: 0,
            policy: Arc::new(ResolvedPolicy::new(policy, &mut table)),
            table,
            metrics: ["cpu_shared_busy_avg_5m".into(), "mem_usage_avg_5m".into()],
            nodes: Vec::new(),
            measured: Vec::new(),
            learning: Learning::default(),
            refused: HashMap::new(),
            setup: Arc::new(setup),
        }
    }

    /// What the pod will probably use; `None` where the policy estimates nothing.
    fn profile(&mut self, pod: &PodView, now: Step) -> Option<(PodProfile, EstimateRules)> {
        let rules = self.policy.policy.estimates?;
        let learned =
            if rules.learned { self.learning.of(pod, now) } else { PerResource::default() };
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

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(Self {
            setup: Arc::clone(&self.setup),
            policy: Arc::clone(&self.policy),
            write_rules: Arc::clone(&self.write_rules),
            table: self.table.clone(),
            metrics: self.metrics.clone(),
            nodes: self.nodes.clone(),
            measured: Vec::new(),
            learning: self.learning.of_new_apps(),
            refused: HashMap::new(),
            ..*self
        })
    }

    fn looks_at_all_nodes(&self) -> bool {
        self.setup.all_nodes
    }

    fn writes_an_hour(&self) -> Option<f64> {
        Some(self.written as f64 / self.read.max(1) as f64 * f64::from(HOUR / self.setup.period))
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        self.nodes.resize_with(observation.nodes.len(), Node::new);
        if now.is_multiple_of(SUM_UP_EVERY) {
            self.learning.sum_up();
        }
        let learns = self.policy.policy.estimates.as_ref().is_some_and(|rules| rules.learned);
        if learns {
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
        }
        let period = self.setup.period;
        for (id, (node, sample)) in self.nodes.iter_mut().zip(observation.nodes).enumerate() {
            if !sample.up {
                node.samples.iter_mut().for_each(Samples::clear);
                continue;
            }
            node.samples[0].push(now, sample.cpu_with(self.setup.best_effort));
            node.samples[1].push(now, sample.memory);
            if (now + id as Step).is_multiple_of(period) {
                let readings = node.read(&self.metrics, now);
                self.read += u64::from(!readings.is_empty());
                let next = now + period;
                let is_written =
                    node.write(readings, &self.write_rules, &mut self.table, now, next);
                self.written += u64::from(is_written);
            }
            if learns && (now + id as Step).is_multiple_of(LEARNED_EVERY) {
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
        let typical = if self.setup.typical { self.typical(nodes) } else { Vec::new() };
        for (node, points) in nodes.iter().zip(points) {
            let Some(node) = &self.nodes[*node].prepared else { continue };
            let score = node.score(&self.policy, 0, &place.adds(), &typical);
            *points = (i64::from(score.get()) * self.setup.scale + 50) / 100;
        }
    }

    fn bound(&mut self, pod: &PodView, node: NodeId, now: Step) {
        self.refused.remove(&pod.id);
        let uses = if self.setup.in_flight { self.uses(pod, now) } else { Amounts::default() };
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
    const SAMPLE: NodeSample = NodeSample { up: true, cpu: 0.5, memory: 0.25, best_effort: 0.0 };

    fn other(id: PodId) -> PodView {
        PodView { id, ..POD }
    }

    /// Nodes that were measured for so many steps; all their readings are of the last one.
    fn measured(settings: &str, samples: &[NodeSample], steps: Step) -> Plimsoll {
        let scale = if settings.contains("scale") { "" } else { ",scale=100" };
        let rest = if settings.is_empty() { String::new() } else { format!(",{settings}") };
        // Each node is judged for itself.
        let mut settings: Settings = format!("typical=off{scale}{rest}").parse().unwrap();
        let mut plimsoll = Plimsoll::new(Setup::of(&mut settings).unwrap());
        (1..=steps).for_each(|now| plimsoll.observe(&Observation::of_nodes(now, samples)));
        plimsoll
    }

    fn points(plimsoll: &mut Plimsoll, now: Step) -> i64 {
        let mut points = [0];
        plimsoll.score(&POD, &[0], &mut points, now);
        points[0]
    }

    fn passing(plimsoll: &mut Plimsoll, nodes: usize, now: Step) -> Vec<NodeId> {
        let mut nodes = (0..nodes).collect();
        plimsoll.filter(&POD, &mut nodes, now);
        nodes
    }

    #[test]
    fn score_counts_the_mean_pods_in_flight_and_the_pod_itself() {
        // 0.5 + 4·0.85/32 = 0.606, and 0.5 + 2·4·0.85/32 = 0.7125.
        for (settings, before, after) in
            [("", 39, 28), ("scale=30", 12, 8), ("scale=100,inFlight=off", 39, 39)]
        {
            let mut plimsoll = measured(settings, &[SAMPLE], 30);
            assert_eq!(points(&mut plimsoll, 30), before);
            plimsoll.bound(&other(1), 0, 30);
            assert_eq!(points(&mut plimsoll, 30), after);
            plimsoll.unbound(&other(1), 0, 30);
            assert_eq!(points(&mut plimsoll, 30), before);
        }
    }

    #[test]
    fn a_copy_decides_alike_and_what_is_bound_there_does_not_count_here() {
        let mut plimsoll = measured("", &[SAMPLE], 30);
        let mut copy = plimsoll.copy();
        copy.bound(&other(1), 0, 30);
        let mut points_there = [0];
        copy.score(&POD, &[0], &mut points_there, 30);
        assert_eq!((points_there, points(&mut plimsoll, 30)), ([28], 39));
    }

    #[test]
    fn pods_of_an_app_that_runs_are_estimated_by_the_mean_of_what_they_use() {
        for (settings, expected) in [("", 46), ("learned=off", 39)] {
            let mut plimsoll = measured(settings, &[SAMPLE], 30);
            plimsoll.bound(&other(1), 0, 30);
            let pods = [(other(1), 0, PodUse { cpu: 1.0, memory: 1_024 })];
            for now in 31..=90 {
                let observation = Observation::of_nodes_and_pods(now, &[SAMPLE], &pods);
                plimsoll.observe(&observation);
            }
            // The one pod shows in the mean. 0.5 + 1/32 = 0.531, or 0.606 by the request.
            assert_eq!(points(&mut plimsoll, 90), expected);
        }
    }

    #[test]
    fn a_window_that_is_not_half_full_is_not_written_and_the_node_is_the_last_choice() {
        let mut plimsoll = measured("", &[SAMPLE], 12);
        assert_eq!(points(&mut plimsoll, 12), 0);
        (13..=18).for_each(|now| plimsoll.observe(&Observation::of_nodes(now, &[SAMPLE])));
        assert_eq!(points(&mut plimsoll, 18), 39);
    }

    #[test]
    fn a_node_loses_points_for_what_it_would_be_above_what_is_typical() {
        let samples = [busy(0.5), busy(0.1), busy(0.7)];
        let mut plimsoll = Plimsoll::new(Setup::of(&mut Settings::default()).unwrap());
        (1..=30).for_each(|now| plimsoll.observe(&Observation::of_nodes(now, &samples)));
        let mut points = [0; 3];
        plimsoll.score(&POD, &[0, 1, 2], &mut points, 30);
        // 0.5 of CPU and 0.25 of memory are typical. The pod adds 0.10625 and 0.04375, of which the cold node has the
        // latter.
        assert_eq!(points, [27, 29, 21]);
    }

    #[test]
    fn hard_limits_let_a_pod_wait_and_soft_ones_let_the_least_loaded_pass() {
        let samples = [busy(0.9), busy(0.8), busy(0.95)];
        let mut soft = measured("", &samples, 36);
        assert_eq!(passing(&mut soft, 3, 36), [0, 1, 2]);
        let mut hard = measured("hardLimit=0.6", &samples, 36);
        assert!(passing(&mut hard, 3, 36).is_empty());
        // 0.45 + 0.10625 is below 0.6; at 0.5 it is not.
        let samples = [busy(0.5), busy(0.45)];
        let mut hard = measured("hardLimit=0.6", &samples, 36);
        assert_eq!(passing(&mut hard, 2, 36), [1]);
    }

    fn busy(cpu: f64) -> NodeSample {
        NodeSample { cpu, ..SAMPLE }
    }
}
