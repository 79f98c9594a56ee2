//! Placement policies.

pub mod best_fit;
pub mod by_state;
pub mod fgd;
pub mod plimsoll;

use super::cluster::{Gpus, Node};
use super::trace::PodKind;

/// Chooses a node, and GPUs there.
pub trait Policy {
    /// The place of a pod of `kind`, which is number `at` of the trace's kinds: a position in `nodes`, and the GPUs.
    /// `None` where it fits nowhere.
    fn place(&mut self, nodes: &[Node], at: usize, kind: &PodKind) -> Option<(usize, Gpus)>;

    /// A pod of the kind that is number `at` has ended. Published policies do not look at what runs.
    fn ended(&mut self, _at: usize) {}
}
