//! From the watches into the view.
//!
//! Invariant: after a list, what exists in the view existed in the list or was learned after the
//! list began; what is reserved waits for the API server's word, whatever a list says.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cluster::{Event, Events, NodeFacts, Pod, PodFacts};
use daemon::Shutdown;
use futures::StreamExt;
use jiff::Timestamp;
use placement::names::Names;
use placement::units::{NodeName, PodUid};

use super::View;

/// What a pod means to the view.
#[derive(Debug, Clone, PartialEq)]
pub enum PodNews {
    /// It asks for GPU memory (or asks in a way that cannot be read).
    Gpu(Box<PodFacts>),
    /// It was bound of late.
    Bound(PodUid, NodeName, Timestamp),
}

/// What a pod means to the view; `None` for most pods of a cluster.
pub fn pod_news(view: &View, names: &Names, pod: &Pod, now: Timestamp) -> Option<PodNews> {
    let facts = pod.facts(names);
    match (&facts.gpu, &facts.node, facts.bound_at) {
        (Ok(None), Some(node), Some(at)) if view.load.is_recent(at, now) => {
            Some(PodNews::Bound(facts.uid, node.clone(), at))
        }
        (Ok(None), ..) => None,
        _ => Some(PodNews::Gpu(Box::new(facts))),
    }
}

/// Feeds pods into the view until the shutdown.
///
/// # Errors
///
/// None: the watch goes on for ever.
pub async fn follow_pods(
    view: Arc<View>,
    mut events: Events<PodNews>,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut unlisted = HashSet::new();
    while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
        view.take_pods(event, &mut unlisted, clock());
    }
    Ok(())
}

/// Feeds nodes into the view until the shutdown.
///
/// # Errors
///
/// None: the watch goes on for ever.
pub async fn follow_nodes(
    view: Arc<View>,
    mut events: Events<NodeFacts>,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
        view.take_nodes(event, clock());
    }
    Ok(())
}

impl View {
    /// Takes over news of pods. `unlisted` carries the pods known when a list began.
    pub fn take_pods(&self, event: Event<PodNews>, unlisted: &mut HashSet<PodUid>, now: Timestamp) {
        match event {
            Event::Listing => *unlisted = self.cards.settled(),
            Event::Listed(pods) => {
                for pod in pods {
                    if let PodNews::Gpu(facts) = &pod {
                        unlisted.remove(&facts.uid);
                    }
                    self.take_pod(&pod, now);
                }
                unlisted.drain().for_each(|uid| self.cards.forget(&uid));
                self.pods.set_listed();
            }
            Event::Applied(pod) => self.take_pod(&pod, now),
            Event::Gone(PodNews::Gpu(facts)) => self.cards.forget(&facts.uid),
            // A binding made its node hot, whatever became of the pod.
            Event::Gone(PodNews::Bound(..)) => {}
        }
    }

    fn take_pod(&self, pod: &PodNews, now: Timestamp) {
        match pod {
            PodNews::Bound(uid, node, at) => self.load.record_binding(uid, node, *at),
            PodNews::Gpu(facts) => self.take_gpu_pod(facts, now),
        }
    }

    fn take_gpu_pod(&self, facts: &PodFacts, now: Timestamp) {
        match &facts.gpu {
            Ok(Some(gpu)) => self.cards.note(facts, gpu),
            Ok(None) => {}
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let (namespace, name) = (&facts.namespace, &facts.name);
                tracing::warn!(namespace, name, %error, "pod refused, its units are not counted");
            }
        }
        if let (Some(node), Some(at)) = (&facts.node, facts.bound_at)
            && self.load.is_recent(at, now)
        {
            self.load.record_binding(&facts.uid, node, at);
        }
    }

    /// Takes over news of nodes.
    pub fn take_nodes(&self, event: Event<NodeFacts>, now: Timestamp) {
        match event {
            Event::Listing => {}
            Event::Listed(nodes) => {
                let names: HashSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
                let gone = self.cards.nodes().into_iter().filter(|name| !names.contains(name));
                gone.for_each(|name| self.cards.set_cards(&name, Vec::new()));
                nodes.iter().for_each(|node| self.take_cards(node));
                self.load.set_nodes(nodes, now);
                self.nodes.set_listed();
            }
            Event::Applied(node) => {
                self.take_cards(&node);
                self.load.set_node(&node, now);
            }
            Event::Gone(node) => {
                self.cards.set_cards(&node.name, Vec::new());
                self.load.remove_node(&node.name);
            }
        }
    }

    fn take_cards(&self, node: &NodeFacts) {
        match &node.cards {
            Some(Ok(cards)) => self.cards.set_cards(&node.name, cards.clone()),
            None => self.cards.set_cards(&node.name, Vec::new()),
            // The last good report stays: a card does not vanish because its report is torn.
            Some(Err(error)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(node = %node.name, %error, "report of cards refused");
            }
        }
    }
}
