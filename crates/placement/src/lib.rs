//! The rules of Plimsoll as pure functions: data about nodes and pods in, decisions and reasons out.
//!
//! It has every rule, annotation key and unit, and no I/O, no clock (`now` is always a parameter), no logging and no
//! Kubernetes client. The extender, the tests and the benchmarks call the same functions.
//!
//! * [`names`]: resource names and annotation keys, all configurable.
//! * [`units`]: quantities as distinct types.
//! * [`reading`]: one value of one metric at one time, and its annotation codec.
//! * [`policy`]: the load policy, parsed from YAML with errors that name field and line.
//! * [`quantity`]: Kubernetes quantities as numbers.
//! * [`resources`], [`estimate`]: pods' requests and limits, and estimates of their use.
//! * [`demand`]: network and disk, as pods declare them and nodes have them.
//! * [`workload`]: which pods belong to one workload.
//! * [`learning`]: what the pods of each workload use.
//! * [`selector`]: labels, and which objects they select.
//! * [`node_rules`]: taints, node selectors and node affinity.
//! * [`moves`]: which pods go to other nodes so that a GPU pod fits.
//! * [`shares`]: bounded tables in which each namespace has a share.
//! * [`load`]: filter, score and hot value of a node under a policy.
//! * [`publish`]: when a node's readings are written.
//! * [`taint`]: when a hot node carries a taint.
//! * [`gpu`]: GPUs, requests, claims, GPU choice and the ledger that never overbooks.
#![deny(missing_docs)]

/// A reason of a rejection, with the command that shows more. kube-scheduler groups nodes by the text and uses it as a
/// format string, so it is constant for all nodes, short, and without `%`.
#[macro_export]
macro_rules! reason {
    ($text:literal) => {
        concat!($text, " (see: kubectl plimsoll explain pod)")
    };
}

pub mod bands;
pub mod demand;
pub mod estimate;
pub mod fnv;
pub mod gpu;
pub mod learning;
pub mod load;
pub mod moves;
pub mod names;
pub mod node_rules;
pub mod policy;
pub mod publish;
pub mod quantity;
pub mod reading;
pub mod resources;
pub mod selector;
pub mod shares;
pub mod taint;
pub mod units;
pub mod workload;
