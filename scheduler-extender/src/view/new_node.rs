//! A node that is none of the cluster yet, with the pods that were placed on it: an index of its own.
//!
//! Invariant: it changes nothing of the cluster's view, and nothing else reads it.

use std::collections::HashSet;

use cluster::{Event, NodeFacts, Pod, WatchCause};
use jiff::Timestamp;
use placement::gpu::{ChoiceRule, GpuRequest};
use placement::names::Names;
use placement::units::NodeName;

use super::index::PodRequest;
use super::{Current, GpuPodId, Index, ReservationError};

/// A new node, and what is on it.
pub(crate) struct NewNode {
    name: NodeName,
    index: Index,
    current: Current,
}

impl NewNode {
    /// The node of these facts, under the cluster's policy and with what is learned there.
    pub(crate) fn new(cluster: &Current, facts: NodeFacts, now: Timestamp) -> Self {
        let mut index = Index::beside(cluster);
        let current = index.first();
        let name = facts.name.clone();
        index.apply_nodes(Event::Listed(vec![facts]), now);
        // Without a list of pods, what they request and declare would be unknown.
        for event in [Event::Listing, Event::Listed(Vec::new())] {
            let _ = index.apply_pods(event, &mut HashSet::new(), now);
        }
        let mut node = Self { name, index, current };
        node.publish();
        node
    }

    /// The node's name.
    pub(crate) fn name(&self) -> &NodeName {
        &self.name
    }

    /// The state by which the next pod is decided about.
    pub(crate) fn current(&self) -> &Current {
        &self.current
    }

    /// Places a pod as Bind does and as the watch of pods then shows it. Returns the indexes of its GPUs.
    ///
    /// # Errors
    ///
    /// As [`Index::reserve`].
    pub(crate) fn place(
        &mut self,
        pod: &Pod,
        request: Option<&GpuRequest>,
        rule: &ChoiceRule,
        names: &Names,
        now: Timestamp,
    ) -> Result<Vec<u32>, ReservationError> {
        let mut gpus = Vec::new();
        if let Some(request) = request {
            let reserved = self.index.reserve(&GpuPodId::of(pod), request, &self.name, rule)?;
            gpus = reserved.choice.indices();
        }
        let counted = PodRequest::on(self.name.clone(), pod, names, now);
        self.index.count_requests(&counted, WatchCause::Changed);
        self.publish();
        Ok(gpus)
    }

    fn publish(&mut self) {
        if let Some(next) = self.index.publish(&self.current) {
            self.current = next;
        }
    }
}
