//! The pod of a decision, and the node that it was bound to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use api::decisions::Controller;
use cluster::{Declared, Pod, PodReference};
use jiff::SignedDuration;
use placement::load::{PodAdds, PodKind, PodToPlace};
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};

use crate::field;
use crate::view::PodEstimates;

/// The pod of a decision.
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
    /// What it declares of network and disk.
    pub declared: Declared,
    /// How long it had been waiting for a node.
    pub waited: SignedDuration,
    /// Whether kube-scheduler may have to bind volumes before it.
    pub has_volume_claims: bool,
    /// The CPU that it requests, in thousandths of a core.
    pub cpu: u64,
    /// Its controller; `None` where it has none.
    pub controller: Option<Controller>,
    node: OnceLock<NodeName>,
    gone: AtomicBool,
}

impl DecidedPod {
    /// Its namespace, name and UID, for API calls, where they become parts of a URL path. `None` where they are no
    /// valid Kubernetes names: they come from the request.
    pub(crate) fn reference(&self) -> Option<PodReference> {
        field::label("namespace", &self.namespace)
            .and_then(|()| field::subdomain("name", &self.name))
            .and_then(|()| field::uid("uid", self.uid.as_str()))
            .ok()?;
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Some(PodReference { namespace, name, uid: self.uid.to_string() })
    }

    /// The pod of an object, which has been waiting for a node for this time.
    #[must_use]
    pub fn new(pod: &Pod, estimates: PodEstimates, waited: SignedDuration) -> Self {
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid(),
            kind: pod.kind(),
            priority_class: pod.priority_class().to_owned(),
            estimates,
            declared: Declared::default(),
            waited,
            has_volume_claims: pod.has_volume_claims(),
            cpu: pod.cpu_request(),
            controller: pod
                .controller()
                .map(|(kind, name)| Controller { kind: kind.to_owned(), name: name.to_owned() }),
            node: pod.node().map(NodeName::from).map_or_else(OnceLock::new, OnceLock::from),
            gone: AtomicBool::new(false),
        }
    }

    /// The same pod with what it declares of network and disk.
    #[must_use]
    pub fn with_declared(self, declared: Declared) -> Self {
        Self { declared, ..self }
    }

    /// The input of load decisions under the policy in force.
    #[must_use]
    pub fn to_place(&self) -> PodToPlace<'_> {
        PodToPlace {
            namespace: &self.namespace,
            priority_class: &self.priority_class,
            kind: self.kind,
            uses: self.uses(),
            declares: self.declared.rates,
            waited: self.waited,
            typical: &[],
        }
    }

    /// The input of load decisions under the shadow policy.
    pub(super) fn to_place_by_shadow(&self) -> PodToPlace<'_> {
        let uses = self.estimates.shadow.map(|estimate| estimate.amounts).unwrap_or_default();
        PodToPlace { uses, ..self.to_place() }
    }

    /// What it will probably use; nothing where the policy in force does not estimate pods.
    #[must_use]
    pub fn uses(&self) -> Amounts {
        self.estimates.in_force.map(|estimate| estimate.amounts).unwrap_or_default()
    }

    /// What it adds to a node's load, by the policy in force.
    #[must_use]
    pub fn adds(&self) -> PodAdds {
        self.to_place().adds()
    }

    /// Its use while in flight, for both policies.
    #[must_use]
    pub fn uses_in_flight(&self) -> Amounts {
        self.estimates.of_either().map(|estimate| estimate.amounts).unwrap_or_default()
    }

    /// The node that it was bound to; `None` where that is not known.
    #[must_use]
    pub fn node(&self) -> Option<&NodeName> {
        self.node.get()
    }

    /// Sets the node that it was bound to. A pod is bound once, so a known node stays.
    pub fn set_node(&self, node: &str) {
        self.node.get_or_init(|| NodeName::from(node));
    }

    /// Whether it waits for a node: it has none, and its deletion was not seen.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.node.get().is_none() && !self.gone.load(Ordering::Relaxed)
    }

    /// Notes that it was deleted.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}
