//! Polls node exporters and writes their readings as node annotations.
//!
//! The policy's sync rules say which metrics are fetched and how often. One poll of a node serves
//! every metric that is due, and one merge patch writes them all, with the node's hot value and,
//! where it changed, the share of each GPU card that pods hold. What is unknown is never written:
//! an exporter that does not answer lets the old annotations age until nobody counts on them.
//!
//! * [`due`], [`retry`]: when each metric of a node is due, and when to try again.
//! * [`fleet`]: every node, what is to be done next, and what came of it. Decides,
//!   and does nothing.
//! * [`pods`], [`heat`], [`gpu`]: what the pods on a node make of its hot value and its cards.
//! * [`endpoint`], [`channel`], [`tls`], [`credentials`]: where exporters answer and how they are
//!   reached, whom to believe, and what they are shown.
//! * [`statistics`], [`measured`]: which of the values that an exporter tells may be written, and what
//!   it measured of each card.
//! * [`poll`], [`sync`]: one job: ask the exporter, then one patch.
//! * [`annotate`]: the loop that takes in news and carries jobs out.
//! * [`policy_file`]: the policy, read again when it changes.

pub mod annotate;
pub mod app;
pub mod args;
pub mod channel;
pub mod clock;
pub mod credentials;
pub mod due;
pub mod endpoint;
pub mod fleet;
pub mod gpu;
pub mod heat;
pub mod job;
pub mod measured;
pub mod metrics;
mod node;
pub mod pods;
pub mod policy_file;
pub mod poll;
pub mod retry;
mod share;
pub mod statistics;
pub mod sync;
pub mod tls;

pub use args::Args;
