//! Which pods kube-scheduler should evict on each candidate node, so that a GPU pod finds cards there.
//!
//! kube-scheduler's dry run knows a node's total alone. What stands on the candidates is read from the API server, bounded in number and in time;
//! a node that is not read keeps the victims of the dry run, or is left out where these free no card. The cards that victims make free are
//! remembered, and kept for the pod once kube-scheduler has nominated it for the node.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::{Budget, Client, Pod, budgets, occupants};
use futures::future::join_all;
use placement::gpu::{Choice, GpuRequest, Victims, victims};
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::view::View;
use crate::wire::{MetaVictims, Name};

/// Nodes that are read for one pod: those with the fewest victims. Each takes two calls.
const MAX_READ: usize = 32;

/// Nodes that are read at once.
const AT_ONCE: usize = 8;

/// For one call: kube-scheduler waits 5 s for the whole answer as shipped.
const CALL: Duration = Duration::from_millis(800);

/// For all calls.
const ALL: Duration = Duration::from_secs(3);

const AS_IN_DRY_RUN: &str = "cannot be read: victims stay those of kube-scheduler's dry run";

/// One preemption.
pub(crate) struct Preemption<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    pub(crate) pod: &'a Pod,
    pub(crate) request: &'a GpuRequest,
}

/// What came of reading a node.
enum Read {
    /// The pods to evict.
    Victims(Victims),
    /// No eviction frees cards for the pod.
    NoneHelps,
    /// It could not be read.
    Nothing,
}

/// A node that remains a candidate.
struct Remains<'a> {
    node: Name<'a>,
    victims: MetaVictims<'a>,
    choice: Choice,
}

impl Preemption<'_> {
    /// The candidates that remain, with the pods to evict, by node. Those where a DRA driver serves the resource remain as they came.
    pub(crate) async fn answer<'v>(
        &self,
        asked: impl Iterator<Item = (Name<'v>, MetaVictims<'v>)>,
    ) -> Vec<(Name<'v>, MetaVictims<'v>)> {
        let cards = self.view.cards.read().clone();
        // A name that is no GPU node's is asked of nothing.
        let (by_dra, asked): (Vec<_>, Vec<_>) =
            asked.partition(|(node, _)| self.view.is_served_by_dra(&NodeName::from(node.as_str())));
        let mut asked: Vec<_> =
            asked.into_iter().filter(|(node, _)| cards.node(node.as_str()).is_some()).collect();
        asked.sort_by_key(|(_, victims)| victims.uids().count());
        let unread = asked.split_off(asked.len().min(MAX_READ));
        let deadline = Instant::now() + ALL;
        let budgets = match budgets(self.client, CALL).await {
            Ok(budgets) => Some(budgets),
            Err(error) => {
                tracing::warn!(%error, "PodDisruptionBudgets: {AS_IN_DRY_RUN}");
                None
            }
        };
        let places = Semaphore::new(AT_ONCE);
        let read = asked.iter().map(|(node, victims)| {
            let dry_run: BTreeSet<PodUid> = victims.uids().map(PodUid::from).collect();
            self.read(node.as_str().to_owned(), dry_run, budgets.as_deref(), deadline, &places)
        });
        let read: Vec<Read> = join_all(read.collect::<Vec<_>>()).await;
        let read = asked.into_iter().zip(read).map(|((node, victims), read)| match read {
            Read::Victims(Victims { pods, violations, choice }) => {
                Some(Remains { node, victims: MetaVictims::of(&pods, violations), choice })
            }
            Read::NoneHelps => None,
            Read::Nothing => self.as_asked(node, victims),
        });
        let unread = unread.into_iter().map(|(node, victims)| self.as_asked(node, victims));
        let mut remain: Vec<Remains<'v>> = read.chain(unread).flatten().collect();
        remain.sort_by(|a, b| a.node.as_str().cmp(b.node.as_str()));
        self.view.cards.plan(&self.pod.uid(), remain.iter().map(Remains::cards));
        remain.into_iter().map(|remains| (remains.node, remains.victims)).chain(by_dra).collect()
    }

    /// Which pods to evict on a node.
    async fn read(
        &self,
        node: String,
        dry_run: BTreeSet<PodUid>,
        budgets: Option<&[Budget]>,
        deadline: Instant,
        places: &Semaphore,
    ) -> Read {
        let Some(budgets) = budgets else { return Read::Nothing };
        let seen = async {
            // Never closed.
            let _place = places.acquire().await;
            occupants(self.client, &node, self.pod, self.names, budgets, CALL).await
        };
        let seen = match timeout_at(deadline, seen).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => {
                tracing::warn!(node, %error, "{AS_IN_DRY_RUN}");
                return Read::Nothing;
            }
            Err(_) => return Read::Nothing,
        };
        let Some(cards) = self.view.cards.read().node(&node).cloned() else {
            return Read::NoneHelps;
        };
        let uid = self.pod.uid();
        let chosen = victims(
            &cards,
            &uid,
            self.request,
            &seen.evictable,
            &dry_run,
            &seen.lack,
            &self.view.choice_rule(),
        );
        // An answer that names no pod makes kube-scheduler give the whole preemption up.
        let chosen = chosen.filter(|victims| !victims.pods.is_empty());
        chosen.map_or(Read::NoneHelps, Read::Victims)
    }

    /// The victims of the dry run, where these free cards for the pod.
    fn as_asked<'v>(&self, node: Name<'v>, victims: MetaVictims<'v>) -> Option<Remains<'v>> {
        let uid = self.pod.uid();
        let is_victim =
            |pod: &PodUid| *pod == uid || victims.uids().any(|gone| gone == pod.as_str());
        let (cards, rule) = (self.view.cards.read(), self.view.choice_rule());
        let choice = cards.fit_without(node.as_str(), is_victim, &uid, self.request, &rule).ok()?;
        Some(Remains { node, victims, choice })
    }
}

impl Remains<'_> {
    fn cards(&self) -> (NodeName, Vec<CardId>) {
        (NodeName::from(self.node.as_str()), self.choice.card_ids())
    }
}
