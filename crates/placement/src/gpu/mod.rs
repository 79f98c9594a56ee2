//! Sharing GPU memory: cards, requests, claims, the decision for a card, and the ledger.
//!
//! Rule: all containers of a pod share its cards, as in Aliyun's gpushare, whose tools and annotations know one card a
//! pod unless the pod requests more. [`choose`] is the only rule that picks them; Filter, Prioritize, preempt, explain,
//! Bind and the benchmarks all go by it.
//!
//! A pod requests units ([`GpuRequest`]). Bind has the node's ledger ([`NodeLedger`]) reserve a card for it
//! ([`Reservation`]) and writes the [`Claim`] on the pod. From there the pod's [`Stage`] goes on as the API server and
//! the kubelet's records show it. Readers see what is free and which pods are charged ([`NodeCards`]) as of the last
//! change.

mod account;
mod back_off;
mod beyond_units;
mod capacity;
mod device;
mod choice_rule;
mod claim;
mod entry;
mod filter;
mod fit;
pub mod fragmentation;
mod free_card;
mod isolation;
mod ledger;
mod node_cards;
mod preemption;
mod rating;
mod request;
mod share;
mod sharing;
mod strategy;
mod unmanaged;

pub use account::{Account, Basis, Charge};
pub use back_off::NodeBackOff;
pub use beyond_units::{BeyondUnits, Excess};
pub use capacity::Capacity;
pub use device::{Card, Closed};
pub use choice_rule::ChoiceRule;
pub use claim::{Claim, ClaimError};
pub use entry::{Reservation, Stage};
pub use filter::{CardFilter, PatternError, Patterns};
pub use fit::{Choice, Fit, NoFit, choose};
pub use free_card::{CardFit, ChosenCard, FreeCard};
pub use isolation::{Isolation, UnknownIsolation};
pub use ledger::{NodeLedger, ReserveError};
pub use node_cards::NodeCards;
pub(crate) use preemption::freeing_cards;
pub use preemption::{Candidates, Evictable, Shortfall, Victims, fewest_on_cards, victims};
pub use rating::{Rating, score_less_card_cost, scores};
pub use request::{CardOptions, ContainerKind, ContainerRequest, GpuRequest, RequestError};
pub use share::{CardShare, CardShares, CardUse};
pub use sharing::{CardIsolation, PodIsolation, Sharers, Sharing};
pub use strategy::{Strategy, UnknownStrategy};
pub use unmanaged::{MeasuredCard, MeasuredMemory, in_both_measurements};
