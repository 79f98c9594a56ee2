//! crane's policy by an extender of kube-scheduler: the load decision of this project (`placement`), whose score of 0
//! to 100 becomes 0 to 10 for an extender of weight 3.

use std::sync::Arc;

use jiff::SignedDuration;
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy, Verdict,
};
use placement::policy::{LoadPolicy, Scale};
use placement::reading::{HotValueNote, Reading};
use placement::resources::Amounts;
use placement::units::{MetricName, PodUid, Ratio};

use super::{Hook, PodView, Policy};
use crate::cluster::NodeId;
use crate::readings::{Annotator, METRICS, NodeNotes};
use crate::time::{Step, timestamp};
use crate::world::Observation;

#[derive(Clone)]
pub(super) struct CraneExtender {
    policy: Arc<ResolvedPolicy>,
    horizon: SignedDuration,
    table: MetricTable,
    metrics: [MetricName; METRICS.len()],
    annotator: Annotator,
    nodes: Vec<NodeLoad>,
    /// Whether bindings count at once; otherwise when the annotator writes them.
    live: bool,
    /// The verdict on each node at this step: limits depend on readings alone, and many pods may wait.
    accepted: Vec<bool>,
}

impl CraneExtender {
    pub(super) fn new(policy: LoadPolicy, live: bool) -> Self {
        let mut table = MetricTable::default();
        Self {
            horizon: policy.hot_horizon(),
            annotator: Annotator::new(&policy),
            policy: Arc::new(ResolvedPolicy::new(policy, &mut table)),
            table,
            metrics: METRICS.map(|metric| metric.name.into()),
            nodes: Vec::new(),
            live,
            accepted: Vec::new(),
        }
    }

    fn evaluation<'a>(&'a self, node: NodeId, now: Step) -> Evaluation<'a, 'a> {
        let pod = PodToPlace::ORDINARY;
        Evaluation { policy: &self.policy, node: &self.nodes[node], pod, now: timestamp(now) }
    }
}

/// The readings that a Node's annotations hold.
fn readings(
    metrics: &[MetricName; METRICS.len()],
    notes: &NodeNotes,
    table: &mut MetricTable,
) -> Readings {
    Readings::new(
        table,
        metrics.iter().zip(&notes.values).filter_map(
            |(metric, note): (&MetricName, &Option<(f64, Step)>)| {
                let (value, at) = (*note)?;
                Some((metric.clone(), Reading::new(Ratio::new(value)?, timestamp(at))))
            },
        ),
    )
}

impl Policy for CraneExtender {
    fn hook(&self) -> Hook {
        Hook::Extender { weight: 3 }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        self.nodes.resize_with(observation.nodes.len(), NodeLoad::default);
        for node in self.annotator.step(observation.now, observation.nodes) {
            let notes = self.annotator.node(node);
            self.nodes[node].readings = Arc::new(readings(&self.metrics, notes, &mut self.table));
            if !self.live {
                self.nodes[node].crane_hot_value =
                    notes.hot_value.map(|(count, at): (u64, Step)| HotValueNote {
                        value: count as f64,
                        at: timestamp(at),
                    });
            }
        }
        self.accepted = (0..self.nodes.len())
            .map(|node| self.evaluation(node, observation.now).verdict() == Verdict::Accepted)
            .collect();
    }

    fn filter(&mut self, _pod: &PodView, nodes: &mut Vec<NodeId>, _now: Step) {
        nodes.retain(|node| self.accepted[*node]);
    }

    fn score(&mut self, _pod: &PodView, nodes: &[NodeId], points: &mut [i64], now: Step) {
        for (node, points) in nodes.iter().zip(points) {
            *points = self.evaluation(*node, now).score().on(Scale::TEN);
        }
    }

    fn bound(&mut self, pod: &PodView, node: NodeId, now: Step) {
        if self.live {
            let uid = PodUid::from(pod.id.to_string());
            let recent = Arc::make_mut(&mut self.nodes[node].recent);
            recent.bound(&uid, timestamp(now), Amounts::default(), self.horizon);
        } else {
            self.annotator.bound(node, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::crane_policy;
    use crate::workload::AppKind;
    use crate::world::{NodeSample, Observation};

    const POD: PodView = PodView { id: 0, app: 0, kind: AppKind::Service, cpu: 1000, memory: 1024 };

    fn score(extender: &mut CraneExtender, now: Step) -> i64 {
        let mut points = [0];
        extender.score(&POD, &[0], &mut points, now);
        points[0]
    }

    #[test]
    fn scores_are_tenths_and_live_bindings_count_at_once() {
        let samples = [NodeSample { up: true, cpu: 0.4, memory: 0.2, best_effort: 0.0 }];
        for live in [false, true] {
            let mut extender = CraneExtender::new(crane_policy().unwrap(), live);
            extender.observe(&Observation::of_nodes(0, &samples));
            // 100 − (40 + 20)/2 = 70.
            assert_eq!(score(&mut extender, 0), 7);
            for id in 0..4 {
                extender.bound(&PodView { id, ..POD }, 0, 0);
            }
            // ⌊4/5⌋ + ⌊4/2⌋ = 2.
            assert_eq!(score(&mut extender, 0), if live { 5 } else { 7 });
        }
    }
}
