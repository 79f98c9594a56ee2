//! What is requested of each node in one world.
//!
//! Invariant: requests never exceed a node's capacity; [`Nodes::bind`] is asked only after [`Nodes::fits`].

use super::in_tree;
use crate::cluster::{NODE_CPU, NODE_MEMORY, NODE_PODS, NodeId, Scale, ZONES, zone};
use crate::policies::PodView;
use crate::workload::{AppId, AppKind};

/// The nodes of a world, also those that join later.
#[derive(Clone)]
pub(super) struct Nodes {
    cpu: Vec<u32>,
    memory: Vec<u32>,
    pods: Vec<u16>,
    /// Takes pods, and answers who asks for samples.
    open: Vec<bool>,
    /// Balance of requests, kept since every score asks for it.
    balance: Vec<i64>,
    /// Memory in use, MiB.
    pub(super) memory_used: Vec<u64>,
    /// Pods of each app up to the last service, and of probes, on each node, and in each zone. Jobs are not counted.
    of_app: Vec<u16>,
    of_app_in_zone: Vec<u32>,
    /// Nodes that have joined.
    pub(super) joined: usize,
}

impl Nodes {
    /// The first `services` apps are those that spread; a later app is one of probes.
    pub(super) fn new(scale: &Scale, services: usize) -> Self {
        let all = scale.all_nodes();
        Self {
            cpu: vec![0; all],
            memory: vec![0; all],
            pods: vec![0; all],
            open: vec![true; all],
            balance: vec![in_tree::balance(0, 0); all],
            memory_used: vec![0; all],
            of_app: vec![0; all * (services + 1)],
            of_app_in_zone: vec![0; ZONES * (services + 1)],
            joined: scale.nodes,
        }
    }

    /// The row of an app: apps of probes have the last one.
    fn row(&self, app: AppId) -> usize {
        app.min(self.of_app_in_zone.len() / ZONES - 1)
    }

    /// How many nodes take pods.
    pub(super) fn open_nodes(&self) -> usize {
        self.open[..self.joined].iter().filter(|open| **open).count()
    }

    pub(super) fn is_open(&self, node: NodeId) -> bool {
        self.open[node]
    }

    pub(super) fn set_open(&mut self, node: NodeId, open: bool) {
        self.open[node] = open;
    }

    /// NodeUnschedulable and NodeResourcesFit.
    pub(super) fn fits(&self, node: NodeId, pod: &PodView) -> bool {
        self.open[node]
            && self.cpu[node] + pod.cpu <= NODE_CPU
            && self.memory[node] + pod.memory <= NODE_MEMORY
            && self.pods[node] < NODE_PODS
    }

    /// LeastAllocated and BalancedAllocation.
    pub(super) fn resource_score(&self, node: NodeId, pod: &PodView) -> i64 {
        let cpu = self.cpu[node] + pod.cpu;
        let memory = self.memory[node] + pod.memory;
        let balanced =
            in_tree::balanced_allocation(in_tree::balance(cpu, memory), self.balance[node]);
        in_tree::least_allocated(cpu, memory) + balanced
    }

    /// Pods of the app on the node.
    pub(super) fn of_app(&self, app: usize, node: NodeId) -> u32 {
        u32::from(self.of_app[self.row(app) * self.open.len() + node])
    }

    /// Pods of the app in each zone.
    pub(super) fn of_app_in_zones(&self, app: usize) -> &[u32] {
        let row = self.row(app);
        &self.of_app_in_zone[row * ZONES..(row + 1) * ZONES]
    }

    pub(super) fn bind(&mut self, node: NodeId, pod: &PodView, memory_used: u32) {
        debug_assert!(self.fits(node, pod));
        self.cpu[node] += pod.cpu;
        self.memory[node] += pod.memory;
        self.pods[node] += 1;
        self.memory_used[node] += u64::from(memory_used);
        if pod.kind == AppKind::Service {
            let row = self.row(pod.app);
            self.of_app[row * self.open.len() + node] += 1;
            self.of_app_in_zone[row * ZONES + zone(node)] += 1;
        }
        self.balance[node] = in_tree::balance(self.cpu[node], self.memory[node]);
    }

    pub(super) fn unbind(&mut self, node: NodeId, pod: &PodView, memory_used: u32) {
        self.cpu[node] -= pod.cpu;
        self.memory[node] -= pod.memory;
        self.pods[node] -= 1;
        self.memory_used[node] -= u64::from(memory_used);
        if pod.kind == AppKind::Service {
            let row = self.row(pod.app);
            self.of_app[row * self.open.len() + node] -= 1;
            self.of_app_in_zone[row * ZONES + zone(node)] -= 1;
        }
        self.balance[node] = in_tree::balance(self.cpu[node], self.memory[node]);
    }

    /// CPU, memory and pods that are requested of a node.
    pub(super) fn requested(&self, node: NodeId) -> (u32, u32, u16) {
        (self.cpu[node], self.memory[node], self.pods[node])
    }
}
