//! The scheduler extender: kube-scheduler asks over HTTP, this answers from memory.
//!
//! Data flows one way: watches → [`view`] → [`http`] verbs; the writes are the binding in
//! [`binder`] and, where that is wanted, [`card_evictions`]. What the verbs decided by stays in [`decisions`] for a while. Invariants: Filter and Prioritize never wait (no I/O, no lock held across an
//! await); a card is reserved in the ledger before the binding that claims it is sent, and given
//! back only when the API server surely did not take it; nothing of a node that is unknown rejects
//! a pod, except for GPU pods, who need a card that is known.

pub mod app;
pub mod args;
pub mod asked;
pub mod binder;
pub mod card_evictions;
pub mod decisions;
mod extender;
mod field;
pub mod http;
pub mod http_client;
pub mod learned_use;
pub mod metrics;
pub mod over_limits;
mod preemption;
pub mod replicas;
pub mod shadow;
pub mod view;
pub mod wire;

pub use args::Args;
pub use extender::{AskedOn, Clock, Decider, Extender};
