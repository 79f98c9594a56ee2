//! A Node object as facts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::gpus::GpusError;
use jiff::Timestamp;
use placement::demand::{PerDemand, RateError};
use placement::gpu::{Gpu, Isolation, MeasuredMemory};
use placement::names::{self, Names};
use placement::node_rules::{NodeTaint, NodeTraits};
use placement::quantity::QuantityError;
use placement::reading::{HotValueNote, Reading, ReadingCodec, ReadingError};
use placement::resources::PerResource;
use placement::units::{MetricName, NodeName};
use serde::Deserialize;

use crate::gpu;
use crate::meta::{Meta, core_resource, null_is_default};
use crate::pod::thousandths;
use crate::quantity::{Quantities, Quantity, amounts};
use crate::taint::NodeTaints;

/// The parts of a v1 Node that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Node {
    #[serde(default)]
    pub(crate) metadata: Meta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

impl Node {
    /// The value of an annotation; `None` if it has none of this key.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.object.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The value of a label; `None` if it has none of this key.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.label(key)
    }

    /// Its UID; `None` where the object has none.
    pub fn uid(&self) -> Option<&str> {
        self.metadata.object.uid.as_deref().filter(|uid| !uid.is_empty())
    }
}

core_resource!(Node, ClusterResourceScope, "Node", "nodes");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(deserialize_with = "null_is_default")]
    taints: Vec<serde_json::Value>,
    #[serde(deserialize_with = "null_is_default")]
    unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "null_is_default")]
    capacity: Quantities,
    #[serde(deserialize_with = "null_is_default")]
    allocatable: Quantities,
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<Address>,
    #[serde(deserialize_with = "null_is_default")]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    kind: String,
    #[serde(deserialize_with = "null_is_default")]
    address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    kind: String,
    #[serde(deserialize_with = "null_is_default")]
    status: String,
}

/// Why the address of an exporter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected `host:port`, e.g. `10.0.0.7:19101` or `[fd00::7]:19101`, found `{0}`")]
pub struct ExporterError(pub String);

/// What Plimsoll reads of a Node, by [`Node::facts`].
///
/// # Examples
///
/// ```
/// use cluster::Node;
/// use placement::names::Names;
/// use placement::reading::ReadingCodec;
///
/// let node: Node = serde_json::from_str(
///     r#"{
///         "metadata": {
///             "name": "worker-1",
///             "annotations": {"cpu_usage_avg_5m": "0.63012,2026-11-20T09:00:00Z", "team": "a"}
///         },
///         "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}
///     }"#,
/// )?;
/// let facts = node.facts(&Names::default(), &ReadingCodec::default());
/// assert_eq!(facts.internal_ip, "10.0.0.7".parse().ok());
/// assert_eq!(facts.ready, None);
/// let (metric, reading) = &facts.readings[0];
/// assert_eq!(metric.as_str(), "cpu_usage_avg_5m");
/// assert_eq!(reading.clone()?.value.get(), 0.63012);
/// // Another program's annotation is no reading.
/// assert!(facts.readings[1].1.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// The Node's name.
    pub name: NodeName,
    /// Its UID; empty where the object has none.
    pub uid: String,
    /// When the Node object was created, by the API server's clock; `None` where it does not say.
    pub created_at: Option<Timestamp>,
    /// Its first InternalIP.
    pub internal_ip: Option<IpAddr>,
    /// Where its exporter answers, `host:port`, where the operator set the annotation.
    pub exporter: Option<Result<String, ExporterError>>,
    /// Its GPUs as its device plugin reports them; `None` where none does.
    pub gpus: Option<Result<Vec<Gpu>, GpusError>>,
    /// The condition `Ready`; `None` where the Node has no such condition.
    pub ready: Option<bool>,
    /// Its readings, by metric: every annotation whose key has no domain and is a valid metric name. An
    /// error where the text is no reading; the key may then belong to another program.
    pub readings: Vec<(MetricName, Result<Reading, ReadingError>)>,
    /// crane's own count of recent bindings, where it is there and can be read.
    pub hot_value: Option<HotValueNote>,
    /// The text of its annotation `gpu-share`.
    pub share: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// `status.capacity`: cores and bytes, those of memory without the pools of huge pages, since readings of memory
    /// are shares of that; `None` where the Node does not say, or says 0.
    pub capacity: PerResource<Option<f64>>,
    /// How much of each demand it can do, in bytes a second, where the operator set the annotation.
    pub speeds: PerDemand<Option<Result<u64, RateError>>>,
    /// The CPU that pods may request of it, in thousandths of a core; `None` where the Node does not say.
    pub allocatable_cpu: Option<u64>,
    /// Memory in use on its GPUs, as its annotation `gpu-share` has it; `None` where there is none that can be read.
    pub measured: Option<MeasuredMemory>,
    /// Its taints, of which a new list can be made.
    pub taints: NodeTaints,
}

impl Node {
    /// How much of a resource pods may request of it, as a whole number; `None` where the Node does not say.
    ///
    /// # Errors
    ///
    /// Where that is no whole number.
    pub fn allocatable_count(&self, resource: &str) -> Result<Option<u32>, QuantityError> {
        self.status.allocatable.get(resource).map(Quantity::count).transpose()
    }

    /// What pods may request of it.
    pub(crate) fn allocatable(&self) -> &Quantities {
        &self.status.allocatable
    }

    /// Whether its kubelet reports that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready() == Some(true)
    }

    /// Whether all of it could be read.
    pub(crate) fn is_whole(&self) -> bool {
        self.metadata.lost.is_empty()
    }

    /// The node, as pods' rules see it. A taint that cannot be read keeps pods out.
    pub(crate) fn traits(&self) -> NodeTraits {
        let mut taints = Vec::new();
        for taint in &self.spec.taints {
            taints.push(NodeTaint::deserialize(taint).unwrap_or_else(|_| NodeTaint::cordon()));
        }
        taints.extend(self.spec.unschedulable.then(NodeTaint::cordon));
        let labels = self.metadata.object.labels.clone().unwrap_or_default();
        NodeTraits { name: self.name().to_string(), labels, taints }
    }

    /// The Node's name; empty where the object has none.
    pub fn name(&self) -> NodeName {
        NodeName::from(self.metadata.object.name.as_deref().unwrap_or_default())
    }

    /// The Node as facts; times of readings are in the codec's zone.
    pub fn facts(&self, names: &Names, codec: &ReadingCodec) -> NodeFacts {
        let metadata = &self.metadata;
        let hot_value = metadata.annotation(names::HOT_VALUE);
        // `refused` is no mode: nothing is known to be enforced there.
        let isolation = metadata.annotation(&names.isolation()).and_then(|mode| mode.parse().ok());
        let share = metadata.annotation(&names.share());
        NodeFacts {
            name: self.name(),
            uid: self.metadata.object.uid.clone().unwrap_or_default(),
            created_at: self.metadata.object.creation_timestamp.as_ref().map(|time| time.0),
            internal_ip: self.internal_ip(),
            exporter: metadata.annotation(&names.exporter()).map(exporter_address),
            gpus: self.gpus(names, isolation),
            ready: self.ready(),
            readings: self.readings(codec),
            hot_value: hot_value.and_then(|text| codec.decode_hot_value(text).ok()),
            share: share.map(str::to_owned),
            labels: self.metadata.object.labels.clone().unwrap_or_default(),
            capacity: self.capacity(),
            speeds: PerDemand::of(|demand| {
                metadata.annotation(&demand.node_annotation(names)).map(|text| demand.rate(text))
            }),
            allocatable_cpu: self.allocatable_cpu(),
            measured: share.and_then(gpu::measured),
            taints: self.taints(),
        }
    }

    fn gpus(
        &self,
        names: &Names,
        isolation: Option<Isolation>,
    ) -> Option<Result<Vec<Gpu>, GpusError>> {
        if !self.metadata.lost.is_empty() {
            return Some(Err(GpusError::UnreadNode));
        }
        let text = self.metadata.annotation(&names.gpus())?;
        Some(gpu::gpus(text, isolation))
    }

    fn taints(&self) -> NodeTaints {
        NodeTaints {
            version: self.metadata.object.resource_version.clone().unwrap_or_default(),
            all: self.spec.taints.clone(),
        }
    }

    fn readings(&self, codec: &ReadingCodec) -> Vec<(MetricName, Result<Reading, ReadingError>)> {
        let mut readings = Vec::new();
        for (key, text) in self.metadata.object.annotations.iter().flatten() {
            let may_be_metric = !key.contains('/') && key != names::HOT_VALUE;
            if may_be_metric && let Some(metric) = MetricName::parse(key) {
                readings.push((metric, codec.decode(text)));
            }
        }
        readings
    }

    fn capacity(&self) -> PerResource<Option<f64>> {
        let mut stated = amounts(&self.status.capacity);
        let mut huge = 0.0;
        for (name, pages) in &self.status.capacity {
            if name.starts_with("hugepages-") {
                huge += pages.amount().unwrap_or(0.0);
            }
        }
        stated.memory = stated.memory.map(|all| all - huge);
        PerResource::of(|resource| stated.get(resource).filter(|amount| *amount > 0.0))
    }

    fn allocatable_cpu(&self) -> Option<u64> {
        amounts(&self.status.allocatable).cpu.map(thousandths)
    }

    fn internal_ip(&self) -> Option<IpAddr> {
        self.status.addresses.iter().find_map(|Address { kind, address }| {
            if kind == "InternalIP" { address.parse().ok() } else { None }
        })
    }

    fn ready(&self) -> Option<bool> {
        let ready = self.status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        Some(ready.status == "True")
    }
}

/// The address of an exporter, `host:port`. It ends up in a URL, so nothing but a host and a port may be in it.
///
/// # Errors
///
/// Where it is another text.
pub fn exporter_address(text: &str) -> Result<String, ExporterError> {
    if is_address(text) {
        Ok(text.to_owned())
    } else {
        Err(ExporterError(text.chars().take(64).collect()))
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_fits = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host(host),
    };
    host_fits && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_host(host: &str) -> bool {
    let begins = host.starts_with(|c: char| c.is_ascii_alphanumeric());
    begins
        && host.len() <= 253
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
}
