//! Polls node exporters and writes their readings as node annotations.
//!
//! The policy's sync rules say which metrics are fetched and how often. One poll of a node serves every metric that is
//! due, and one merge patch writes them all, with the node's hot value and, if it changed, the share of each GPU
//! that pods hold. Missing data is not written: the readings of a node with a silent exporter become stale.
//!
//! * [`fleet`]: what is due for which node, and the effects of finished jobs. Pure decisions.
//! * [`node_write`]: what one job writes of its node, as annotations.
//! * [`exporter`]: exporters' addresses, transport and credentials, and their answers.
//! * [`source`]: one source of readings for all nodes, in place of exporters: a Prometheus, or metrics-server.
//! * [`pod_use`]: learns the use of workloads from the use of their pods, and serves it.
//! * [`readings_channel`]: the last readings of all nodes, served to the extender.
//! * [`pods`]: bound pods: recent bindings, ledgers of GPUs, and the share annotation.
//! * [`taints`]: which nodes have a taint for their load. Pure decisions.
//! * [`runner`]: executes one job: a poll, then a patch.
//! * [`controller`]: the main loop between watches, fleet and jobs.
//! * [`app`], [`args`], [`clock`], [`metrics`]: wiring, flags, time and metrics.
//!
//! Each module imports only modules after it in this order: `app`, `controller`, `runner`, `source`, `metrics`,
//! `bands`, `taints`, `fleet`, `node_write`, `readings_channel`, `pod_use`, `pods`, `exporter`, `clock`. Those that
//! tests and fuzz targets use are public.

pub mod app;
pub mod args;
pub(crate) mod bands;
pub mod clock;
pub(crate) mod controller;
pub mod exporter;
pub mod fleet;
mod health;
mod metrics;
mod node_events;
pub(crate) mod node_write;
pub(crate) mod pod_use;
pub mod pods;
pub(crate) mod readings_channel;
pub(crate) mod runner;
pub(crate) mod source;
pub(crate) mod taints;

pub use args::Args;
pub use metrics::Metrics;
