//! Trimaran's `LoadVariationRiskBalancing` with its defaults (margin 1, sensitivity 1) and weight 1, as its Go code
//! computes (kubernetes-sigs/scheduler-plugins, `pkg/trimaran/loadvariationriskbalancing`). No filter. Its documents
//! switch LeastAllocated and BalancedAllocation off.

use super::watcher::{Reading, Watcher};
use super::{Hook, PodView, Policy};
use crate::cluster::{NODE_CPU, NODE_MEMORY, NodeId};
use crate::time::Step;
use crate::world::Observation;

#[derive(Clone, Default)]
pub(super) struct LoadVariationRiskBalancing {
    beside_resource_scores: bool,
    watcher: Watcher,
}

/// 100·(1 − (μ + σ)/2), where μ includes the request; each is cut to 0..=1.
fn points(reading: Reading, request: u32, capacity: u32) -> f64 {
    let mean = reading.mean.clamp(0.0, 1.0) + f64::from(request) / f64::from(capacity);
    let mean = mean.clamp(0.0, 1.0);
    let deviation = reading.deviation.clamp(0.0, 1.0);
    (1.0 - f64::midpoint(mean, deviation)) * 100.0
}

impl LoadVariationRiskBalancing {
    pub(super) fn new(beside_resource_scores: bool) -> Self {
        Self { beside_resource_scores, ..Self::default() }
    }

    fn points(&self, pod: &PodView, node: NodeId) -> i64 {
        let Some([cpu, memory]) = self.watcher.readings(node) else { return 0 };
        points(cpu, pod.cpu, NODE_CPU).min(points(memory, pod.memory, NODE_MEMORY)).round() as i64
    }
}

impl Policy for LoadVariationRiskBalancing {
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
    }

    fn score(&mut self, pod: &PodView, nodes: &[NodeId], points: &mut [i64], _now: Step) {
        for (node, points) in nodes.iter().zip(points) {
            *points = self.points(pod, *node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risk_is_half_of_mean_and_deviation() {
        // μ = 0.3 + 3,200/32,000 = 0.4, σ = 0.1: 100·(1 − 0.25).
        let reading = Reading { mean: 0.3, deviation: 0.1 };
        assert!((points(reading, 3_200, 32_000) - 75.0).abs() < 1e-9);
        // μ is cut to 1: 100·(1 − (1 + 0.2)/2).
        let full = Reading { mean: 0.99, deviation: 0.2 };
        assert!((points(full, 3_200, 32_000) - 40.0).abs() < 1e-9);
    }
}
