//! Every node, what is to be done next, and what came of it. Decides, does nothing.
//!
//! Invariants: a node has at most one job in flight; what is due first is done first; a result for
//! a node that is gone, or that is another one of the same name by now, is dropped.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cluster::NodeFacts;
use jiff::Timestamp;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{NodeName, PodUid};

use crate::due::Dues;
use crate::endpoint::endpoint;
use crate::gpu::Accounts;
use crate::heat::Heat;
use crate::job::{Job, Report, Turn};
use crate::node::NodeState;
use crate::pods::BoundPod;
use crate::share::Share;

/// What does not change while the program runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Annotation keys and resources.
    pub names: Names,
    /// How readings are written.
    pub codec: ReadingCodec,
    /// Where exporters answer, unless a node says otherwise.
    pub exporter_port: u16,
}

/// The fleet.
#[derive(Debug)]
pub struct Fleet {
    settings: Settings,
    policy: Arc<LoadPolicy>,
    nodes: HashMap<NodeName, NodeState>,
    queue: BTreeSet<(Timestamp, NodeName)>,
    accounts: Accounts,
    heat: Heat,
    pods_listed: bool,
    last_job: u64,
    silent: usize,
    held_back: usize,
}

impl Fleet {
    /// One without nodes.
    #[must_use]
    pub fn new(settings: Settings, policy: Arc<LoadPolicy>) -> Self {
        Self {
            settings,
            policy,
            nodes: HashMap::new(),
            queue: BTreeSet::new(),
            accounts: Accounts::default(),
            heat: Heat::default(),
            pods_listed: false,
            last_job: 0,
            silent: 0,
            held_back: 0,
        }
    }

    /// How many nodes there are, and how many of them have an exporter that does not answer.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        (self.nodes.len(), self.silent)
    }

    /// How many readings are held back, over all nodes.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.held_back
    }

    /// Another policy is in force.
    pub fn set_policy(&mut self, policy: Arc<LoadPolicy>, now: Timestamp) {
        for (name, node) in &mut self.nodes {
            node.set_dues(node.dues.under(name, &policy));
        }
        self.held_back = self.nodes.values().map(NodeState::held_back).sum();
        self.policy = policy;
        self.requeue_all(now);
    }

    /// The clock was set back to `now`.
    pub fn clock_set_back(&mut self, now: Timestamp) {
        self.nodes.values_mut().for_each(NodeState::clock_set_back);
        self.requeue_all(now);
    }

    /// These are all the nodes.
    pub fn nodes_listed(&mut self, nodes: Vec<NodeFacts>, now: Timestamp) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        let gone: Vec<NodeName> =
            self.nodes.keys().filter(|name| !present.contains(name)).cloned().collect();
        gone.iter().for_each(|name| self.node_gone(name));
        nodes.into_iter().for_each(|facts| self.node_applied(facts, now));
    }

    /// A node is there, or has changed.
    pub fn node_applied(&mut self, facts: NodeFacts, now: Timestamp) {
        let name = facts.name.clone();
        let codec = self.settings.codec.clone();
        let node = self.meet(&facts);
        node.observe(&codec, |key| facts.annotation(key));
        match facts.cards {
            Some(Ok(cards)) => self.accounts.set_cards(&name, cards),
            // The last good report stands; where there was none, nothing is known of the cards.
            Some(Err(_)) => return self.requeue(&name, now),
            None => self.accounts.forget_cards(&name),
        }
        self.settle_share(&name, now);
    }

    /// The node's state, new or with what has changed about it.
    fn meet(&mut self, facts: &NodeFacts) -> &mut NodeState {
        let Settings { names, exporter_port, .. } = &self.settings;
        let endpoint = endpoint(facts, *exporter_port, &names.exporter());
        let node = self.nodes.entry(facts.name.clone()).or_insert_with(|| {
            let share = Share::on_node(facts.annotation(&names.share()));
            NodeState::new(Dues::new(&facts.name, &self.policy), share, endpoint.clone())
        });
        node.stands(endpoint, facts.ready);
        node
    }

    /// A node is gone.
    pub fn node_gone(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.remove(name) {
            self.silent -= usize::from(node.is_silent());
            self.held_back -= node.held_back();
            if let Some(at) = node.queued {
                self.queue.remove(&(at, name.clone()));
            }
        }
        self.accounts.forget_cards(name);
        self.heat.forget(name);
    }

    /// These are all the bound pods.
    pub fn pods_listed(&mut self, pods: &[BoundPod], now: Timestamp) {
        self.pods_listed = true;
        pods.iter().for_each(|pod| self.warm(pod, now));
        let concerned = self.accounts.listed(pods);
        concerned.iter().for_each(|name| self.settle_share(name, now));
    }

    /// A bound pod is there, or has changed.
    pub fn pod_applied(&mut self, pod: &BoundPod, now: Timestamp) {
        self.warm(pod, now);
        if let Some(name) = self.accounts.saw(pod) {
            self.settle_share(&name, now);
        }
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, uid: &PodUid, now: Timestamp) {
        if let Some(name) = self.accounts.gone(uid) {
            self.settle_share(&name, now);
        }
    }

    fn warm(&mut self, pod: &BoundPod, now: Timestamp) {
        self.heat.saw(pod, self.policy.hot_horizon(), now);
    }

    fn settle_share(&mut self, name: &NodeName, now: Timestamp) {
        let shares = self.accounts.shares(name);
        if let Some(node) = self.nodes.get_mut(name) {
            node.share.want(shares, now);
        }
        self.requeue(name, now);
    }

    fn requeue_all(&mut self, now: Timestamp) {
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.requeue(name, now));
    }

    fn requeue(&mut self, name: &NodeName, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if let Some(at) = node.queued.take() {
            self.queue.remove(&(at, name.clone()));
        }
        node.queued = node.wake_at(now).filter(|_| node.job.is_none());
        self.queue.extend(node.queued.map(|at| (at, name.clone())));
    }

    /// When there is something to do next.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// The next thing to do at `now`.
    pub fn take_job(&mut self, now: Timestamp) -> Option<Job> {
        while self.next().is_some_and(|at| at <= now) {
            let (due, name) = self.queue.pop_first()?;
            if let Some(job) = self.job(&name, due, now) {
                return Some(job);
            }
            self.requeue(&name, now);
        }
        None
    }

    fn job(&mut self, name: &NodeName, due: Timestamp, now: Timestamp) -> Option<Job> {
        let hot = (self.pods_listed && !self.policy.hot.is_empty())
            .then(|| self.heat.value(name, &self.policy.hot, now));
        let node = self.nodes.get_mut(name)?;
        node.queued = None;
        let (ask, share) = node.task(now);
        if ask.is_none() && share.is_none() {
            return None;
        }
        self.last_job += 1;
        node.job = Some(self.last_job);
        let due = Some(due).filter(|due| *due > Timestamp::MIN);
        Some(Job { id: self.last_job, node: name.clone(), due, ask, hot, share })
    }

    /// Takes over what came of a job. Tells what is news about the node.
    pub fn finish(&mut self, report: Report, now: Timestamp) -> Vec<Turn> {
        let name = report.job.node.clone();
        let ours = |node: &&mut NodeState| node.job == Some(report.job.id);
        let Some(node) = self.nodes.get_mut(&name).filter(ours) else { return Vec::new() };
        self.silent -= usize::from(node.is_silent());
        self.held_back -= node.held_back();
        let turns = node.finish(report, now);
        self.silent += usize::from(node.is_silent());
        self.held_back += node.held_back();
        self.requeue(&name, now);
        turns
    }
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
