//! Addresses of exporters that do not listen at their node's InternalIP: from the EndpointSlices of a Service.
//!
//! They are set in a node's facts, before any other module gets them. The annotation on a Node overrides them.
//! Invariants: a node without a ready endpoint of the Service has no address, not its InternalIP, where another program
//! may listen; an event has the node with its newest address, and there is none before the slices were listed once.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use cluster::{Event, Events, NodeFacts, SliceFacts};
use futures::stream::{self, StreamExt as _};
use placement::units::NodeName;

/// The events of `nodes`, with exporters' addresses from a Service's EndpointSlices. When an address changes, there is
/// another event for the node.
pub(crate) fn by_service(
    nodes: Events<NodeFacts>,
    slices: Events<SliceFacts>,
) -> Events<NodeFacts> {
    let inputs = (nodes, slices, ByService::default());
    let events = stream::unfold(inputs, |(mut nodes, mut slices, mut service)| async {
        let events = tokio::select! {
            slices = slices.next() => service.take_slices(slices?),
            node = nodes.next(), if service.is_listed => vec![service.take_node(node?)],
        };
        Some((stream::iter(events), (nodes, slices, service)))
    });
    events.flatten().boxed()
}

/// A Service's endpoints, and the nodes whose exporters they are.
#[derive(Default)]
struct ByService {
    /// The exporters' addresses by slice. The first slice with a node counts.
    slices: BTreeMap<String, HashMap<NodeName, SocketAddr>>,
    /// Whether the slices were listed.
    is_listed: bool,
    /// The nodes without an address in their annotation.
    nodes: HashMap<NodeName, NodeFacts>,
}

impl ByService {
    fn address(&self, node: &NodeName) -> Option<SocketAddr> {
        self.slices.values().find_map(|slice| slice.get(node)).copied()
    }

    /// A node without an address in its annotation, with that of the Service.
    fn addressed(&self, mut facts: NodeFacts) -> NodeFacts {
        facts.internal_ip = None;
        facts.exporter = self.address(&facts.name).map(|address| Ok(address.to_string()));
        facts
    }

    /// Takes over an event of the nodes. Returns it with their addresses.
    fn take_node(&mut self, event: Event<NodeFacts>) -> Event<NodeFacts> {
        match event {
            Event::Listing => Event::Listing,
            Event::Listed(all) => {
                self.nodes.clear();
                Event::Listed(all.into_iter().map(|facts| self.take_facts(facts)).collect())
            }
            Event::Applied(facts) => Event::Applied(self.take_facts(facts)),
            Event::Gone(facts) => {
                self.nodes.remove(&facts.name);
                Event::Gone(facts)
            }
        }
    }

    fn take_facts(&mut self, facts: NodeFacts) -> NodeFacts {
        if facts.exporter.is_some() {
            self.nodes.remove(&facts.name);
            return facts;
        }
        self.nodes.insert(facts.name.clone(), facts.clone());
        self.addressed(facts)
    }

    /// Takes over an event of the slices. Returns one for each node whose address it changes.
    fn take_slices(&mut self, event: Event<SliceFacts>) -> Vec<Event<NodeFacts>> {
        let before: Vec<_> = self.nodes.keys().map(|node| self.address(node)).collect();
        match event {
            Event::Listing => return Vec::new(),
            Event::Listed(all) => {
                self.is_listed = true;
                self.slices = all.into_iter().map(entry).collect();
            }
            Event::Applied(slice) => self.slices.extend([entry(slice)]),
            Event::Gone(slice) => drop(self.slices.remove(&slice.name)),
        }
        let mut changed = Vec::new();
        for ((name, facts), before) in self.nodes.iter().zip(before) {
            if self.address(name) != before {
                changed.push(Event::Applied(self.addressed(facts.clone())));
            }
        }
        changed
    }
}

fn entry(slice: SliceFacts) -> (String, HashMap<NodeName, SocketAddr>) {
    (slice.name, slice.addresses.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, annotated: Option<&str>) -> NodeFacts {
        NodeFacts {
            name: name.into(),
            uid: String::new(),
            created_at: None,
            internal_ip: Some("10.9.9.9".parse().unwrap()),
            exporter: annotated.map(|address| Ok(address.to_owned())),
            gpus: None,
            ready: Some(true),
            readings: Vec::new(),
            hot_value: None,
            share: None,
            labels: Default::default(),
            capacity: Default::default(),
            speeds: Default::default(),
            allocatable_cpu: None,
            measured: None,
            taints: Default::default(),
        }
    }

    fn slice(name: &str, addresses: &[(&str, &str)]) -> SliceFacts {
        let mut slice = SliceFacts { name: name.to_owned(), addresses: Default::default() };
        for (node, address) in addresses {
            slice.addresses.extend([((*node).into(), address.parse().unwrap())]);
        }
        slice
    }

    /// Each node of the event with its address.
    fn addresses(event: Event<NodeFacts>) -> Vec<String> {
        let all = match event {
            Event::Listing => Vec::new(),
            Event::Listed(all) => all,
            Event::Applied(one) | Event::Gone(one) => vec![one],
        };
        let mut texts = Vec::new();
        for facts in all {
            let address = facts.exporter.map_or("none".to_owned(), Result::unwrap);
            assert!(facts.internal_ip.is_none() || address == "1.2.3.4:5");
            texts.push(format!("{}={address}", facts.name));
        }
        texts
    }

    #[tokio::test]
    async fn nodes_wait_for_the_slices_and_get_their_addresses() {
        let nodes = [node("a", None), node("b", None), node("c", Some("1.2.3.4:5"))];
        let nodes = stream::iter([Event::Listed(nodes.into())]).boxed();
        let slices =
            stream::iter([Event::Listing, Event::Listed(vec![slice("s", &[("a", "10.0.0.1:7")])])]);
        // An endless stream, as that of a watch.
        let mut events = by_service(nodes, slices.chain(stream::pending()).boxed());
        let first = events.next().await.unwrap();
        assert_eq!(addresses(first), ["a=10.0.0.1:7", "b=none", "c=1.2.3.4:5"]);
    }

    #[test]
    fn a_changed_slice_tells_of_the_nodes_whose_address_it_changes() {
        let mut service = ByService::default();
        let slices = vec![slice("s", &[("a", "10.0.0.1:7")]), slice("t", &[("b", "10.0.0.2:7")])];
        assert!(service.take_slices(Event::Listed(slices)).is_empty());
        let nodes = vec![node("a", None), node("b", None), node("c", None)];
        service.take_node(Event::Listed(nodes));
        let moved = slice("s", &[("a", "10.0.0.9:7"), ("c", "10.0.0.3:7")]);
        for (event, expected) in [
            (Event::Applied(moved), vec!["a=10.0.0.9:7", "c=10.0.0.3:7"]),
            (Event::Gone(slice("t", &[])), vec!["b=none"]),
            (Event::Applied(slice("u", &[("x", "10.0.0.4:7")])), Vec::new()),
        ] {
            let events = service.take_slices(event).into_iter();
            let mut changed: Vec<String> = events.flat_map(addresses).collect();
            changed.sort();
            assert_eq!(changed, expected);
        }
    }
}
