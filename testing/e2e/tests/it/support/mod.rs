//! What the tests share: pods, fake nodes, the comparison of GPUs, and what a run reports.

pub(crate) mod callers;
pub(crate) mod certificates;
pub(crate) mod counts;
pub(crate) mod diagnostics;
pub(crate) mod exporter_client;
pub(crate) mod extender_client;
pub(crate) mod fake_nodes;
pub(crate) mod figures;
pub(crate) mod gpu_audit;
pub(crate) mod http;
pub(crate) mod kubelet_checkpoint;
pub(crate) mod offers;
pub(crate) mod pods;
pub(crate) mod policy;
pub(crate) mod priorities;
pub(crate) mod readings;
pub(crate) mod resource_claims;
