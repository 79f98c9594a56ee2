//! What a pod's spec says of the nodes that it may go to, and of the pods that it keeps out.
//!
//! Invariant: a rule that cannot be checked here keeps its pod where it is, or others out.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt};
use placement::selector::Labels;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Stays;
use crate::budget::Labelled;
use crate::meta::null_is_default;
use crate::node::Node;
use crate::pod::Pod;
use crate::taint::Toleration;

/// The most rules of a pod about labels that are checked. A pod with more stays.
const MAX_TERMS: usize = 64;

/// The most rules by which the pods of a node keep others out that are kept. A node with more takes none.
pub(super) const MAX_KEEPING_OUT: usize = 128;

/// The largest selector and list of namespaces of such a rule, in expressions and values. A larger one is taken for one
/// that selects every pod.
const MAX_SELECTED: usize = 16;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rest {
    #[serde(deserialize_with = "null_is_default")]
    spec: RestOfSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RestOfSpec {
    #[serde(deserialize_with = "null_is_default")]
    node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    affinity: Affinity,
    #[serde(deserialize_with = "null_is_default")]
    topology_spread_constraints: Vec<Spread>,
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<Ports>,
    #[serde(deserialize_with = "null_is_default")]
    init_containers: Vec<Ports>,
    #[serde(deserialize_with = "null_is_default")]
    host_network: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    #[serde(deserialize_with = "null_is_default")]
    node_affinity: Required<NodeSelector>,
    #[serde(deserialize_with = "null_is_default")]
    pod_affinity: Required<Vec<IgnoredAny>>,
    #[serde(deserialize_with = "null_is_default")]
    pod_anti_affinity: Required<Vec<PodTerm>>,
}

/// Pods that may not be where this one is. Its topology is not read: the node is in each.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodTerm {
    label_selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
    #[serde(deserialize_with = "null_is_default")]
    namespaces: Vec<String>,
}

/// A rule by which a pod of a node keeps others out.
#[derive(Debug, Clone)]
pub(super) struct KeepsOut {
    /// The namespaces of these; `None` for all, or where they are not known here.
    namespaces: Option<Vec<String>>,
    /// Their labels; `None` for any.
    labels: Option<Selector>,
}

impl KeepsOut {
    /// The rule of a pod of this namespace. What cannot be checked here selects.
    fn new(term: &PodTerm, namespace: &str) -> Option<Self> {
        // Without a selector, a term selects no pod.
        let selector = term.label_selector.as_ref()?;
        let is_small = elements(selector) + term.namespaces.len() <= MAX_SELECTED;
        let namespaces = match &term.namespace_selector {
            None if !is_small => None,
            None if term.namespaces.is_empty() => Some(vec![namespace.to_owned()]),
            None => Some(term.namespaces.clone()),
            Some(_) => None,
        };
        let labels = is_small.then(|| Selector::try_from(selector.clone()).ok()).flatten();
        Some(Self { namespaces, labels })
    }

    pub(super) fn selects(&self, pod: &Labelled) -> bool {
        let by_namespace =
            self.namespaces.as_ref().is_none_or(|all| all.iter().any(|it| it == pod.namespace()));
        let by_labels = match (&self.labels, pod.labels()) {
            (Some(selector), Some(labels)) => selector.matches(labels),
            (None, _) | (_, None) => true,
        };
        by_namespace && by_labels
    }
}

/// The size of a selector: its expressions and their values.
fn elements(selector: &LabelSelector) -> usize {
    let mut size = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    for expression in selector.match_expressions.iter().flatten() {
        size += 1 + expression.values.as_ref().map_or(0, Vec::len);
    }
    size
}

/// What is preferred only is not read: it forbids no node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, bound = "T: Default + Deserialize<'de>")]
struct Required<T> {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_is_default"
    )]
    required: Option<T>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelector {
    #[serde(deserialize_with = "null_is_default")]
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    #[serde(deserialize_with = "null_is_default")]
    match_expressions: Vec<LabelSelectorRequirement>,
    #[serde(deserialize_with = "null_is_default")]
    match_fields: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spread {
    #[serde(deserialize_with = "null_is_default")]
    when_unsatisfiable: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Ports {
    #[serde(deserialize_with = "null_is_default")]
    ports: Vec<Port>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    #[serde(deserialize_with = "null_is_default")]
    host_port: i64,
}

impl Rest {
    /// Why a pod with this spec cannot be moved.
    pub(super) fn stays(&self) -> Option<Stays> {
        let spec = &self.spec;
        let takes_port = |container: &Ports| container.ports.iter().any(|port| port.host_port != 0);
        let Affinity { pod_affinity, pod_anti_affinity, .. } = &spec.affinity;
        let near_pods = pod_affinity.required.as_ref().is_some_and(|terms| !terms.is_empty())
            || pod_anti_affinity.required.as_ref().is_some_and(|terms| !terms.is_empty());
        let spread = spec
            .topology_spread_constraints
            .iter()
            .any(|spread| spread.when_unsatisfiable != "ScheduleAnyway");
        if spec.host_network || spec.containers.iter().chain(&spec.init_containers).any(takes_port)
        {
            Some(Stays::HostPort)
        } else if near_pods || spread {
            Some(Stays::OtherPods)
        } else {
            None
        }
    }

    /// The rules by which the pod, of this namespace, keeps others out.
    pub(super) fn keeps_out<'r>(
        &'r self,
        namespace: &'r str,
    ) -> impl Iterator<Item = KeepsOut> + 'r {
        let terms = self.spec.affinity.pod_anti_affinity.required.iter().flatten();
        terms.filter_map(move |term| KeepsOut::new(term, namespace))
    }
}

/// What a pod asks of its node's labels and taints.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeRules {
    node_selector: BTreeMap<String, String>,
    /// One of these has to match; none for a pod without such a rule.
    terms: Option<Vec<Selector>>,
    tolerations: Vec<Toleration>,
}

impl NodeRules {
    /// `None` where they cannot be checked here.
    pub(super) fn of(pod: &Pod, rest: Rest) -> Option<Self> {
        let RestOfSpec { node_selector, affinity, .. } = rest.spec;
        let terms = match affinity.node_affinity.required {
            None => None,
            Some(selector) if selector.node_selector_terms.len() > MAX_TERMS => return None,
            Some(selector) => {
                let terms = selector.node_selector_terms;
                Some(terms.into_iter().map(Term::selector).collect::<Option<Vec<_>>>()?)
            }
        };
        Some(Self { node_selector, terms, tolerations: pod.tolerations().to_vec() })
    }

    /// Whether these rules, and the node's readiness and taints, let the pod be placed there.
    pub(super) fn allow(&self, node: &Node) -> bool {
        node.is_ready() && !node.keeps_out(&self.tolerations) && self.allow_labels(node.labels())
    }

    pub(super) fn allow_labels(&self, labels: &Labels) -> bool {
        let by_terms = self.terms.as_ref().is_none_or(|terms| {
            terms.iter().any(|term| !term.selects_all() && term.matches(labels))
        });
        by_terms && self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl Term {
    /// `None` where it has a rule that is not about labels, or an operator that label selectors lack (`Gt`, `Lt`).
    /// A term without rules matches no node, as in kube-scheduler.
    fn selector(self) -> Option<Selector> {
        let Self { match_expressions, match_fields } = self;
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        let are_known = match_expressions.iter().all(|it| known.contains(&it.operator.as_str()));
        if !match_fields.is_empty() || !are_known || match_expressions.len() > MAX_TERMS {
            return None;
        }
        let selector =
            LabelSelector { match_expressions: Some(match_expressions), match_labels: None };
        Selector::try_from(selector).ok()
    }
}
