//! crane-scheduler's plugin `Dynamic` with its shipped policy and weight 3, as its Go code computes
//! (gocrane/crane-scheduler c2c0533, `pkg/plugins/dynamic/{plugins,stats}.go`).

use placement::policy::LoadPolicy;
use placement::units::MetricName;

use super::{Hook, PodView, Policy};
use crate::cluster::NodeId;
use crate::readings::{Annotator, METRICS, NodeNotes};
use crate::time::{MINUTE, STEP_SECONDS, Step};
use crate::world::Observation;

/// For how long a hot value counts.
const HOT_VALUE_ACTIVE: Step = 5 * MINUTE;

#[derive(Clone)]
pub(super) struct CranePlugin {
    rules: Rules,
    annotator: Annotator,
    /// Whether each node passes the filter at this step: it depends on annotations alone, and many pods may wait.
    accepted: Vec<bool>,
}

/// The policy, by the place of its metrics in [`METRICS`].
#[derive(Clone)]
struct Rules {
    /// Metric, limit and active duration.
    limits: Vec<(usize, f64, Step)>,
    /// Metric, weight and active duration.
    weights: Vec<(usize, f64, Step)>,
}

/// The place of a metric in [`METRICS`].
fn place(name: &MetricName) -> Option<usize> {
    METRICS.iter().position(|metric| metric.name == name.as_str())
}

fn steps(age: Option<jiff::SignedDuration>) -> Step {
    age.map_or(0, |age| age.as_secs() as Step / STEP_SECONDS)
}

impl Rules {
    fn new(policy: &LoadPolicy) -> Self {
        let limits = policy.limits.iter();
        let limits = limits.filter_map(|l| Some((place(&l.metric)?, l.max, steps(l.max_age))));
        let weights = policy.weights.iter();
        let weights = weights.filter_map(|w| Some((place(&w.metric)?, w.weight, steps(w.max_age))));
        Self { limits: limits.collect(), weights: weights.collect() }
    }

    /// `Filter`: a fresh value over its limit rejects.
    fn accepts(&self, notes: &NodeNotes, now: Step) -> bool {
        !self.limits.iter().any(|(metric, max, active): &(usize, f64, Step)| {
            notes.values[*metric].is_some_and(|(value, at)| now < at + active && value > *max)
        })
    }

    /// `Score`: values that are not fresh add nothing and keep their weight.
    fn score(&self, notes: &NodeNotes, now: Step) -> i64 {
        let mut points = 0.0;
        let mut weights = 0.0;
        for (metric, weight, active) in &self.weights {
            weights += weight;
            if let Some((value, at)) = notes.values[*metric]
                && now < at + active
            {
                points += (1.0 - value) * weight * 100.0;
            }
        }
        let load = if self.weights.is_empty() { 0 } else { (points / weights) as i64 };
        let hot = notes
            .hot_value
            .filter(|(_, at): &(u64, Step)| now < at + HOT_VALUE_ACTIVE)
            .map_or(0, |(count, _)| count as i64);
        (load - hot * 10).clamp(0, 100)
    }
}

impl CranePlugin {
    pub(super) fn new(policy: &LoadPolicy) -> Self {
        Self { rules: Rules::new(policy), annotator: Annotator::new(policy), accepted: Vec::new() }
    }
}

impl Policy for CranePlugin {
    fn hook(&self) -> Hook {
        Hook::Plugin { weight: 3 }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        self.annotator.step(now, observation.nodes);
        self.accepted = (0..observation.nodes.len())
            .map(|node| self.rules.accepts(self.annotator.node(node), now))
            .collect();
    }

    fn filter(&mut self, _pod: &PodView, nodes: &mut Vec<NodeId>, _now: Step) {
        nodes.retain(|node| self.accepted[*node]);
    }

    fn score(&mut self, _pod: &PodView, nodes: &[NodeId], points: &mut [i64], now: Step) {
        for (node, points) in nodes.iter().zip(points) {
            *points = self.rules.score(self.annotator.node(*node), now);
        }
    }

    fn bound(&mut self, _pod: &PodView, node: NodeId, now: Step) {
        self.annotator.bound(node, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::crane_policy;

    fn notes(cpu: [f64; 3], memory: [f64; 3], at: Step, hot: u64) -> NodeNotes {
        let mut notes = NodeNotes::default();
        for (place, value) in cpu.into_iter().chain(memory).enumerate() {
            notes.values[place] = Some((value, at));
        }
        notes.hot_value = Some((hot, at));
        notes
    }

    #[test]
    fn score_is_the_weighted_mean_of_what_is_free_less_ten_a_hot_value() {
        let rules = Rules::new(&crane_policy().unwrap());
        // CPU: 0.2·70 + 0.3·60 + 0.5·50 = 57; memory: 0.2·60 + 0.3·50 + 0.5·45 = 49.5; 106.5/2 = 53.25.
        let node = notes([0.3, 0.4, 0.5], [0.4, 0.5, 0.55], 0, 0);
        assert_eq!(rules.score(&node, 0), 53);
        let hot = notes([0.3, 0.4, 0.5], [0.4, 0.5, 0.55], 0, 2);
        assert_eq!(rules.score(&hot, 0), 33);
        // After 5 minutes the hot value is no longer valid; after 8 the 5-minute means are not either and lose
        // 0.2·70 + 0.2·60 = 26 of 106.5: 80.5/2 = 40.25.
        assert_eq!(rules.score(&hot, 30), 53);
        assert_eq!(rules.score(&hot, 48), 40);
        assert_eq!(rules.score(&NodeNotes::default(), 0), 0);
    }

    #[test]
    fn filter_rejects_over_a_limit_and_passes_what_is_not_known() {
        let rules = Rules::new(&crane_policy().unwrap());
        assert!(rules.accepts(&notes([0.65, 0.75, 1.0], [0.65, 0.75, 1.0], 0, 9), 0));
        assert!(!rules.accepts(&notes([0.66, 0.0, 0.0], [0.0; 3], 0, 0), 0));
        assert!(!rules.accepts(&notes([0.0, 0.76, 0.0], [0.0; 3], 0, 0), 0));
        assert!(!rules.accepts(&notes([0.0; 3], [0.66, 0.0, 0.0], 0, 0), 0));
        assert!(
            rules.accepts(&notes([0.66, 0.0, 0.0], [0.0; 3], 0, 0), 48),
            "older than 8 minutes"
        );
        assert!(rules.accepts(&NodeNotes::default(), 0));
    }
}
