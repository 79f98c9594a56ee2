//! Addresses of exporters that do not listen at their node's InternalIP: from the EndpointSlices of a Service.
//!
//! They are set in a node's facts, before any other module gets them. The annotation on a Node overrides them.
//! Invariant: a node without a ready endpoint of the Service has no address, not its InternalIP, where another program
//! may listen.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use cluster::{Addition, Event, Events, NodeFacts, SliceFacts, with_addition};
use placement::units::NodeName;

/// The events of `nodes`, with exporters' addresses from a Service's EndpointSlices, as [`with_addition`] does.
pub(crate) fn by_service(
    nodes: Events<NodeFacts>,
    slices: Events<SliceFacts>,
) -> Events<NodeFacts> {
    with_addition(nodes, slices, SliceAddresses::default())
}

/// The exporters' addresses by slice of the Service. The first slice with a node counts.
#[derive(Default)]
struct SliceAddresses(BTreeMap<String, HashMap<NodeName, SocketAddr>>);

impl SliceAddresses {
    fn address(&self, node: &NodeName) -> Option<SocketAddr> {
        self.0.values().find_map(|slice| slice.get(node)).copied()
    }
}

impl Addition for SliceAddresses {
    type Object = SliceFacts;

    /// A node with an address in its annotation keeps it.
    fn kept(&self, facts: &NodeFacts) -> Option<NodeFacts> {
        facts.exporter.is_none().then(|| facts.clone())
    }

    fn complete(&self, mut facts: NodeFacts) -> NodeFacts {
        if facts.exporter.is_none() {
            facts.internal_ip = None;
            facts.exporter = self.address(&facts.name).map(|address| Ok(address.to_string()));
        }
        facts
    }

    fn take(
        &mut self,
        event: Event<SliceFacts>,
        kept: &HashMap<NodeName, NodeFacts>,
    ) -> Vec<NodeName> {
        let before: HashMap<&NodeName, Option<SocketAddr>> =
            kept.keys().map(|node| (node, self.address(node))).collect();
        match event {
            Event::Listing => return Vec::new(),
            Event::Listed(all) => self.0 = all.into_iter().map(entry).collect(),
            Event::Applied(slice) => self.0.extend([entry(slice)]),
            Event::Gone(slice) => drop(self.0.remove(&slice.name)),
        }
        let changed = before.into_iter().filter(|(node, address)| self.address(node) != *address);
        changed.map(|(node, _)| node.clone()).collect()
    }
}

fn entry(slice: SliceFacts) -> (String, HashMap<NodeName, SocketAddr>) {
    (slice.name, slice.addresses.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use cluster::Completed;
    use futures::{StreamExt, stream};

    use super::*;

    fn node(name: &str, annotated: Option<&str>) -> NodeFacts {
        NodeFacts {
            name: name.into(),
            uid: String::new(),
            created_at: None,
            internal_ip: Some("10.9.9.9".parse().unwrap()),
            exporter: annotated.map(|address| Ok(address.to_owned())),
            cards: None,
            ready: Some(true),
            readings: Vec::new(),
            hot_value: None,
            annotations: Default::default(),
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
        let mut service = Completed::new(SliceAddresses::default());
        let slices = vec![slice("s", &[("a", "10.0.0.1:7")]), slice("t", &[("b", "10.0.0.2:7")])];
        assert!(service.take_object(Event::Listed(slices)).is_empty());
        let nodes = vec![node("a", None), node("b", None), node("c", None)];
        service.take_node(Event::Listed(nodes));
        let moved = slice("s", &[("a", "10.0.0.9:7"), ("c", "10.0.0.3:7")]);
        for (event, expected) in [
            (Event::Applied(moved), vec!["a=10.0.0.9:7", "c=10.0.0.3:7"]),
            (Event::Gone(slice("t", &[])), vec!["b=none"]),
            (Event::Applied(slice("u", &[("x", "10.0.0.4:7")])), Vec::new()),
        ] {
            let events = service.take_object(event).into_iter();
            let mut changed: Vec<String> = events.flat_map(addresses).collect();
            changed.sort();
            assert_eq!(changed, expected);
        }
    }
}
