//! Tests of load-aware scheduling.

pub(crate) mod boot;
pub(crate) mod limits;
pub(crate) mod many_nodes;
pub(crate) mod preemption;
pub(crate) mod reasons;
