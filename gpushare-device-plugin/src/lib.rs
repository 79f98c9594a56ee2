//! Reports GPU memory to the kubelet and gives each container exactly the card of its claim.
//!
//! The kubelet's questions and where they are answered: GetPreferredAllocation in [`identify`] and
//! [`prefer`], Allocate in [`allocate`], PreStartContainer in [`prestart`]; all pure, over the
//! facts that [`admission`] gathers. Around them: [`cards`] (what is listed), [`records`] (who
//! holds what), [`lifecycle`] (registration), [`report`] (what the cluster is told).

pub mod admission;
pub mod allocate;
pub mod app;
pub mod args;
pub mod cards;
pub mod cdi;
#[cfg(test)]
mod facts_for_tests;
pub mod identify;
pub mod ids;
pub mod kubelet;
pub mod leftovers;
pub mod lifecycle;
pub mod metrics;
pub mod pods;
pub mod prefer;
pub mod prestart;
pub mod records;
pub mod refusal;
pub mod report;
pub mod response;
pub mod service;
pub mod watch_cards;
