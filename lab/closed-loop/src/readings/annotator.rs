//! crane's annotator: which value of which metric a Node's annotations show at which time, and its count of bindings.

use std::collections::VecDeque;

use placement::policy::{HotRule, LoadPolicy};

use super::Rules;
use crate::cluster::NodeId;
use crate::time::{MINUTE, STEP_SECONDS, Step};
use crate::world::NodeSample;

/// The metrics of crane's policy, in the order of [`METRICS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in policies.
    pub name: &'static str,
    /// 0 is CPU, 1 is memory.
    resource: usize,
    /// Index of the value of [`Rules::values`].
    value: usize,
}

/// The six metrics of crane's shipped policy.
pub const METRICS: [Metric; 6] = [
    Metric { name: "cpu_usage_avg_5m", resource: 0, value: 0 },
    Metric { name: "cpu_usage_max_avg_1h", resource: 0, value: 1 },
    Metric { name: "cpu_usage_max_avg_1d", resource: 0, value: 2 },
    Metric { name: "mem_usage_avg_5m", resource: 1, value: 0 },
    Metric { name: "mem_usage_max_avg_1h", resource: 1, value: 1 },
    Metric { name: "mem_usage_max_avg_1d", resource: 1, value: 2 },
];

/// The time that the annotator takes for one round over all nodes. Its rate towards the API server is 5 writes a
/// second, and each metric of a node takes two.
const ROUND: Step = 3 * MINUTE;

/// What a Node's annotations say.
#[derive(Debug, Clone, Default)]
pub struct NodeNotes {
    /// Value, to five places, and time of writing, in the order of [`METRICS`].
    pub values: [Option<(f64, Step)>; METRICS.len()],
    /// crane's hot value and its time.
    pub hot_value: Option<(u64, Step)>,
    rules: [Rules; 2],
    bindings: VecDeque<Step>,
}

/// The annotations of all nodes. Every period a metric of all nodes is queued; the queue takes three minutes to drain,
/// so each node has its own place within them.
#[derive(Debug, Clone)]
pub struct Annotator {
    periods: [Step; METRICS.len()],
    hot: Vec<HotRule>,
    horizon: Step,
    nodes: Vec<NodeNotes>,
}

impl Annotator {
    /// The annotator under a policy of crane.
    pub fn new(policy: &LoadPolicy) -> Self {
        Self {
            periods: METRICS.map(|metric| {
                let rule = policy.sync.iter().find(|rule| rule.metric.as_str() == metric.name);
                rule.map_or(0, |rule| rule.period.as_secs() as Step / STEP_SECONDS)
            }),
            hot: policy.hot.clone(),
            horizon: policy.hot_horizon().as_secs() as Step / STEP_SECONDS,
            nodes: Vec::new(),
        }
    }

    /// What the annotations of a node say.
    pub fn node(&self, node: NodeId) -> &NodeNotes {
        &self.nodes[node]
    }

    /// Samples all nodes, evaluates rules, writes what is due. Returns the nodes whose annotations changed.
    pub fn step(&mut self, now: Step, samples: &[NodeSample]) -> Vec<NodeId> {
        self.nodes.resize_with(samples.len(), NodeNotes::default);
        let mut changed = Vec::new();
        for (node, (notes, sample)) in self.nodes.iter_mut().zip(samples).enumerate() {
            for (rules, value) in notes.rules.iter_mut().zip([sample.cpu, sample.memory]) {
                rules.step(now, sample.up.then_some(value));
            }
            let in_round = (node as Step * 7) % ROUND;
            let mut wrote = false;
            for (metric, period) in self.periods.into_iter().enumerate() {
                let is_due =
                    period > 0 && now >= in_round && (now - in_round).is_multiple_of(period);
                if !is_due {
                    continue;
                }
                let Metric { resource, value, .. } = METRICS[metric];
                if let Some(value) = notes.rules[resource].values()[value] {
                    notes.values[metric] = Some(((value * 1e5).round() / 1e5, now));
                    wrote = true;
                }
            }
            if wrote {
                notes.hot_value = Some((hot_value(&self.hot, &notes.bindings, now), now));
                changed.push(node);
            }
        }
        changed
    }

    /// Notes a binding that the API server reported.
    pub fn bound(&mut self, node: NodeId, now: Step) {
        let bindings = &mut self.nodes[node].bindings;
        while bindings.front().is_some_and(|at| now - at > self.horizon) {
            bindings.pop_front();
        }
        bindings.push_back(now);
    }
}

/// The sum over the rules of ⌊bindings later than now − range ÷ count⌋.
fn hot_value(rules: &[HotRule], bindings: &VecDeque<Step>, now: Step) -> u64 {
    rules
        .iter()
        .map(|rule| {
            let range = rule.range.as_secs() as Step / STEP_SECONDS;
            let within = bindings.iter().filter(|at| now - **at < range).count();
            within as u64 / u64::from(rule.count)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::crane_policy;
    use crate::time::HOUR;

    #[test]
    fn each_metric_is_written_at_its_own_period_and_each_node_at_its_own_time() {
        let mut annotator = Annotator::new(&crane_policy().unwrap());
        let samples = vec![NodeSample { up: true, cpu: 0.5, memory: 0.25, best_effort: 0.0 }; 3];
        let mut writes = vec![Vec::new(); 3];
        for now in 0..HOUR {
            for node in annotator.step(now, &samples) {
                writes[node].push(now);
            }
        }
        // Every 3 minutes, the 15 minutes of the hourly maximum among them.
        assert_eq!(writes[0], (0..20).map(|n| n * 18).collect::<Vec<_>>());
        assert_eq!(writes[1], (0..20).map(|n| 7 + n * 18).collect::<Vec<_>>());
        let notes = annotator.node(1);
        let times = notes.values.map(|value| value.map(|(_, at)| at));
        assert_eq!(times[..3], [Some(349), Some(277), Some(7)]);
        assert_eq!(notes.values[3], Some((0.25, 349)));
    }

    #[test]
    fn hot_value_counts_bindings_as_crane_does() {
        let mut annotator = Annotator::new(&crane_policy().unwrap());
        let samples = vec![NodeSample { up: true, cpu: 0.5, memory: 0.25, best_effort: 0.0 }];
        for now in 0..=36 {
            annotator.step(now, &samples);
            if (14..25).contains(&now) {
                annotator.bound(0, now);
            }
        }
        // At step 36: 11 bindings within 5 minutes, ⌊11/5⌋ = 2; none within a minute (later than step 30).
        assert_eq!(annotator.node(0).hot_value, Some((2, 36)));
    }
}
