//! Joins the watch of nodes with another watch that adds to them, such as their readings or their exporter's address.
//!
//! Invariant: an event has the node with the newest addition, and there is no event before the other watch has listed
//! once.

use std::collections::HashMap;

use futures::stream::{self, StreamExt};
use placement::units::NodeName;

use crate::NodeFacts;
use crate::watch::{Event, Events};

/// How another watch adds to nodes.
pub trait Addition: Send + 'static {
    /// The objects of that watch.
    type Object: Send + 'static;

    /// The facts that are kept of a node, to complete it again when an addition changes; `None` if nothing is ever
    /// added to it.
    fn kept(&self, facts: &NodeFacts) -> Option<NodeFacts>;

    /// The node with the addition.
    fn complete(&self, facts: NodeFacts) -> NodeFacts;

    /// Takes over an event of that watch. Returns those of the `kept` nodes whose addition it changes.
    fn take(
        &mut self,
        event: Event<Self::Object>,
        kept: &HashMap<NodeName, NodeFacts>,
    ) -> Vec<NodeName>;
}

/// The events of `nodes`, each node completed by `addition`. When an addition changes, there is another event for the
/// node. There is no event until `objects` were listed once.
#[must_use]
pub fn with_addition<A: Addition>(
    nodes: Events<NodeFacts>,
    objects: Events<A::Object>,
    addition: A,
) -> Events<NodeFacts> {
    let inputs = (nodes, objects, Completed::new(addition));
    let events = stream::unfold(inputs, |(mut nodes, mut objects, mut completed)| async {
        let events = tokio::select! {
            object = objects.next() => completed.take_object(object?),
            node = nodes.next(), if completed.is_listed => vec![completed.take_node(node?)],
        };
        Some((stream::iter(events), (nodes, objects, completed)))
    });
    events.flatten().boxed()
}

/// The nodes of the watch, and the additions to them.
pub struct Completed<A> {
    addition: A,
    /// Whether the other watch has listed.
    is_listed: bool,
    kept: HashMap<NodeName, NodeFacts>,
}

impl<A: Addition> Completed<A> {
    /// No nodes yet.
    #[must_use]
    pub fn new(addition: A) -> Self {
        Self { addition, is_listed: false, kept: HashMap::new() }
    }

    /// Takes over an event of the nodes. Returns it with the nodes completed.
    pub fn take_node(&mut self, event: Event<NodeFacts>) -> Event<NodeFacts> {
        match event {
            Event::Listing => Event::Listing,
            Event::Listed(all) => {
                self.kept.clear();
                Event::Listed(all.into_iter().map(|facts| self.completed(facts)).collect())
            }
            Event::Applied(facts) => Event::Applied(self.completed(facts)),
            Event::Gone(facts) => {
                self.kept.remove(&facts.name);
                Event::Gone(facts)
            }
        }
    }

    fn completed(&mut self, facts: NodeFacts) -> NodeFacts {
        match self.addition.kept(&facts) {
            Some(kept) => drop(self.kept.insert(facts.name.clone(), kept)),
            None => drop(self.kept.remove(&facts.name)),
        }
        self.addition.complete(facts)
    }

    /// Takes over an event of the other watch. Returns one for each node that it changes.
    pub fn take_object(&mut self, event: Event<A::Object>) -> Vec<Event<NodeFacts>> {
        self.is_listed |= matches!(event, Event::Listed(_));
        let changed = self.addition.take(event, &self.kept);
        let facts = changed.iter().filter_map(|node| self.kept.get(node));
        facts.map(|facts| Event::Applied(self.addition.complete(facts.clone()))).collect()
    }
}
