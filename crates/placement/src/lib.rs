//! Facts and requests in, decisions and reasons out.
//!
//! Every rule, wire key and unit of Plimsoll lives here, and nothing else does: no I/O, no clock
//! (`now` is always a parameter), no logging, no Kubernetes client. The same functions decide in the
//! extender, the tests and the benchmarks.
//!
//! * [`names`]: resource names and annotation keys, all settable, owned here alone.
//! * [`units`]: quantities that cannot be mixed up.
//! * [`reading`]: one value of one metric at one time, and its annotation codec.
//! * [`policy`]: the load policy, parsed from YAML with errors that name field and line.
//! * [`quantity`]: Kubernetes quantities as numbers.
//! * [`resources`], [`estimate`]: what pods ask for, and what they will probably use.
//! * [`workload`]: which pods are alike.
//! * [`selector`]: labels, and which objects they select.
//! * [`load`]: filter, score and hot value of a node under a policy.
//! * [`publish`]: when a node's readings are written.
//! * [`taint`]: when a hot node carries a taint.
//! * [`gpu`]: cards, requests, claims, card choice and the ledger that never overbooks.

/// A text for events, with the command that tells more. kube-scheduler groups nodes by the text and uses it as a format, so
/// it is the same for all nodes, short, and without `%`.
#[macro_export]
macro_rules! reason {
    ($text:literal) => {
        concat!($text, " (see: kubectl plimsoll explain pod)")
    };
}

pub mod estimate;
pub mod gpu;
pub mod load;
pub mod names;
pub mod policy;
pub mod publish;
pub mod quantity;
pub mod reading;
pub mod resources;
pub mod selector;
pub mod taint;
pub mod units;
pub mod workload;
