//! The pod that is to be placed, as load decisions see it.

use jiff::SignedDuration;

use crate::demand::{Demand, Rates};
use crate::resources::Amounts;

/// Whether limits apply to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodKind {
    /// Owned by a DaemonSet: it belongs on its node, however loaded that is. No limit applies.
    Daemon,
    /// Any other pod.
    Ordinary,
}

/// The pod that is to be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodToPlace<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its priority class; empty where it has none.
    pub priority_class: &'a str,
    /// Whether a DaemonSet owns it.
    pub kind: PodKind,
    /// What it will probably use.
    pub uses: Amounts,
    /// What it declares of network and disk.
    pub declares: Rates,
    /// How long it has waited for a node; zero where it has not.
    pub waited: SignedDuration,
    /// The typical load of the nodes that it could go to, by group of weights ([`super::typical_load`]). Where there is
    /// none, each node is judged for itself.
    pub typical: &'a [f64],
}

impl PodToPlace<'_> {
    /// A pod of no namespace that uses nothing.
    pub const ORDINARY: PodToPlace<'static> = PodToPlace {
        namespace: "",
        priority_class: "",
        kind: PodKind::Ordinary,
        uses: Amounts { cpu: 0.0, memory: 0.0 },
        declares: Rates::NONE,
        waited: SignedDuration::ZERO,
        typical: &[],
    };

    /// What it adds to a node's load.
    #[must_use]
    pub fn adds(&self) -> PodAdds {
        PodAdds { uses: self.uses, declares: self.declares }
    }
}

/// What a pod adds to the load of a node that it goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodAdds {
    /// What it will probably use.
    pub uses: Amounts,
    /// What it declares of network and disk.
    pub declares: Rates,
}

impl PodAdds {
    /// Whether a limit or a weight concerns the pod: that of a demand only if the pod declares the demand. So what pods
    /// declare keeps no pod off a node that declares nothing.
    pub(super) fn is_judged_by(&self, demand: Option<Demand>) -> bool {
        demand.is_none_or(|demand| *self.declares.get(demand) > 0)
    }
}
