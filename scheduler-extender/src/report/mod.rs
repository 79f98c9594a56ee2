//! What the extender knows of the cluster, for people: the state of all nodes and GPUs by columns, and one node in
//! full. Read by the page, and by `plimsoll`.
//!
//! Invariant: everything is computed from one snapshot, on request. No watch, and no request of kube-scheduler, does
//! anything for it.

mod capacity;
mod changes;
mod gpus;
mod nearest;
mod node;
mod row;
mod simulation;

pub use self::capacity::capacity;
pub use self::changes::StateReport;
pub use self::gpus::all_gpus;
pub use self::nearest::in_words;
pub use self::node::node_detail;
pub use self::simulation::simulation;
