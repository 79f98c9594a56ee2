//! EndpointSlices as facts: at which address a Service has a pod on which node.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::api::{ListParams, Request};
use kube::{Client, Resource as _};
use placement::names::{is_of_label, limits};
use placement::units::NodeName;
use serde::Deserialize;

use crate::answer::{OF_A_NAMESPACE, PAGE, each};
use crate::call::{CallError, within};
use crate::meta::{Meta, null_is_default, resource};

/// A Service, and which of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
    /// The port's name; `None`: the Service has one port.
    pub port: Option<String>,
}

impl ServicePort {
    /// Parses `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT-NAME`; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let fits = [Some(namespace), Some(name), port]
            .iter()
            .flatten()
            .all(|text| (1..=limits::LABEL).contains(&text.len()) && text.bytes().all(is_of_label));
        fits.then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: port.map(str::to_owned),
        })
    }
}

/// The parts of a discovery.k8s.io/v1 EndpointSlice that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointSlice {
    pub(crate) metadata: Meta,
    #[serde(deserialize_with = "null_is_default")]
    endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_is_default")]
    ports: Vec<SlicePort>,
}

resource!(
    EndpointSlice,
    NamespaceResourceScope,
    "discovery.k8s.io",
    "EndpointSlice",
    "endpointslices"
);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<String>,
    node_name: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    conditions: Conditions,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    /// Absent means ready.
    ready: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    port: Option<i64>,
}

/// One EndpointSlice of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceFacts {
    /// The slice's name.
    pub name: String,
    /// The ready endpoints that name their node. Empty where the slice has no such port.
    pub addresses: Vec<(NodeName, SocketAddr)>,
}

/// The label selector of a Service's slices.
pub(crate) fn of_service(service: &ServicePort) -> String {
    format!("kubernetes.io/service-name={}", service.name)
}

/// Where a Service's ready pods answer now.
///
/// # Errors
///
/// [`CallError`].
pub async fn list_endpoints(
    client: &Client,
    service: &ServicePort,
    limit: Duration,
) -> Result<Vec<SocketAddr>, CallError> {
    let slices = Request::new(EndpointSlice::url_path(&(), Some(&service.namespace)));
    let of_service = ListParams::default().labels(&of_service(service)).limit(PAGE);
    let mut found = Vec::new();
    let listing = each(client, &slices, &of_service, OF_A_NAMESPACE, |slice: EndpointSlice| {
        let SliceFacts { addresses, .. } = slice.facts(service.port.as_deref());
        found.extend(addresses.into_iter().map(|(_, address)| address));
    });
    within(limit, listing).await?;
    Ok(found)
}

impl EndpointSlice {
    /// The slice as facts. `port` is the port's name; `None`: the slice's only port.
    pub(crate) fn facts(&self, port: Option<&str>) -> SliceFacts {
        let name = self.metadata.object.name.clone().unwrap_or_default();
        let Some(port) = self.port(port) else {
            return SliceFacts { name, addresses: Vec::new() };
        };
        let found = self.endpoints.iter().filter_map(|endpoint| endpoint.address(port)).collect();
        SliceFacts { name, addresses: found }
    }

    fn port(&self, name: Option<&str>) -> Option<u16> {
        let found = match (name, self.ports.as_slice()) {
            (None, [only]) => only,
            (None, _) => return None,
            (Some(_), ports) => ports.iter().find(|port| port.name.as_deref() == name)?,
        };
        u16::try_from(found.port?).ok().filter(|port| *port > 0)
    }
}

impl Endpoint {
    /// The endpoint's node and its address with this port; `None` where it is not ready or has no node.
    fn address(&self, port: u16) -> Option<(NodeName, SocketAddr)> {
        if self.conditions.ready == Some(false) {
            return None;
        }
        let ip: IpAddr = self.addresses.first()?.parse().ok()?;
        let node = self.node_name.as_deref().filter(|node| !node.is_empty())?;
        Some((NodeName::from(node), SocketAddr::new(ip, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(change: impl FnOnce(&mut serde_json::Value)) -> EndpointSlice {
        let mut slice = json!({
            "metadata": {"name": "exporters-abc"},
            "addressType": "IPv4",
            "ports": [{"name": "statistics", "port": 19101}, {"name": "admin", "port": 19105}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "nodeName": "a", "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "nodeName": "b", "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "nodeName": "c", "conditions": {}},
                {"addresses": ["10.0.0.4"]},
                {"addresses": ["e.example"], "nodeName": "e"},
                {"addresses": null, "nodeName": "f", "conditions": null},
            ],
        });
        change(&mut slice);
        serde_json::from_value(slice).unwrap()
    }

    fn nodes(slice: &EndpointSlice, port: Option<&str>) -> Vec<String> {
        let addresses = slice.facts(port).addresses.into_iter();
        addresses.map(|(node, address)| format!("{node}={address}")).collect()
    }

    #[test]
    fn ready_endpoints_that_name_their_node_are_addresses() {
        let slice = slice(|_| ());
        assert_eq!(nodes(&slice, Some("statistics")), ["a=10.0.0.1:19101", "c=10.0.0.3:19101"]);
        assert_eq!(slice.facts(None).name, "exporters-abc");
    }

    #[test]
    fn a_port_that_is_not_there_or_not_clear_gives_no_address() {
        let two = slice(|_| ());
        assert!(nodes(&two, None).is_empty() && nodes(&two, Some("other")).is_empty());
        let one = slice(|slice| slice["ports"] = json!([{"name": null, "port": 7}]));
        assert_eq!(nodes(&one, None), ["a=10.0.0.1:7", "c=10.0.0.3:7"]);
        let none = slice(|slice| slice["ports"] = json!(null));
        assert!(nodes(&none, None).is_empty());
    }

    #[test]
    fn a_service_is_named_by_namespace_and_name_and_maybe_a_port() {
        let service = ServicePort::parse("plimsoll/exporters:statistics").unwrap();
        assert_eq!(
            (service.name.as_str(), service.port.as_deref()),
            ("exporters", Some("statistics"))
        );
        assert_eq!(ServicePort::parse("plimsoll/exporters").unwrap().port, None);
        for wrong in ["exporters", "/exporters", "a/", "a/b:", "a/b/c", "a/b c", "a/B", "a/b,c=d"] {
            assert_eq!(ServicePort::parse(wrong), None, "{wrong}");
        }
    }
}
