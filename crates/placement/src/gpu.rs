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
mod share;

pub use card::{Card, CardsError, cards_from_json, cards_to_json};
pub use choice::{Choice, FreeCard, NoCard, WhyNot, choose};
pub use claim::{Claim, ClaimError, Placed};
pub use ledger::{CardUse, NodeLedger, Stage};
pub use request::{ContainerAsk, ContainerKind, GpuRequest};
pub use share::{CardShare, NodeShare};
