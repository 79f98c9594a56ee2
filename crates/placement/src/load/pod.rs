//! The pod that is to be placed, as load decisions see it.

use jiff::SignedDuration;

use super::Pairing;
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
    /// How long it has waited for a node; zero where it has not.
    pub waited: SignedDuration,
    /// How what nodes use beyond their requests counts for it.
    pub pairing: Pairing,
}

impl PodToPlace<'_> {
    /// A pod of no namespace that uses nothing.
    pub const ORDINARY: PodToPlace<'static> = PodToPlace {
        namespace: "",
        priority_class: "",
        kind: PodKind::Ordinary,
        uses: Amounts { cpu: 0.0, memory: 0.0 },
        waited: SignedDuration::ZERO,
        pairing: Pairing::NONE,
    };
}
