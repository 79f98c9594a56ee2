//! Chooses the pods that kube-scheduler should evict on each candidate node, so that a GPU pod finds GPUs there.
//!
//! kube-scheduler's dry run sees a node's total only. The pods of the candidates are read from the API server
//! ([`crate::victims`]). A node that is not read keeps the victims of the dry run, or is left out if these free no
//! GPU. The freed GPUs are stored as a plan, and kept for the pod once kube-scheduler has nominated it for the node.

use std::time::Duration;

use cluster::Occupants;
use jiff::Timestamp;
use placement::gpu::Choice;
use placement::units::{GpuId, NodeName, PodUid};

use crate::victims::VictimSearch;
use crate::wire::{MetaVictims, Name};

/// The time for reading nodes. As shipped, kube-scheduler's timeout for the whole answer is 5 s.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// One preemption.
pub(crate) struct Preemption<'a> {
    pub(crate) search: VictimSearch<'a>,
    pub(crate) now: Timestamp,
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
        let mut helpful: Vec<_> =
            candidates.filter(|(node, _)| self.may_help(node.as_str())).collect();
        // Those with the fewest victims are read.
        helpful.sort_by_key(|(_, victims)| victims.uids().count());
        let nodes: Vec<NodeName> = helpful.iter().map(|(node, _)| node.as_str().into()).collect();
        let read = self.search.read(&nodes, READ_TIMEOUT).await;
        let mut remain = Vec::new();
        for ((node, victims), occupants) in helpful.into_iter().zip(read) {
            remain.extend(match occupants {
                Some(occupants) => self.with_chosen_victims(node, &victims, &occupants),
                None => self.with_dry_run_victims(node, victims),
            });
        }
        remain.sort_by(|a, b| a.node.as_str().cmp(b.node.as_str()));
        let plan = remain.iter().map(RemainingNode::gpus).collect();
        let pod = self.search.pod;
        self.search.view.change(|index| index.plan(pod.namespace(), &pod.uid(), plan));
        remain.into_iter().map(|node| (node.node, node.victims)).collect()
    }

    /// Whether evictions on this node may help: it is known, has GPUs, and takes GPU pods of the namespace.
    fn may_help(&self, node: &str) -> bool {
        let snapshot = self.search.view.read();
        let namespace = self.search.pod.namespace();
        snapshot.gpus(node).is_some() && !snapshot.is_backed_off(&node.into(), namespace, self.now)
    }

    /// The node with the victims that are chosen among its pods. `None` if no eviction frees GPUs for the pod: an
    /// answer without victims on a node makes kube-scheduler end the whole preemption.
    fn with_chosen_victims<'v>(
        &self,
        node: Name<'v>,
        victims: &MetaVictims<'_>,
        occupants: &Occupants,
    ) -> Option<RemainingNode<'v>> {
        let dry_run = victims.uids().map(PodUid::from).collect();
        let chosen = self.search.instead_of(&dry_run, node.as_str(), occupants)?;
        let victims = MetaVictims::of(&chosen.pods, chosen.violations);
        Some(RemainingNode { node, victims, choice: chosen.choice })
    }

    /// The node with the victims of the dry run, if these free GPUs for the pod and none of them ends others.
    fn with_dry_run_victims<'v>(
        &self,
        node: Name<'v>,
        victims: MetaVictims<'v>,
    ) -> Option<RemainingNode<'v>> {
        let uid = self.search.pod.uid();
        let snapshot = self.search.view.read();
        let undrained = snapshot.gpus(node.as_str())?.undrained_clients();
        if victims.uids().any(|victim| undrained.contains(&PodUid::from(victim))) {
            return None;
        }
        let choice = snapshot.fit_without(
            node.as_str(),
            |pod| *pod == uid || victims.uids().any(|gone| gone == pod.as_str()),
            &uid,
            self.search.request,
            &snapshot.choice_rule(),
        );
        Some(RemainingNode { node, victims, choice: choice.ok()? })
    }
}

impl RemainingNode<'_> {
    fn gpus(&self) -> (NodeName, Vec<GpuId>) {
        (NodeName::from(self.node.as_str()), self.choice.gpu_ids())
    }
}
