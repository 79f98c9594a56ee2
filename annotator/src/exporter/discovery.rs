//! Where exporters are found that do not answer at their node's InternalIP: by a template of their address, or by the
//! EndpointSlices of a Service.
//!
//! Both set the address in a node's facts, before anything else sees them. The annotation on a Node goes before both.
//! Invariants: a node's name is put into an address as it is only if it is a DNS name; a node that the Service has no
//! ready endpoint on has no address, rather than that of its InternalIP, where something else may answer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use cluster::{Event, Events, NodeFacts, SliceFacts};
use futures::{StreamExt, stream};
use placement::units::NodeName;

/// What stands for the node's name in a template.
const NODE: &str = "{node}";

/// The address of each node's exporter, as `{node}.metrics.example:9443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressTemplate {
    before: String,
    after: String,
}

impl AddressTemplate {
    /// Parses a host and a port, of which `{node}` stands for the node's name.
    ///
    /// # Errors
    /// A message, where it is another text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected host:port with {NODE} in the host, e.g. `{NODE}.metrics.example:9443`"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (before, after) = host.split_once(NODE).ok_or_else(wrong)?;
        let legal = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
        };
        let port_fits = port.parse::<u16>().is_ok_and(|port| port > 0);
        let fits = port_fits && legal(before) && legal(after);
        let template = || Self { before: before.to_owned(), after: format!("{after}:{port}") };
        fits.then(template).ok_or_else(wrong)
    }

    /// The node's facts with the address of its exporter. Those of a node whose annotation names one stay as they are.
    #[must_use]
    pub fn apply(&self, mut facts: NodeFacts) -> NodeFacts {
        if facts.exporter.is_none() {
            facts.internal_ip = None;
            facts.exporter = is_dns_name(facts.name.as_str())
                .then(|| Ok(format!("{}{}{}", self.before, facts.name, self.after)));
        }
        facts
    }
}

/// The names that Kubernetes gives to nodes.
fn is_dns_name(name: &str) -> bool {
    let legal = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    (1..=253).contains(&name.len()) && name.bytes().all(legal)
}

/// The events of `nodes`, with exporters' addresses from a Service's EndpointSlices. Where a node's address changes, another
/// event with the same node and the new address follows. There is no event until the slices were listed once.
#[must_use]
pub fn by_service(nodes: Events<NodeFacts>, slices: Events<SliceFacts>) -> Events<NodeFacts> {
    let inputs = Inputs { nodes, slices, service: Service::default() };
    let events = stream::unfold(inputs, |mut inputs| async {
        let events = inputs.next().await?;
        Some((stream::iter(events), inputs))
    });
    events.flatten().boxed()
}

struct Inputs {
    nodes: Events<NodeFacts>,
    slices: Events<SliceFacts>,
    service: Service,
}

impl Inputs {
    async fn next(&mut self) -> Option<Vec<Event<NodeFacts>>> {
        tokio::select! {
            slice = self.slices.next() => Some(self.service.take_slice(slice?)),
            node = self.nodes.next(), if self.service.is_listed => Some(vec![self.service.take_node(node?)]),
        }
    }
}

/// What is known of nodes and addresses.
#[derive(Default)]
struct Service {
    is_listed: bool,
    /// Addresses by the slice that gives them. The first slice that names a node counts.
    slices: BTreeMap<String, HashMap<NodeName, SocketAddr>>,
    /// The nodes without an annotation, as they came.
    nodes: HashMap<NodeName, NodeFacts>,
}

impl Service {
    fn address(&self, node: &NodeName) -> Option<SocketAddr> {
        self.slices.values().find_map(|slice| slice.get(node)).copied()
    }

    fn with_address(&self, mut facts: NodeFacts) -> NodeFacts {
        if facts.exporter.is_none() {
            facts.internal_ip = None;
            facts.exporter = self.address(&facts.name).map(|address| Ok(address.to_string()));
        }
        facts
    }

    fn take_node(&mut self, event: Event<NodeFacts>) -> Event<NodeFacts> {
        match event {
            Event::Listing => Event::Listing,
            Event::Listed(all) => {
                self.nodes.clear();
                all.iter().for_each(|facts| self.remember(facts));
                Event::Listed(all.into_iter().map(|facts| self.with_address(facts)).collect())
            }
            Event::Applied(facts) => {
                self.remember(&facts);
                Event::Applied(self.with_address(facts))
            }
            Event::Gone(facts) => {
                self.nodes.remove(&facts.name);
                Event::Gone(facts)
            }
        }
    }

    fn remember(&mut self, facts: &NodeFacts) {
        match facts.exporter {
            None => drop(self.nodes.insert(facts.name.clone(), facts.clone())),
            Some(_) => drop(self.nodes.remove(&facts.name)),
        }
    }

    /// The nodes whose address has changed.
    fn take_slice(&mut self, event: Event<SliceFacts>) -> Vec<Event<NodeFacts>> {
        let before: HashMap<NodeName, Option<SocketAddr>> =
            self.nodes.keys().map(|node| (node.clone(), self.address(node))).collect();
        match event {
            Event::Listing => return Vec::new(),
            Event::Listed(all) => {
                self.is_listed = true;
                self.slices = all.into_iter().map(entry).collect();
            }
            Event::Applied(slice) => self.slices.extend([entry(slice)]),
            Event::Gone(slice) => drop(self.slices.remove(&slice.name)),
        }
        let changed = before.into_iter().filter(|(node, address)| self.address(node) != *address);
        let changed: HashSet<NodeName> = changed.map(|(node, _)| node).collect();
        let facts = changed.iter().filter_map(|node| self.nodes.get(node));
        facts.map(|facts| Event::Applied(self.with_address(facts.clone()))).collect()
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
            cards: None,
            ready: Some(true),
            readings: Vec::new(),
            hot_value: None,
            annotations: Default::default(),
            labels: Default::default(),
            capacity: Default::default(),
            taints: Default::default(),
        }
    }

    fn slice(name: &str, addresses: &[(&str, &str)]) -> SliceFacts {
        let address = |(node, address): &(&str, &str)| ((*node).into(), address.parse().unwrap());
        SliceFacts { name: name.to_owned(), addresses: addresses.iter().map(address).collect() }
    }

    /// Each node of the event with its address.
    fn told(event: Event<NodeFacts>) -> Vec<String> {
        let all = match event {
            Event::Listing => Vec::new(),
            Event::Listed(all) => all,
            Event::Applied(one) | Event::Gone(one) => vec![one],
        };
        let text = |facts: NodeFacts| {
            let address = facts.exporter.map_or("none".to_owned(), Result::unwrap);
            assert!(facts.internal_ip.is_none() || address == "1.2.3.4:5");
            format!("{}={address}", facts.name)
        };
        all.into_iter().map(text).collect()
    }

    #[test]
    fn a_template_gives_each_node_its_own_address_and_the_annotation_goes_before_it() {
        let template = AddressTemplate::parse("{node}.metrics.example:9443").unwrap();
        let address = |facts| told(Event::Applied(template.apply(facts)));
        assert_eq!(address(node("worker-1", None)), ["worker-1=worker-1.metrics.example:9443"]);
        assert_eq!(address(node("worker-1", Some("1.2.3.4:5"))), ["worker-1=1.2.3.4:5"]);
    }

    #[test]
    fn a_name_that_no_node_has_gives_no_address() {
        let template = AddressTemplate::parse("{node}.metrics.example:9443").unwrap();
        for name in ["evil.example:80/", "a b", "", "a@b", "A", "[::1]"] {
            let facts = template.apply(node(name, None));
            assert_eq!((facts.exporter, facts.internal_ip), (None, None), "{name}");
        }
    }

    #[test]
    fn a_template_that_is_no_host_and_port_is_refused() {
        for wrong in [
            "{node}",
            "metrics:9443",
            "https://{node}:9443",
            "{node}:0",
            "{node}/x:1",
            "{node}:port",
        ] {
            assert!(AddressTemplate::parse(wrong).is_err(), "{wrong}");
        }
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
        assert_eq!(told(first), ["a=10.0.0.1:7", "b=none", "c=1.2.3.4:5"]);
    }

    #[test]
    fn a_changed_slice_tells_of_the_nodes_whose_address_it_changes() {
        let mut service = Service::default();
        let slices = vec![slice("s", &[("a", "10.0.0.1:7")]), slice("t", &[("b", "10.0.0.2:7")])];
        assert!(service.take_slice(Event::Listed(slices)).is_empty());
        let nodes = vec![node("a", None), node("b", None), node("c", None)];
        service.take_node(Event::Listed(nodes));
        let mut take = |event| {
            let mut all: Vec<String> =
                service.take_slice(event).into_iter().flat_map(told).collect();
            all.sort();
            all
        };
        let moved = slice("s", &[("a", "10.0.0.9:7"), ("c", "10.0.0.3:7")]);
        assert_eq!(take(Event::Applied(moved)), ["a=10.0.0.9:7", "c=10.0.0.3:7"]);
        assert_eq!(take(Event::Gone(slice("t", &[]))), ["b=none"]);
        assert!(take(Event::Applied(slice("u", &[("x", "10.0.0.4:7")]))).is_empty());
    }
}
