//! Reads what [`placement::moves`] plans with: which pods to move to other nodes so that a pod finds GPUs on one.
//! `GET /v1/moves` proposes it, and `--move-for-cards` carries it out ([`crate::gpu_evictions`]).
//!
//! The view has the GPUs and loads of all nodes. Pods, room and taints are read from the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::{Budgets, CallError, Client, Pod, PodReference, applicant, read_node};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use placement::moves::{Cluster, Controller, Found, KnownNode, NodeIndex, PodNeeds, Search, Step};
use placement::names::Names;
use placement::resources::Amounts;
use placement::units::PodUid;

use crate::view::{Current, View};

/// Nodes that are read concurrently.
const MAX_CONCURRENT: usize = 4;

/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for a whole search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// A search for the fewest moves for a pod, by what the API server says.
pub(crate) struct MoveSearch<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    /// Pods that are not moved, since their eviction was refused.
    pub(crate) left_out: &'a BTreeSet<PodUid>,
    /// Workloads of which a pod was moved a short time ago: they have none moved now.
    pub(crate) moved: BTreeSet<Controller>,
}

impl MoveSearch<'_> {
    /// What a pod needs that waits. `None` if it is gone, or its rules cannot be checked.
    ///
    /// # Errors
    ///
    /// Where the API server does not answer.
    pub(crate) async fn needs(
        &self,
        pod: &Pod,
        reference: &PodReference,
    ) -> Result<Option<PodNeeds>, CallError> {
        let needs = applicant(self.client, reference, self.names, CALL_TIMEOUT).await?;
        let uses = uses(&self.view.current(), self.names, pod);
        Ok(needs.map(|needs| PodNeeds { uses, ..needs }))
    }

    /// The fewest moves that make room for a pod. Only pods that give way to `priority` are moved; `None`: any.
    ///
    /// # Errors
    ///
    /// If no node can be read, or if it takes too long.
    pub(crate) async fn run(
        self,
        pod: &PodNeeds,
        priority: Option<i32>,
        now: Timestamp,
    ) -> Result<Found, CallError> {
        let search = self.search(pod, priority, now);
        let late = format!("not all nodes were read within {SEARCH_TIMEOUT:?}");
        let ended = tokio::time::timeout(SEARCH_TIMEOUT, search).await;
        ended.unwrap_or(Err(CallError::Unknown(late)))
    }

    async fn search(
        &self,
        pod: &PodNeeds,
        priority: Option<i32>,
        now: Timestamp,
    ) -> Result<Found, CallError> {
        let current = self.view.current();
        let snapshot = &*current.snapshot;
        let mut nodes = Vec::new();
        for (name, gpus) in snapshot.nodes_with_gpus() {
            let Some(load) = snapshot.load(name.as_str()) else { continue };
            if !gpus.accounts().is_empty() {
                let back_off = snapshot.back_offs.get(name);
                nodes.push(KnownNode { name, gpus, load, back_off });
            }
        }
        let cluster = Cluster {
            policy: &snapshot.policy,
            rule: snapshot.choice_rule(),
            now,
            nodes,
            moved: self.moved.clone(),
            left_out: self.left_out.clone(),
        };
        let mut search = Search::new(cluster, pod, priority);
        let mut budgets = Budgets::default();
        loop {
            match search.step() {
                // Looking at thousands of nodes for each pod takes long: others have a turn, and the search an end.
                Step::Next => tokio::task::yield_now().await,
                Step::Read(nodes) => {
                    self.read(&mut search, nodes, &current, &mut budgets).await;
                    if search.is_blind() {
                        return Err(CallError::Unknown("no node could be read".to_owned()));
                    }
                }
                Step::End(found) => return Ok(found),
            }
        }
    }

    /// Reads nodes, and the budgets of their pods' namespaces.
    async fn read(
        &self,
        search: &mut Search<'_>,
        nodes: Vec<NodeIndex>,
        current: &Current,
        budgets: &mut Budgets,
    ) {
        let mut named = Vec::new();
        for node in nodes {
            named.push((node, search.name(node).clone()));
        }
        let uses = |pod: &Pod| uses(current, self.names, pod);
        let calls = stream::iter(named).map(async |(node, name)| {
            let read = read_node(self.client, name.as_str(), self.names, &uses, CALL_TIMEOUT).await;
            if let Err(error) = &read {
                tracing::warn!(node = %name, %error, "no pods are moved to or from a node: it cannot be read");
            }
            (node, read.ok())
        });
        let reads: Vec<_> = calls.buffer_unordered(MAX_CONCURRENT).collect().await;
        let mut namespaces = BTreeSet::new();
        for pod in reads.iter().flat_map(|(_, read)| read).flat_map(|read| &read.residents) {
            if pod.stays.is_none() {
                namespaces.insert(pod.needs.labelled.namespace.clone());
            }
        }
        budgets.read(self.client, namespaces, CALL_TIMEOUT).await;
        for (node, mut read) in reads {
            for pod in read.iter_mut().flat_map(|read| &mut read.residents) {
                pod.set_covering(budgets.covering(&pod.needs.labelled));
            }
            search.set_read(node, read);
        }
    }
}

/// What a pod will probably use; nothing where the policy in force does not estimate pods.
fn uses(current: &Current, names: &Names, pod: &Pod) -> Amounts {
    let estimates = current.estimates(pod, names);
    estimates.in_force.map(|estimate| estimate.amounts).unwrap_or_default()
}
