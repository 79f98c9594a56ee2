//! Sharing GPU memory: cards, requests, claims, the decision for a card, and the ledger.
//!
//! Rule: all containers of a pod share one card, as in Aliyun's gpushare, whose tools and annotations know one card a
//! pod. [`choose`] is the only place that picks one; Filter, Prioritize, preempt, explain, Bind and the benchmarks all
//! call it.
//!
//! A pod asks for units ([`GpuRequest`]). Bind has the node's ledger ([`NodeLedger`]) reserve a card for it
//! ([`Reservation`]) and writes the [`Claim`] on the pod. From there the pod's [`Stage`] goes on as the API server and
//! the kubelet's records show it. Readers see what is free and who is charged ([`NodeCards`]) as of the last change.

mod card;
mod claim;
mod entry;
mod fit;
mod ledger;
mod node_cards;
mod request;

pub use card::Card;
pub use claim::{Claim, ClaimError};
pub use entry::{Reservation, Stage};
pub use fit::{CardFit, Choice, Fit, FreeCard, NoFit, choose};
pub use ledger::{NodeLedger, ReserveError};
pub use node_cards::{Account, Basis, Charge, NodeCards};
pub use request::{ContainerAsk, ContainerKind, GpuRequest};
