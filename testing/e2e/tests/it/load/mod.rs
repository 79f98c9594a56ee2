//! Tests of load-aware scheduling.

pub(crate) mod boot;
pub(crate) mod descheduler;
pub(crate) mod explain;
pub(crate) mod learned;
pub(crate) mod limits;
pub(crate) mod many_nodes;
pub(crate) mod policies;
pub(crate) mod preemption;
pub(crate) mod reasons;
pub(crate) mod replicas;
mod seen;
pub(crate) mod soft_limits;
pub(crate) mod taints;
