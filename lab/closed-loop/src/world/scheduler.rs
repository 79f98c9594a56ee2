//! kube-scheduler's cycle for one pod: search, filters, scores, and a choice among the best.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::in_tree::{InTree, WEIGHT_OF_NODE_AFFINITY, add_spread, node_affinity, nodes_to_find};
use super::nodes::Nodes;
use crate::cluster::NodeId;
use crate::policies::{Hook, PodView, Policy};
use crate::time::Step;
use crate::workload::AppKind;

#[derive(Clone)]
pub(super) struct Scheduler {
    in_tree: InTree,
    /// In place of the policy's own weight.
    weight: Option<i64>,
    /// Whether every node is looked at, as in clusters of up to 100 nodes.
    all_nodes: bool,
    /// The node at which the next search begins.
    next_start: usize,
    rng: Xoshiro256PlusPlus,
    // Scratch space.
    found: Vec<NodeId>,
    totals: Vec<i64>,
    points: Vec<i64>,
    spread: Vec<i64>,
}

impl Scheduler {
    pub(super) fn new(in_tree: InTree, seed: u64, weight: Option<i64>) -> Self {
        Self {
            in_tree,
            weight,
            all_nodes: false,
            next_start: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            found: Vec::new(),
            totals: Vec::new(),
            points: Vec::new(),
            spread: Vec::new(),
        }
    }

    /// A copy that looks at every node.
    pub(super) fn looking_at_all_nodes(&self) -> Self {
        Self { all_nodes: true, ..self.clone() }
    }

    /// The node that the pod goes to, if there is one.
    pub(super) fn find(
        &mut self,
        pod: &PodView,
        prefers_label: bool,
        nodes: &Nodes,
        policy: &mut dyn Policy,
        now: Step,
    ) -> Option<NodeId> {
        self.search(pod, nodes, policy, now);
        match self.found.as_slice() {
            [] => None,
            // kube-scheduler does not score a single node.
            [only] => Some(*only),
            _ => {
                self.score(pod, prefers_label, nodes, policy, now);
                Some(self.best())
            }
        }
    }

    /// Fills `found` with feasible nodes, from where the last search ended on, until there are enough.
    fn search(&mut self, pod: &PodView, nodes: &Nodes, policy: &mut dyn Policy, now: Step) {
        let all = nodes.joined;
        let start = self.next_start;
        let in_turn = (start..all).chain(0..start);
        let fitting = in_turn.filter(|node| nodes.fits(*node, pod));
        let looks_at_all = self.all_nodes || policy.looks_at_all_nodes();
        let enough = if looks_at_all { all } else { nodes_to_find(all) };
        self.found.clear();
        match policy.hook() {
            Hook::Plugin { .. } => {
                self.found.extend(fitting);
                policy.filter(pod, &mut self.found, now);
                self.found.truncate(enough);
                self.end_search(all, enough);
            }
            Hook::Extender { .. } => {
                self.found.extend(fitting.take(enough));
                self.end_search(all, enough);
                if !self.found.is_empty() {
                    policy.filter(pod, &mut self.found, now);
                }
            }
        }
    }

    /// The next search begins after the last node that this one looked at.
    fn end_search(&mut self, all: usize, enough: usize) {
        if self.found.len() >= enough
            && let Some(last) = self.found.last()
        {
            self.next_start = (last + 1) % all;
        }
    }

    fn score(
        &mut self,
        pod: &PodView,
        prefers_label: bool,
        nodes: &Nodes,
        policy: &mut dyn Policy,
        now: Step,
    ) {
        let Self { in_tree, found, totals, points, spread, .. } = self;
        let all = *in_tree == InTree::All;
        let resources = policy.keeps_resource_scores();
        totals.clear();
        totals.extend(found.iter().map(|node| {
            let affinity = WEIGHT_OF_NODE_AFFINITY * node_affinity(all && prefers_label, *node);
            let resources = if resources { nodes.resource_score(*node, pod) } else { 0 };
            resources + affinity
        }));
        if all && pod.kind == AppKind::Service {
            add_spread(
                found,
                |node| nodes.of_app(pod.app, node),
                nodes.of_app_in_zones(pod.app),
                spread,
                totals,
            );
        }
        points.clear();
        points.resize(found.len(), 0);
        policy.score(pod, found, points, now);
        let per_point = policy.hook().per_point(self.weight);
        totals.iter_mut().zip(points).for_each(|(total, points)| *total += *points * per_point);
    }

    /// One of the nodes with the highest total, each as likely as the others.
    fn best(&mut self) -> NodeId {
        let highest = self.totals.iter().copied().max().unwrap_or(0);
        let ties = self.totals.iter().filter(|total| **total == highest).count();
        let chosen = self.rng.random_range(0..ties.max(1));
        let mut best = self.totals.iter().zip(&self.found).filter(|(total, _)| **total == highest);
        best.nth(chosen).map_or(self.found[0], |(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Scale;

    const POD: PodView = PodView { id: 0, app: 0, kind: AppKind::Job, cpu: 1000, memory: 1024 };

    /// Leaves out nodes below a number, and counts what it was asked about.
    #[derive(Clone)]
    struct From {
        hook: Hook,
        first: NodeId,
        all_nodes: bool,
        asked: Vec<NodeId>,
    }

    impl From {
        fn new(hook: Hook, first: NodeId) -> Self {
            Self { hook, first, all_nodes: false, asked: Vec::new() }
        }
    }

    impl Policy for From {
        fn hook(&self) -> Hook {
            self.hook
        }

        fn copy(&self) -> Box<dyn Policy> {
            Box::new(self.clone())
        }

        fn looks_at_all_nodes(&self) -> bool {
            self.all_nodes
        }

        fn filter(&mut self, _pod: &PodView, nodes: &mut Vec<NodeId>, _now: Step) {
            self.asked.clone_from(nodes);
            nodes.retain(|node| *node >= self.first);
        }
    }

    #[test]
    fn an_extender_filters_what_was_found_and_a_plugin_while_nodes_are_looked_for() {
        let nodes = Nodes::new(&Scale::FULL, 1);
        let mut extender = From::new(Hook::Extender { weight: 1 }, 150);
        let mut scheduler = Scheduler::new(InTree::All, 1, None);
        assert_eq!(scheduler.find(&POD, false, &nodes, &mut extender, 0), None);
        assert_eq!(extender.asked, (0..100).collect::<Vec<_>>());
        // The next search begins where the last one ended.
        let found = scheduler.find(&POD, false, &nodes, &mut extender, 0).unwrap();
        assert!((150..200).contains(&found));
        assert_eq!((extender.asked[0], scheduler.next_start), (100, 0));

        let mut plugin = From::new(Hook::Plugin { weight: 1 }, 60);
        scheduler.search(&POD, &nodes, &mut plugin, 0);
        assert_eq!((scheduler.found.len(), scheduler.next_start), (100, 160));
        scheduler.search(&POD, &nodes, &mut plugin, 0);
        assert_eq!(
            (scheduler.found[0], scheduler.found.len(), scheduler.next_start),
            (160, 100, 120)
        );
    }

    #[test]
    fn a_policy_that_has_every_node_looked_at_is_asked_about_all() {
        let nodes = Nodes::new(&Scale::FULL, 1);
        let mut policy = From::new(Hook::Extender { weight: 1 }, 150);
        policy.all_nodes = true;
        let mut scheduler = Scheduler::new(InTree::All, 1, None);
        let found = scheduler.find(&POD, false, &nodes, &mut policy, 0).unwrap();
        assert_eq!((policy.asked.len(), found >= 150), (200, true));
    }

    #[test]
    fn a_preferred_label_outweighs_resources() {
        let nodes = Nodes::new(&Scale::FULL, 1);
        let mut none = From::new(Hook::Plugin { weight: 0 }, 0);
        let mut scheduler = Scheduler::new(InTree::All, 1, None);
        for _ in 0..20 {
            let found = scheduler.find(&POD, true, &nodes, &mut none, 0).unwrap();
            assert!(crate::cluster::is_preferred(found));
        }
    }
}
