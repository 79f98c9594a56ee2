//! Where the replicas of one Deployment go: the bursts of the workload, and probes.
//!
//! A probe asks where replicas of a new Deployment would go now, on copies of the nodes, of the scheduler and of the
//! policy, so that nothing else changes. Probes look at every node, as in clusters of up to 100 nodes. Beside each
//! rollout stands what kube-scheduler alone would have done with the same nodes.

use serde::Serialize;

use super::nodes::Nodes;
use super::scheduler::Scheduler;
use crate::cluster::{NodeId, Scale, ZONES, zone};
use crate::policies::{PodView, Policy, without_load_awareness};
use crate::time::{HOUR, MINUTE, Step};
use crate::workload::{AppId, AppKind, BURST_PODS, PodId};

/// Replicas of a rollout: of probes the first two, of the workload's bursts the last.
pub const REPLICAS: [usize; 3] = [3, 10, BURST_PODS];

/// Requests of probes: a hundredth and a tenth of a node, with 3 GiB a core, in thousandths of a core and MiB.
const REQUESTS: [(u32, u32); 2] = [(320, 983), (3_200, 9_830)];

/// The first probe of each hour.
const PROBE_AT: Step = 30 * MINUTE;

/// How long a node has been back, or new nodes have been there, at probes beside cold nodes: it is measured by then,
/// and not filled up yet.
const COLD_FOR: [Step; 3] = [4 * MINUTE, 5 * MINUTE, 6 * MINUTE];

/// How rollouts spread, as sums over them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(into = "SpreadFigures")]
pub struct Spread {
    rollouts: u64,
    most: f64,
    worst: f64,
    beyond_stock: i64,
    nodes: u64,
    nodes_of_stock: u64,
    in_zone: f64,
}

/// What is reported of rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpreadFigures {
    /// Rollouts.
    pub rollouts: u64,
    /// Most replicas on one node by those of an even spread: mean.
    pub most: f64,
    /// The same of the worst rollout.
    pub worst: f64,
    /// Most replicas on one node beyond the most that kube-scheduler alone puts on one, in the worst rollout.
    pub beyond_stock: i64,
    /// Nodes that replicas are on, by those that kube-scheduler alone would use.
    pub nodes_by_stock: f64,
    /// Most replicas in one zone by those of an even spread: mean.
    pub in_zone: f64,
}

impl From<Spread> for SpreadFigures {
    fn from(spread: Spread) -> Self {
        let rollouts = (spread.rollouts as f64).max(1.0);
        Self {
            rollouts: spread.rollouts,
            most: spread.most / rollouts,
            worst: spread.worst,
            beyond_stock: spread.beyond_stock,
            nodes_by_stock: spread.nodes as f64 / (spread.nodes_of_stock as f64).max(1.0),
            in_zone: spread.in_zone / rollouts,
        }
    }
}

impl Spread {
    /// Counts a rollout by the nodes of its replicas; `open` nodes take pods.
    fn add(&mut self, chosen: &[NodeId], of_stock: &[NodeId], open: usize) {
        if chosen.is_empty() {
            return;
        }
        let even = |domains: usize| chosen.len().div_ceil(domains.max(1)) as f64;
        let (most, nodes) = most_and_number(chosen.iter().copied());
        let (most_of_stock, nodes_of_stock) = most_and_number(of_stock.iter().copied());
        let (in_zone, _) = most_and_number(chosen.iter().map(|node| zone(*node)));
        let by_even = most as f64 / even(open);
        self.merge(&Self {
            rollouts: 1,
            most: by_even,
            worst: by_even,
            beyond_stock: most as i64 - most_of_stock as i64,
            nodes: nodes as u64,
            nodes_of_stock: nodes_of_stock as u64,
            in_zone: in_zone as f64 / even(ZONES),
        });
    }

    /// Adds other rollouts.
    pub fn merge(&mut self, other: &Self) {
        self.beyond_stock = if self.rollouts == 0 {
            other.beyond_stock
        } else {
            self.beyond_stock.max(other.beyond_stock)
        };
        self.rollouts += other.rollouts;
        self.most += other.most;
        self.worst = self.worst.max(other.worst);
        self.nodes += other.nodes;
        self.nodes_of_stock += other.nodes_of_stock;
        self.in_zone += other.in_zone;
    }

    /// The sum of several.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|spread| sum.merge(spread));
        sum
    }
}

/// How often the most frequent of these comes, and how many different ones there are.
fn most_and_number(chosen: impl Iterator<Item = usize>) -> (usize, usize) {
    let mut sorted: Vec<usize> = chosen.collect();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|one, other| one == other);
    (runs.clone().map(<[usize]>::len).max().unwrap_or(0), runs.count())
}

/// How rollouts spread in one world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spreads {
    /// By [`REPLICAS`].
    pub rollouts: [Spread; 3],
    /// Probes beside nodes that are cold after a reboot, or have just joined.
    pub beside_cold: [Spread; 2],
}

/// A burst of the workload at this step, before its pods are placed.
pub(super) struct Burst {
    app: AppId,
    nodes: Nodes,
    scheduler: Scheduler,
    pods: Vec<(PodView, bool)>,
    chosen: Vec<NodeId>,
}

impl Burst {
    /// The burst of a service among these pods, with whether they prefer the label.
    pub(super) fn among(
        pods: &[(PodView, bool)],
        nodes: &Nodes,
        scheduler: &Scheduler,
    ) -> Option<Self> {
        if pods.len() < BURST_PODS {
            return None;
        }
        let of_app = |app| pods.iter().filter(move |(pod, _)| pod.app == app);
        let (first, _) = pods.iter().find(|(pod, _)| {
            pod.kind == AppKind::Service && of_app(pod.app).count() >= BURST_PODS
        })?;
        Some(Self {
            app: first.app,
            nodes: nodes.clone(),
            scheduler: scheduler.clone(),
            pods: of_app(first.app).copied().collect(),
            chosen: Vec::new(),
        })
    }

    pub(super) fn bound(&mut self, pod: &PodView, node: NodeId) {
        if pod.app == self.app && self.pods.iter().any(|(other, _)| other.id == pod.id) {
            self.chosen.push(node);
        }
    }

    /// Counts it. Replicas that found no node at once are left out.
    pub(super) fn count(self, spreads: &mut Spreads, now: Step) {
        let Self { nodes, scheduler, pods, chosen, .. } = self;
        let open = nodes.open_nodes();
        let stock = &mut *without_load_awareness();
        let of_stock = place(&pods, nodes, scheduler, stock, now);
        spreads.rollouts[REPLICAS.len() - 1].add(&chosen, &of_stock, open);
    }
}

/// What probes copy.
pub(super) struct Probes<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) scheduler: &'a Scheduler,
    pub(super) policy: &'a dyn Policy,
}

impl Probes<'_> {
    /// Asks where replicas of `app`, which is none of the workload's, would go, if there are probes at this step.
    pub(super) fn count(&self, spreads: &mut Spreads, scale: &Scale, app: AppId, now: Step) {
        let is_cold = COLD_FOR.iter().any(|time| {
            let since = now.checked_sub(*time);
            since.is_some_and(|since| since == scale.join_at || scale.returns_at(since).is_some())
        });
        if now % HOUR != PROBE_AT && !is_cold {
            return;
        }
        let scheduler = self.scheduler.looking_at_all_nodes();
        for (size, replicas) in REPLICAS.into_iter().enumerate().take(2) {
            for (cpu, memory) in REQUESTS {
                let kind = AppKind::Service;
                let pod = |n| PodView { id: PodId::MAX - n, app, kind, cpu, memory };
                let pods: Vec<(PodView, bool)> = (0..replicas).map(|n| (pod(n), false)).collect();
                let on_copies = |policy: &mut dyn Policy| {
                    place(&pods, self.nodes.clone(), scheduler.clone(), policy, now)
                };
                let chosen = on_copies(&mut *self.policy.copy());
                let of_stock = on_copies(&mut *without_load_awareness());
                let counted =
                    if is_cold { &mut spreads.beside_cold[..] } else { &mut spreads.rollouts };
                counted[size].add(&chosen, &of_stock, self.nodes.open_nodes());
            }
        }
    }
}

/// Places pods one after another. Returns the nodes of those that found one.
fn place(
    pods: &[(PodView, bool)],
    mut nodes: Nodes,
    mut scheduler: Scheduler,
    policy: &mut dyn Policy,
    now: Step,
) -> Vec<NodeId> {
    let mut chosen = Vec::new();
    for (pod, prefers_label) in pods {
        if let Some(node) = scheduler.find(pod, *prefers_label, &nodes, policy, now) {
            nodes.bind(node, pod, 0);
            policy.bound(pod, node, now);
            chosen.push(node);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_held_against_an_even_spread_and_against_stock() {
        let mut spread = Spread::default();
        // Ten replicas on 8 nodes: 4 on one where 2 would do; all in zones 0 and 1.
        spread.add(&[0, 0, 0, 0, 3, 3, 1, 1, 4, 4], &[0, 1, 2, 3, 4, 5, 6, 7, 0, 1], 8);
        // Three on three nodes of three zones.
        spread.add(&[0, 1, 2], &[0, 1, 2], 8);
        let figures = SpreadFigures::from(spread);
        assert_eq!((figures.rollouts, figures.most, figures.worst), (2, 1.5, 2.0));
        assert_eq!((figures.beyond_stock, figures.nodes_by_stock), (2, 7.0 / 11.0));
        // Six of ten where four would do, and one of three.
        assert_eq!(figures.in_zone, 1.25);
    }

    #[test]
    fn kube_scheduler_alone_spreads_ten_replicas_over_ten_nodes_and_a_probe_changes_nothing() {
        let nodes = Nodes::new(&Scale::FULL, 1);
        let scheduler = Scheduler::new(crate::world::InTree::All, 1, None);
        let policy = without_load_awareness();
        let mut spreads = Spreads::default();
        let probes = Probes { nodes: &nodes, scheduler: &scheduler, policy: &*policy };
        probes.count(&mut spreads, &Scale::FULL, 1, PROBE_AT);
        for spread in &spreads.rollouts[..2] {
            let figures = SpreadFigures::from(*spread);
            assert_eq!((figures.rollouts, figures.worst, figures.nodes_by_stock), (2, 1.0, 1.0));
        }
        assert_eq!(spreads.beside_cold, [Spread::default(); 2]);
        assert_eq!(nodes.requested(0), (0, 0, 0));
        let back = Scale::FULL.first_reboot + Scale::FULL.down_for + 6 * MINUTE;
        probes.count(&mut spreads, &Scale::FULL, 1, back);
        assert_eq!(SpreadFigures::from(spreads.beside_cold[1]).rollouts, 2);
    }
}
