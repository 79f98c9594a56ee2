//! Reads the pods of nodes, and the PodDisruptionBudgets, from the API server. These are all the limits of such reads.

use std::time::Duration;

use cluster::{Budgets, NodePods, Occupants, node_pods};
use futures::future::join_all;
use placement::units::NodeName;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::VictimSearch;

/// Nodes that are read for one pod. Each takes two calls.
pub(crate) const MAX_READ: usize = 32;

/// Nodes that are read concurrently for one pod.
const MAX_CONCURRENT: usize = 8;

/// One call may take this part of the time for all: so one node that does not answer leaves time for others.
const CALL_PART: u32 = 4;

/// The time for the reads of one pod.
#[derive(Clone, Copy)]
struct ReadTime {
    deadline: Instant,
    /// The longest time of one call.
    call: Duration,
}

impl ReadTime {
    fn new(total: Duration) -> Self {
        Self { deadline: Instant::now() + total, call: total / CALL_PART }
    }

    /// The timeout of a call that begins now; `None` after the deadline.
    fn of_call(&self) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(self.call.min(left))
    }
}

impl VictimSearch<'_> {
    /// The pods of each node, in the order of `nodes`. Takes `total` at most. `None` for a node that was not read: one
    /// after the first [`MAX_READ`], and one that the API server did not answer for in time. Then the budgets of their
    /// namespaces are read.
    pub(crate) async fn read(&self, nodes: &[NodeName], total: Duration) -> Vec<Option<Occupants>> {
        let time = ReadTime::new(total);
        // The time of one call is left for the budgets.
        let of_nodes = ReadTime { deadline: time.deadline - time.call, ..time };
        let permits = Semaphore::new(MAX_CONCURRENT);
        let read_node = |node| self.read_node(node, of_nodes, &permits);
        let read = join_all(nodes.iter().take(MAX_READ).map(read_node)).await;
        let mut budgets = Budgets::default();
        if let Some(limit) = time.of_call() {
            let namespaces =
                read.iter().flatten().flat_map(NodePods::namespaces).map(str::to_owned).collect();
            budgets.read(self.client, namespaces, limit).await;
        }
        let mut occupants: Vec<_> =
            read.into_iter().map(|pods| Some(pods?.occupants(&budgets, &self.rules))).collect();
        occupants.resize(nodes.len(), None);
        occupants
    }

    async fn read_node(
        &self,
        node: &NodeName,
        time: ReadTime,
        permits: &Semaphore,
    ) -> Option<NodePods<'_>> {
        // Never closed.
        let _permit = permits.acquire().await;
        let limit = time.of_call()?;
        match node_pods(self.client, node.as_str(), self.pod, self.names, limit).await {
            Ok(pods) => Some(pods),
            Err(error) => {
                let (uid, namespace, pod) = (self.pod.uid(), self.pod.namespace(), self.pod.name());
                tracing::warn!(%uid, namespace, pod, %node, %error, "no victims are chosen on a node: its pods cannot be read");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_takes_a_quarter_of_the_time_and_none_begins_after_the_deadline() {
        let time = ReadTime::new(Duration::from_secs(4));
        assert_eq!(time.of_call(), Some(Duration::from_secs(1)));
        advance(Duration::from_millis(3_500)).await;
        assert_eq!(time.of_call(), Some(Duration::from_millis(500)));
        advance(Duration::from_millis(500)).await;
        assert_eq!(time.of_call(), None);
    }
}
