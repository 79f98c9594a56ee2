//! Chooses the pods that kube-scheduler should evict on each candidate node, so that a GPU pod finds cards there.
//!
//! kube-scheduler's dry run sees a node's total only. The pods of the candidates are read from the API server, bounded in number and
//! time; a node that is not read keeps the victims of the dry run, or is left out if these free no card. The freed cards are stored as
//! a plan, and kept for the pod once kube-scheduler has nominated it for the node.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::{Budget, Client, Pod, budgets, occupants};
use futures::future::join_all;
use jiff::Timestamp;
use placement::gpu::{Choice, GpuRequest, Victims, victims};
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::view::View;
use crate::wire::{MetaVictims, Name};

/// Nodes that are read for one pod: those with the fewest victims. Each takes two calls.
const MAX_READ: usize = 32;

/// Nodes that are read concurrently.
const MAX_CONCURRENT: usize = 8;

/// The timeout of one call. As shipped, kube-scheduler's timeout for the whole answer is 5 s.
const CALL_TIMEOUT: Duration = Duration::from_millis(800);

/// The timeout of all calls together.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(3);

const AS_IN_DRY_RUN: &str = "cannot be read: victims stay those of kube-scheduler's dry run";

/// One preemption.
pub(crate) struct Preemption<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    pub(crate) pod: &'a Pod,
    pub(crate) request: &'a GpuRequest,
    pub(crate) now: Timestamp,
}

/// The result of reading a node.
enum NodeRead {
    /// The pods to evict.
    Victims(Victims),
    /// No eviction frees cards for the pod.
    NoneHelps,
    /// The node could not be read.
    Failed,
}

/// A node that remains a candidate.
struct RemainingNode<'a> {
    node: Name<'a>,
    victims: MetaVictims<'a>,
    choice: Choice,
}

impl Preemption<'_> {
    /// The remaining candidates, with the pods to evict.
    pub(crate) async fn answer<'v>(
        &self,
        candidates: impl Iterator<Item = (Name<'v>, MetaVictims<'v>)>,
    ) -> Vec<(Name<'v>, MetaVictims<'v>)> {
        let snapshot = self.view.read();
        // Names of unknown nodes are not read.
        let may_help = |node: &str| {
            snapshot.cards(node).is_some()
                && !snapshot.is_backed_off(&node.into(), self.pod.namespace(), self.now)
        };
        let mut candidates: Vec<_> =
            candidates.filter(|(node, _)| may_help(node.as_str())).collect();
        candidates.sort_by_key(|(_, victims)| victims.uids().count());
        let unread = candidates.split_off(candidates.len().min(MAX_READ));
        let deadline = Instant::now() + TOTAL_TIMEOUT;
        let budgets = match budgets(self.client, CALL_TIMEOUT).await {
            Ok(budgets) => Some(budgets),
            Err(error) => {
                tracing::warn!(%error, "PodDisruptionBudgets: {AS_IN_DRY_RUN}");
                None
            }
        };
        let permits = Semaphore::new(MAX_CONCURRENT);
        let read = candidates.iter().map(|(node, victims)| {
            let dry_run: BTreeSet<PodUid> = victims.uids().map(PodUid::from).collect();
            self.read(node.as_str().to_owned(), dry_run, budgets.as_deref(), deadline, &permits)
        });
        let read: Vec<NodeRead> = join_all(read.collect::<Vec<_>>()).await;
        let read = candidates.into_iter().zip(read).map(|((node, victims), read)| match read {
            NodeRead::Victims(Victims { pods, violations, choice }) => {
                Some(RemainingNode { node, victims: MetaVictims::of(&pods, violations), choice })
            }
            NodeRead::NoneHelps => None,
            NodeRead::Failed => self.with_dry_run_victims(node, victims),
        });
        let unread =
            unread.into_iter().map(|(node, victims)| self.with_dry_run_victims(node, victims));
        let mut remain: Vec<RemainingNode<'v>> = read.chain(unread).flatten().collect();
        remain.sort_by(|a, b| a.node.as_str().cmp(b.node.as_str()));
        let plan = remain.iter().map(RemainingNode::cards).collect();
        self.view.change(|index| index.plan(&self.pod.uid(), plan));
        remain.into_iter().map(|node| (node.node, node.victims)).collect()
    }

    /// Chooses the pods to evict on a node.
    async fn read(
        &self,
        node: String,
        dry_run: BTreeSet<PodUid>,
        budgets: Option<&[Budget]>,
        deadline: Instant,
        permits: &Semaphore,
    ) -> NodeRead {
        let Some(budgets) = budgets else { return NodeRead::Failed };
        let seen = async {
            // Never closed.
            let _permit = permits.acquire().await;
            occupants(self.client, &node, self.pod, self.names, budgets, CALL_TIMEOUT).await
        };
        let seen = match timeout_at(deadline, seen).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => {
                tracing::warn!(node, %error, "{AS_IN_DRY_RUN}");
                return NodeRead::Failed;
            }
            Err(_) => return NodeRead::Failed,
        };
        let snapshot = self.view.read();
        let Some(cards) = snapshot.cards(&node) else { return NodeRead::NoneHelps };
        let uid = self.pod.uid();
        let chosen = victims(
            cards,
            &uid,
            self.request,
            &seen.evictable,
            &dry_run,
            &seen.shortfall,
            &snapshot.choice_rule(),
        );
        // An answer without victims on a node makes kube-scheduler end the whole preemption.
        let chosen = chosen.filter(|victims| !victims.pods.is_empty());
        chosen.map_or(NodeRead::NoneHelps, NodeRead::Victims)
    }

    /// The node with the victims of the dry run, if these free cards for the pod.
    fn with_dry_run_victims<'v>(
        &self,
        node: Name<'v>,
        victims: MetaVictims<'v>,
    ) -> Option<RemainingNode<'v>> {
        let uid = self.pod.uid();
        let is_victim =
            |pod: &PodUid| *pod == uid || victims.uids().any(|gone| gone == pod.as_str());
        let snapshot = self.view.read();
        let rule = snapshot.choice_rule();
        let choice =
            snapshot.fit_without(node.as_str(), is_victim, &uid, self.request, &rule).ok()?;
        Some(RemainingNode { node, victims, choice })
    }
}

impl RemainingNode<'_> {
    fn cards(&self) -> (NodeName, Vec<CardId>) {
        (NodeName::from(self.node.as_str()), self.choice.card_ids())
    }
}
