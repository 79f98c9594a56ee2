//! What a pod's spec says of the nodes that it may go to, and of the pods that it keeps out.
//!
//! Invariant: a rule that cannot be checked here keeps its pod where it is, or others out.

use kube::core::ObjectMeta;
use placement::moves::{KeepsOut, StayReason};
use placement::node_rules::{AffinityTerm, NodeRules};
use placement::selector::{Labels, Requirements};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::object::Object;
use crate::pod::Pod;

/// The largest selector and list of namespaces of a rule that keeps others out, in expressions and values. A larger one
/// is taken for one that selects every pod.
const MAX_SELECTED: usize = 16;

/// A pod with what moves need besides. It is parsed twice, from one text: the watch, which reads the same [`Pod`], has
/// no use for the rest.
pub(super) struct WholePod {
    pub(super) pod: Pod,
    /// Its rules about nodes.
    pub(super) rules: NodeRules,
    /// The rules by which it keeps others out.
    pub(super) keeps_out: Vec<KeepsOut>,
    /// Why the pod is not moved, whatever its owner and its budgets allow.
    pub(super) stays: Option<StayReason>,
}

#[derive(Deserialize)]
struct Rest {
    spec: Option<RestOfSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestOfSpec {
    node_selector: Option<Labels>,
    affinity: Option<Affinity>,
    topology_spread_constraints: Option<Vec<Spread>>,
    containers: Option<Vec<Ports>>,
    init_containers: Option<Vec<Ports>>,
    host_network: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    node_affinity: Option<Required<NodeSelector>>,
    pod_affinity: Option<Required<Vec<IgnoredAny>>>,
    pod_anti_affinity: Option<Required<Vec<PodTerm>>>,
}

/// What is preferred only is not read: it forbids no node.
#[derive(Deserialize)]
struct Required<T> {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelector {
    node_selector_terms: Option<Vec<AffinityTerm>>,
}

/// Pods that may not be where this one is. Its topology is not read: the node is in each.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodTerm {
    label_selector: Option<Requirements>,
    namespace_selector: Option<IgnoredAny>,
    namespaces: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spread {
    when_unsatisfiable: Option<String>,
}

#[derive(Deserialize)]
struct Ports {
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    host_port: Option<i64>,
}

impl WholePod {
    fn new(pod: Pod, spec: RestOfSpec) -> Self {
        let affinity = spec.affinity.unwrap_or_default();
        let near = affinity.pod_affinity.and_then(|it| it.required).unwrap_or_default();
        let apart = affinity.pod_anti_affinity.and_then(|it| it.required).unwrap_or_default();
        let mut spread = spec.topology_spread_constraints.iter().flatten();
        let is_spread = spread.any(|it| it.when_unsatisfiable.as_deref() != Some("ScheduleAnyway"));
        let containers = spec.containers.iter().chain(&spec.init_containers).flatten();
        let mut ports = containers.flat_map(|it| &it.ports).flatten();
        let takes_port = ports.any(|port| port.host_port.is_some_and(|port| port != 0));
        let stays = if takes_port || spec.host_network == Some(true) {
            Some(StayReason::HostPort)
        } else if is_spread || !near.is_empty() || !apart.is_empty() {
            Some(StayReason::OtherPods)
        } else if pod.has_resource_claims() {
            Some(StayReason::ResourceClaims)
        } else {
            None
        };
        let required = affinity.node_affinity.and_then(|it| it.required);
        let rules = NodeRules {
            node_selector: spec.node_selector.unwrap_or_default(),
            terms: required.map(|it| it.node_selector_terms.unwrap_or_default()),
            tolerations: pod.tolerations().to_vec(),
        };
        let namespace = pod.namespace();
        let keeps_out = apart.into_iter().filter_map(|it| it.keeps_out(namespace)).collect();
        Self { rules, keeps_out, stays, pod }
    }
}

impl PodTerm {
    /// The rule of a pod of this namespace. What cannot be checked here selects.
    fn keeps_out(self, namespace: &str) -> Option<KeepsOut> {
        // Without a selector, a term selects no pod.
        let selector = self.label_selector?;
        let mut namespaces = self.namespaces.unwrap_or_default();
        let is_small = selector.size() + namespaces.len() <= MAX_SELECTED;
        if namespaces.is_empty() {
            namespaces.push(namespace.to_owned());
        }
        let are_known = is_small && self.namespace_selector.is_none();
        let labels = (is_small && selector.are_known()).then_some(selector);
        Some(KeepsOut { namespaces: are_known.then_some(namespaces), labels })
    }
}

impl Object for WholePod {
    const KIND: &'static str = Pod::KIND;

    fn about(&self) -> &ObjectMeta {
        self.pod.about()
    }

    fn set_lost(&mut self, lost: Vec<String>) {
        self.pod.set_lost(lost);
    }
}

impl<'de> Deserialize<'de> for WholePod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn part<T: DeserializeOwned, E: serde::de::Error>(text: &RawValue) -> Result<T, E> {
            serde_json::from_str(text.get()).map_err(E::custom)
        }
        let text = Box::<RawValue>::deserialize(deserializer).map_err(D::Error::custom)?;
        let Rest { spec } = part(&text)?;
        Ok(Self::new(part(&text)?, spec.unwrap_or_default()))
    }
}
