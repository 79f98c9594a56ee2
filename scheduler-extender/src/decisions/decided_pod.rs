//! A pod that was decided about, and the node that it went to.

use std::sync::OnceLock;

use cluster::{AboutPod, Pod};
use jiff::SignedDuration;
use placement::load::{CpuUse, Pairing, PodKind, PodToPlace};
use placement::policy::Scoring;
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};

use crate::field;
use crate::view::PodEstimates;

/// A pod that was decided about.
#[derive(Debug)]
pub struct DecidedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: PodUid,
    /// Whether a DaemonSet owns it.
    pub kind: PodKind,
    /// Its priority class; empty where it has none.
    pub priority_class: String,
    /// What it will probably use.
    pub estimates: PodEstimates,
    /// How long kube-scheduler had found no node for it.
    pub waited: SignedDuration,
    /// The CPU that it asks for, in thousandths of a core.
    pub cpu: u64,
    node: OnceLock<NodeName>,
}

impl DecidedPod {
    /// Its names, for calls about it: they become parts of a path, and a request's author chooses them. `None` where they are none of
    /// Kubernetes.
    pub(crate) fn about(&self) -> Option<AboutPod> {
        field::label("namespace", &self.namespace)
            .and_then(|()| field::subdomain("name", &self.name))
            .and_then(|()| field::uid("uid", self.uid.as_str()))
            .ok()?;
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Some(AboutPod { namespace, name, uid: self.uid.to_string() })
    }

    /// The pod of that object, which has waited for a node for so long.
    #[must_use]
    pub fn new(pod: &Pod, estimates: PodEstimates, waited: SignedDuration) -> Self {
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid(),
            kind: pod.kind(),
            priority_class: pod.priority_class().to_owned(),
            estimates,
            waited,
            cpu: pod.cpu_request(),
            node: pod.node().map(NodeName::from).map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    /// The pod as load decisions by the policy in force see it.
    #[must_use]
    pub fn to_place(&self) -> PodToPlace<'_> {
        PodToPlace {
            namespace: &self.namespace,
            priority_class: &self.priority_class,
            kind: self.kind,
            uses: self.uses(),
            waited: self.waited,
            pairing: Pairing::NONE,
        }
    }

    /// The pod as load decisions by the shadow policy see it.
    pub(super) fn to_place_by_shadow(&self) -> PodToPlace<'_> {
        let uses = self.estimates.shadow.map(|estimate| estimate.amounts).unwrap_or_default();
        PodToPlace { uses, ..self.to_place() }
    }

    /// What it will probably use; nothing where the policy in force does not estimate pods.
    #[must_use]
    pub fn uses(&self) -> Amounts {
        self.estimates.in_force.map(|estimate| estimate.amounts).unwrap_or_default()
    }

    /// How what nodes use beside their requests counts for it by the policy in force, or by the shadow, where all nodes use and
    /// request so much.
    pub(super) fn pairing(&self, scoring: &Scoring, nodes: CpuUse, is_in_force: bool) -> Pairing {
        let estimates = &self.estimates;
        let estimate = if is_in_force { estimates.in_force } else { estimates.shadow };
        let pairing = |uses: Amounts| Pairing::new(scoring, nodes, self.requested_cpu(), uses.cpu);
        estimate.map_or(Pairing::NONE, |estimate| pairing(estimate.amounts))
    }

    /// What it requests, in cores.
    #[must_use]
    pub fn requested_cpu(&self) -> f64 {
        self.cpu as f64 / 1_000.0
    }

    /// What it counts as on its way to a node, for both policies.
    #[must_use]
    pub fn uses_in_flight(&self) -> Amounts {
        self.estimates.of_either().map(|estimate| estimate.amounts).unwrap_or_default()
    }

    /// The node that it was bound to, as far as that is known.
    #[must_use]
    pub fn node(&self) -> Option<&NodeName> {
        self.node.get()
    }

    /// Notes the node that it was bound to. A pod is bound once: what is known stays.
    pub fn set_node(&self, node: &str) {
        self.node.get_or_init(|| NodeName::from(node));
    }
}
