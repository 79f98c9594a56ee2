//! What is in the demo's cluster, as plain data: the planned nodes, their true loads, the policies' limits, the pods
//! that the scenario makes, and how API objects are read.
//!
//! Invariant: nothing here is shared with Plimsoll, since the checker relies on it.

pub(crate) mod loads;
pub(crate) mod nodes;
pub(crate) mod objects;
pub(crate) mod pods;
pub(crate) mod policy;
