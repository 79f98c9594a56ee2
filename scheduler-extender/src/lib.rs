//! The scheduler extender: answers kube-scheduler's HTTP requests from memory.
//!
//! Data flows one way: watches → [`view`] → [`http`] verbs. The only writes are the binding in [`binder`] and, with
//! `--evict-for-cards`, the evictions in [`gpu_evictions`], with `--evict-outside-mps` those in [`outside_mps`].
//! [`gangs`] has which pods are bound together. [`decisions`] holds the last decisions, for explain. [`report`] is what
//! people look at.
//!
//! Invariants:
//! - Filter and Prioritize do no I/O and hold no lock across an await.
//! - A GPU is reserved in the ledger before the binding that claims it is sent. The reservation is released only when
//!   the API server certainly did not carry out the binding.
//! - Missing data about a node never rejects a pod, except a GPU pod, which needs a reported GPU.

mod annotator_client;
pub mod app;
pub mod args;
mod back_off_events;
pub mod binder;
pub mod decisions;
mod extender;
mod field;
pub mod gangs;
mod gpu_evictions;
mod health;
mod host_names;
pub mod http;
mod http_client;
mod learned_use;
pub mod metrics;
mod moves;
pub mod new_ca;
pub mod node_request;
mod outside_mps;
pub mod over_limits;
mod policy_events;
mod preemption;
mod readings_channel;
pub mod replicas;
pub mod report;
pub mod shadow;
mod tables;
mod victims;
pub mod view;
pub mod wire;

use std::sync::Arc;

use jiff::Timestamp;

pub use args::Args;
pub use extender::{Decided, Decider, Extender, PlacedRequest};
pub use host_names::HostNames;

/// Returns the current time. Tests use a fixed one.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
