//! What a placement costs the cluster in GPU room that pods to come cannot use, so that each goes where it costs least.
//!
//! The cost of a pod on some cards of a node is the growth of three sums, in cards:
//!
//! * **Fragments**, after fragmentation gradient descent (Weng et al., USENIX ATC 2023): of each kind of pod that was asked
//!   for lately ([`TypicalPods`]), the free room of the node that the kind cannot use, times how often the kind comes. A kind
//!   that few cards of the cluster could take counts more, by the same factor: it comes to those cards more often. So a pod
//!   that accepts every model leaves scarce ones alone.
//! * **Stranded room**: cards that the node's free CPU does not suffice for, at the CPU that pods request by card.
//! * **Packing loss**: what is free of each card, less what the rest of the mix makes of it at best. Which sizes fill a card
//!   well follows from the mix itself, by the prices of the cutting-stock problem (Gilmore and Gomory, 1961).
//!
//! A card is worth to a kind what its own model is, so that nodes of several models are judged rightly.
//!
//! Invariant: the same room, request and measure give the same cards and the same cost, an integer, so that ties are exact
//! and the first of equal nodes in a fixed order is filled first. Spreading equal nodes by chance costs several percent of
//! a cluster's cards.

mod learner;
mod measure;
mod node;
mod packing;
mod room;
mod typical;

pub use learner::Learner;
pub use measure::{Cost, Measure, NodeClass};
pub(super) use node::MeasuredNode;
pub use room::{Part, Shape};
pub use typical::TypicalPods;
