//! The node on which pods are evicted for a waiting GPU pod: the one whose victims are least important, then fewest.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::Occupants;
use placement::units::NodeName;

use super::waiting::PodWithoutGpu;
use crate::victims::{Eviction, MAX_READ, NodeResult, VictimSearch};

/// The time for reading nodes. Nothing waits for it but other waiting pods.
const READ_TIMEOUT: Duration = Duration::from_secs(8);

/// Nodes of which victims may be chosen for a pod, with their pods as read from the API server.
pub(super) struct ReadNodes(Vec<(NodeName, Occupants)>);

/// The nodes to read: those where evictions may help. Those that would need the fewest evictions (of any priority) come
/// first, and those of `of_no_use` last.
pub(super) fn rank(
    search: &VictimSearch<'_>,
    nodes: &[NodeName],
    of_no_use: &BTreeSet<NodeName>,
) -> Vec<NodeName> {
    let snapshot = search.view.read();
    let rule = snapshot.choice_rule_of(search.request.given_out());
    let mut ranked = Vec::new();
    for node in nodes {
        let gpus = snapshot.gpus(node.as_str()).and_then(|gpus| gpus.found_by(search.request));
        let Some(gpus) = gpus else { continue };
        let is_short = gpus.cpu().is_some_and(|free| free < search.request.cpu());
        match search.fewest(gpus, &rule) {
            // What keeps the pod off is no GPU, and kube-scheduler itself evicts for the rest.
            Some(0) if is_short => {}
            Some(fewest) => ranked.push((of_no_use.contains(node), fewest, node.clone())),
            None => {}
        }
    }
    ranked.sort();
    ranked.truncate(MAX_READ);
    ranked.into_iter().map(|(.., node)| node).collect()
}

impl ReadNodes {
    /// Reads these nodes. Leaves out those that cannot be read.
    pub(super) async fn read(search: &VictimSearch<'_>, nodes: Vec<NodeName>) -> Self {
        let read = search.read(&nodes, READ_TIMEOUT).await;
        Self(nodes.into_iter().zip(read).filter_map(|(node, read)| Some((node, read?))).collect())
    }

    /// The cheapest eviction on one of these nodes, without the pods that are left out. `None` where no eviction helps,
    /// or none is needed any more.
    pub(super) fn cheapest_eviction(
        &self,
        search: &VictimSearch<'_>,
        waiting: &PodWithoutGpu,
    ) -> Option<Eviction> {
        let mut cheapest: Option<Eviction> = None;
        for (node, occupants) in &self.0 {
            match search.within_budgets(node, occupants, &waiting.left_out) {
                NodeResult::Fits if waiting.fits_in_vain(node, occupants) => {}
                NodeResult::Fits => return None,
                NodeResult::NoneHelps => {}
                NodeResult::Eviction(found) => {
                    if cheapest.as_ref().is_none_or(|known| found.cost < known.cost) {
                        cheapest = Some(found);
                    }
                }
            }
        }
        cheapest
    }
}
