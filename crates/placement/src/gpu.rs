//! Sharing GPU memory: cards, requests, claims, card choice, and the ledger.
//!
//! Rule: all containers of a pod share one card, as in Aliyun's gpushare, whose tools and
//! annotations know one card a pod. [`choose`] is the only place that picks one; Filter,
//! Prioritize, Bind and the benchmarks all call it.

mod card;
mod choice;
mod claim;
mod ledger;
mod request;

pub use card::Card;
pub use choice::{Choice, FreeCard, NoCard, WhyNot, choose};
pub use claim::{Claim, ClaimError};
pub use ledger::{CardUse, NodeLedger, Placed, Stage};
pub use request::{ContainerAsk, ContainerKind, GpuRequest};
