//! Koordinator's plugin `LoadAwareScheduling` with its defaults and weight 1, as its Go code computes
//! (koordinator-sh/koordinator, `pkg/scheduler/plugins/loadaware`).
//!
//! koordlet samples each second and reports a NodeMetric each minute; here it samples at each step. The usage of a node
//! is the mean of 5 minutes, or a 95th percentile where `aggregated` is configured (of 5 minutes, or of 30, which it
//! takes where no duration is set). A pod counts with its estimate until a report was made a whole interval after its
//! binding.

use super::{Hook, PodView, Policy, Settings};
use crate::cluster::{NODE_CORES, NODE_CPU, NODE_MEMORY, NodeId};
use crate::readings::Samples;
use crate::time::{MINUTE, Step};
use crate::workload::PodId;
use crate::world::Observation;

/// `estimatedScalingFactors`: percent of requests.
const ESTIMATE: [i64; 2] = [85, 70];
/// `usageThresholds`: percent of CPU and memory.
const LIMITS: [i64; 2] = [65, 95];
/// `nodeMetricExpirationSeconds`.
const EXPIRATION: Step = 3 * MINUTE;
/// koordlet's report interval.
const REPORT_INTERVAL: Step = MINUTE;
/// What a node has, in thousandths of a core and MiB.
const CAPACITY: [i64; 2] = [NODE_CPU as i64, NODE_MEMORY as i64];

/// Which aggregate of a node's usage counts, in Filter and in Score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// The mean of 5 minutes: the default.
    Average,
    /// `usageAggregationType: p95`, `usageAggregatedDuration: 5m`.
    P95OfFiveMinutes,
    /// `usageAggregationType: p95` without a duration: the longest that is reported.
    P95OfHalfAnHour,
}

#[derive(Clone)]
pub(super) struct Koordinator {
    usage: Usage,
    /// Percent of CPU and memory above which a node takes no pod.
    limits: [i64; 2],
    /// Whether best-effort batch counts: it does not with `prodUsageThresholds`.
    best_effort: bool,
    nodes: Vec<Node>,
}

#[derive(Clone)]
struct Node {
    samples: [Samples; 2],
    report: Option<Report>,
    /// Pods that a report may not show yet.
    assigned: Vec<Assigned>,
    /// Use of the node and estimates of its assigned pods.
    predicted: [i64; 2],
}

#[derive(Clone, Copy)]
struct Report {
    at: Step,
    usage: [i64; 2],
}

#[derive(Clone)]
struct Assigned {
    pod: PodId,
    at: Step,
    estimate: [i64; 2],
    /// Sum of its CPU samples in thousandths of a core, their number, and its memory.
    measured: (f64, u32, i64),
    /// What the last report says of it.
    reported: Option<[i64; 2]>,
}

impl Node {
    fn new(usage: Usage) -> Self {
        let window = if usage == Usage::P95OfHalfAnHour { 30 * MINUTE } else { 5 * MINUTE };
        Self {
            samples: [Samples::new(window), Samples::new(window)],
            report: None,
            assigned: Vec::new(),
            predicted: [0; 2],
        }
    }

    fn report(&mut self, usage: Usage, now: Step) {
        let of_window = self.samples.each_ref().map(|samples| match usage {
            Usage::Average => samples.mean(),
            Usage::P95OfFiveMinutes | Usage::P95OfHalfAnHour => samples.quantile(0.95),
        });
        if let [Some(cpu), Some(memory)] = of_window {
            self.report =
                Some(Report { at: now, usage: [cpu.round() as i64, memory.round() as i64] });
        }
        for pod in &mut self.assigned {
            let (cpu, samples, memory) = pod.measured;
            pod.reported =
                (samples > 0).then(|| [(cpu / f64::from(samples)).round() as i64, memory]);
        }
        self.assigned.retain(|pod| pod.reported.is_none() || now - pod.at < REPORT_INTERVAL);
        self.predict();
    }

    /// `GetEstimatedUsed` but for the incoming pod.
    fn predict(&mut self) {
        let usage = self.report.map_or([0; 2], |report| report.usage);
        self.predicted = [0, 1].map(|resource| {
            let mut actual: i64 = 0;
            let mut estimated: i64 = 0;
            for pod in &self.assigned {
                let reported = pod.reported.map_or(0, |reported| reported[resource]);
                actual += reported;
                estimated += pod.estimate[resource].max(reported);
            }
            let rest =
                if usage[resource] >= actual { usage[resource] - actual } else { usage[resource] };
            estimated + rest
        });
    }
}

fn estimate(pod: &PodView) -> [i64; 2] {
    [percent(pod.cpu, ESTIMATE[0]), percent(pod.memory, ESTIMATE[1])]
}

fn percent(request: u32, factor: i64) -> i64 {
    (i64::from(request) * factor + 50) / 100
}

impl Koordinator {
    /// As shipped, but for what settings say.
    pub(super) fn new(usage: Usage, settings: &mut Settings) -> anyhow::Result<Self> {
        let limits = [settings.take("limit")?.unwrap_or(LIMITS[0]), LIMITS[1]];
        let best_effort = settings.take_switch("bestEffort")?.unwrap_or(true);
        Ok(Self { usage, limits, best_effort, nodes: Vec::new() })
    }

    /// What the node will use with the pod; `None` without a valid NodeMetric.
    fn predicted(&self, pod: &PodView, node: NodeId, now: Step) -> Option<[i64; 2]> {
        let node = &self.nodes[node];
        let valid = node.report.is_some_and(|report| now - report.at < EXPIRATION);
        let estimate = estimate(pod);
        valid.then(|| [node.predicted[0] + estimate[0], node.predicted[1] + estimate[1]])
    }

    fn accepts(&self, pod: &PodView, node: NodeId, now: Step) -> bool {
        let Some(used) = self.predicted(pod, node, now) else {
            // Without a NodeMetric the plugin has no say; an expired one rejects.
            return self.nodes[node].report.is_none();
        };
        // round(100·used ÷ capacity) > limit, in whole numbers: a half is rounded up.
        ![0, 1].iter().any(|r| 200 * used[*r] >= (2 * self.limits[*r] + 1) * CAPACITY[*r])
    }

    fn points(&self, pod: &PodView, node: NodeId, now: Step) -> i64 {
        let Some(used) = self.predicted(pod, node, now) else { return 0 };
        let [cpu, memory] = [0, 1].map(|r| ((CAPACITY[r] - used[r]) * 100 / CAPACITY[r]).max(0));
        (cpu + memory) / 2
    }
}

impl Policy for Koordinator {
    fn hook(&self) -> Hook {
        Hook::Plugin { weight: 1 }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        let usage = self.usage;
        self.nodes.resize_with(observation.nodes.len(), || Node::new(usage));
        for (id, (node, sample)) in self.nodes.iter_mut().zip(observation.nodes).enumerate() {
            if !sample.up {
                // koordlet's samples are in memory.
                node.samples.iter_mut().for_each(Samples::clear);
                continue;
            }
            let cpu = sample.cpu_with(self.best_effort);
            node.samples[0].push(now, cpu * f64::from(NODE_CPU));
            node.samples[1].push(now, sample.memory * f64::from(NODE_MEMORY));
            for pod in &mut node.assigned {
                if let Some(used) = observation.pod(pod.pod) {
                    let thousandths = used.cpu / NODE_CORES * f64::from(NODE_CPU);
                    let (cpu, samples, _) = pod.measured;
                    pod.measured = (cpu + thousandths, samples + 1, i64::from(used.memory));
                }
            }
            if (now + id as Step).is_multiple_of(REPORT_INTERVAL) {
                node.report(usage, now);
            }
        }
    }

    fn filter(&mut self, pod: &PodView, nodes: &mut Vec<NodeId>, now: Step) {
        nodes.retain(|node| self.accepts(pod, *node, now));
    }

    fn score(&mut self, pod: &PodView, nodes: &[NodeId], points: &mut [i64], now: Step) {
        for (node, points) in nodes.iter().zip(points) {
            *points = self.points(pod, *node, now);
        }
    }

    fn bound(&mut self, pod: &PodView, node: NodeId, now: Step) {
        let assigned = Assigned {
            pod: pod.id,
            at: now,
            estimate: estimate(pod),
            measured: (0.0, 0, 0),
            reported: None,
        };
        let node = &mut self.nodes[node];
        node.assigned.push(assigned);
        node.predict();
    }

    fn unbound(&mut self, pod: &PodView, node: NodeId, _now: Step) {
        let node = &mut self.nodes[node];
        let before = node.assigned.len();
        node.assigned.retain(|assigned| assigned.pod != pod.id);
        if node.assigned.len() != before {
            node.predict();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::AppKind;
    use crate::world::{NodeSample, PodUse};

    const POD: PodView = PodView { id: 7, app: 0, kind: AppKind::Job, cpu: 4_000, memory: 8_192 };

    fn shipped(usage: Usage) -> Koordinator {
        Koordinator::new(usage, &mut Settings::default()).unwrap()
    }

    fn with_node(cpu: f64, memory: f64) -> Koordinator {
        let mut koordinator = shipped(Usage::Average);
        let samples = [NodeSample { up: true, cpu, memory, best_effort: 0.0 }];
        (0..=6).for_each(|now| koordinator.observe(&Observation::of_nodes(now, &samples)));
        koordinator
    }

    #[test]
    fn score_counts_usage_pods_in_flight_and_the_pod_itself() {
        let mut koordinator = with_node(0.5, 0.25);
        // 16,000 + 3,400 of 32,000: 39.4; 32,768 + 5,734 of 131,072: 70.6; (39 + 70)/2.
        assert_eq!(koordinator.points(&POD, 0, 6), 54);
        koordinator.bound(&PodView { id: 1, ..POD }, 0, 6);
        // 16,000 + 2 · 3,400: 28.7; 32,768 + 2 · 5,734: 66.2.
        assert_eq!(koordinator.points(&POD, 0, 6), 47);
        koordinator.unbound(&PodView { id: 1, ..POD }, 0, 7);
        assert_eq!(koordinator.points(&POD, 0, 7), 54);
    }

    #[test]
    fn a_pod_is_estimated_until_a_report_an_interval_after_its_binding() {
        let mut koordinator = with_node(0.5, 0.25);
        koordinator.bound(&PodView { id: 1, ..POD }, 0, 7);
        let samples = [NodeSample { up: true, cpu: 0.5, memory: 0.25, best_effort: 0.0 }];
        let pods = [(PodView { id: 1, ..POD }, 0, PodUse { cpu: 5.0, memory: 1_000 })];
        for now in 8..=18 {
            koordinator.observe(&Observation::of_nodes_and_pods(now, &samples, &pods));
            if now == 12 {
                // Bound within the interval before the report: the larger of estimate and use (5,000) in place of its
                // use.
                assert_eq!(koordinator.nodes[0].predicted[0], 16_000 - 5_000 + 5_000);
                assert_eq!(koordinator.nodes[0].predicted[1], 32_768 - 1_000 + 5_734);
            }
        }
        assert_eq!(koordinator.nodes[0].predicted, [16_000, 32_768], "known by now");
    }

    #[test]
    fn filter_holds_the_predicted_use_against_the_limit() {
        // 0.54·32,000 + 3,400 = 20,680: 64.6% rounds to 65; 0.55: 65.6% rounds to 66.
        assert!(with_node(0.54, 0.2).accepts(&POD, 0, 6));
        assert!(!with_node(0.55, 0.2).accepts(&POD, 0, 6));
    }

    #[test]
    fn an_expired_report_rejects_and_a_missing_one_does_not() {
        let koordinator = with_node(0.1, 0.1);
        assert!(koordinator.accepts(&POD, 0, 6 + 17));
        assert!(!koordinator.accepts(&POD, 0, 6 + 18));
        assert_eq!(koordinator.points(&POD, 0, 6 + 18), 0);
        let mut new = shipped(Usage::Average);
        let samples = [NodeSample { up: false, cpu: 0.0, memory: 0.0, best_effort: 0.0 }];
        new.observe(&Observation::of_nodes(0, &samples));
        assert!(new.accepts(&POD, 0, 0));
    }

    #[test]
    fn p95_counts_peaks_that_the_mean_hides() {
        let mut koordinator = shipped(Usage::P95OfFiveMinutes);
        for now in 0..=30 {
            let cpu = if now % 10 == 0 { 0.9 } else { 0.1 };
            let samples = [NodeSample { up: true, cpu, memory: 0.1, best_effort: 0.0 }];
            koordinator.observe(&Observation::of_nodes(now, &samples));
        }
        assert_eq!(koordinator.nodes[0].report.unwrap().usage[0], 28_800);
    }
}
