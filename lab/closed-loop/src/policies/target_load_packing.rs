//! Trimaran's `TargetLoadPacking` with its defaults (40%, 1.5 times the request) and weight 1, as its Go code computes
//! (kubernetes-sigs/scheduler-plugins, `pkg/trimaran/targetloadpacking`). No filter. Its documents switch
//! LeastAllocated and BalancedAllocation off.

use std::collections::VecDeque;

use super::watcher::Watcher;
use super::{Hook, PodView, Policy};
use crate::cluster::{NODE_CPU, NodeId};
use crate::time::{MINUTE, Step};
use crate::world::Observation;

/// `targetUtilization`: percent.
const TARGET: f64 = 40.0;
/// `defaultRequestsMultiplier`.
const MULTIPLIER: f64 = 1.5;
/// Pods bound less than this before the window's end are not in its readings.
const AGENT_INTERVAL: Step = MINUTE;
/// For how long bindings are kept.
const KEPT: Step = 5 * MINUTE;

#[derive(Clone, Default)]
pub(super) struct TargetLoadPacking {
    beside_resource_scores: bool,
    watcher: Watcher,
    /// By node: when pods were bound, and what each is expected to use, in thousandths of a core.
    bound: Vec<VecDeque<(Step, f64)>>,
}

fn expected_use(pod: &PodView) -> f64 {
    (f64::from(pod.cpu) * MULTIPLIER).round()
}

/// Points of a node that will use `percent`.
fn points(percent: f64) -> i64 {
    let points = if percent <= TARGET {
        (100.0 - TARGET) * percent / TARGET + TARGET
    } else if percent <= 100.0 {
        TARGET * (100.0 - percent) / (100.0 - TARGET)
    } else {
        0.0
    };
    points.round() as i64
}

impl TargetLoadPacking {
    pub(super) fn new(beside_resource_scores: bool) -> Self {
        Self { beside_resource_scores, ..Self::default() }
    }

    fn percent(&self, pod: &PodView, node: NodeId) -> Option<f64> {
        let [cpu, _] = self.watcher.readings(node)?;
        let end = self.watcher.polled_at;
        let missing = self.bound[node]
            .iter()
            .filter(|(at, _)| *at > end || end - at < AGENT_INTERVAL)
            .map(|(_, used)| used);
        let used = cpu.mean * f64::from(NODE_CPU) + expected_use(pod) + missing.sum::<f64>();
        Some(100.0 * used / f64::from(NODE_CPU))
    }
}

impl Policy for TargetLoadPacking {
    fn hook(&self) -> Hook {
        Hook::Plugin { weight: 1 }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn keeps_resource_scores(&self) -> bool {
        self.beside_resource_scores
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        self.watcher.observe(observation.now, observation.nodes);
        self.bound.resize_with(observation.nodes.len(), VecDeque::new);
    }

    fn score(&mut self, pod: &PodView, nodes: &[NodeId], score: &mut [i64], _now: Step) {
        for (node, score) in nodes.iter().zip(score) {
            *score = self.percent(pod, *node).map_or(0, points);
        }
    }

    fn bound(&mut self, pod: &PodView, node: NodeId, now: Step) {
        let bound = &mut self.bound[node];
        while bound.front().is_some_and(|(at, _)| now - at > KEPT) {
            bound.pop_front();
        }
        bound.push_back((now, expected_use(pod)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::AppKind;
    use crate::world::NodeSample;

    #[test]
    fn points_rise_to_the_target_and_fall_after_it() {
        // 60·20/40 + 40; 60·40/40 + 40; 40·(100−70)/60; over 100 nothing.
        assert_eq!([20.0, 40.0, 70.0, 100.0, 101.0].map(points), [70, 100, 20, 0, 0]);
        assert_eq!(points(0.0), 40);
    }

    #[test]
    fn pods_that_readings_cannot_show_yet_count_with_their_expected_use() {
        let pod = PodView { id: 0, app: 0, kind: AppKind::Job, cpu: 3_200, memory: 1 };
        let mut packing = TargetLoadPacking::default();
        observe(&mut packing, 0);
        packing.bound(&pod, 0, 0);
        // 10% used, 15% of the pod, 15% of the one before.
        assert!((packing.percent(&pod, 0).unwrap() - 40.0).abs() < 1e-9);
        (1..=5).for_each(|now| observe(&mut packing, now));
        assert!((packing.percent(&pod, 0).unwrap() - 40.0).abs() < 1e-9);
        observe(&mut packing, 6);
        assert!((packing.percent(&pod, 0).unwrap() - 25.0).abs() < 1e-9);
    }

    fn observe(packing: &mut TargetLoadPacking, now: Step) {
        let samples = [NodeSample { up: true, cpu: 0.1, memory: 0.1, best_effort: 0.0 }];
        packing.observe(&Observation::of_nodes(now, &samples));
    }
}
