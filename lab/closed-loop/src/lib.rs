//! A closed loop: placement policies side by side in a simulated cluster, where the node that a pod is put on decides
//! what is read of that node next.
//!
//! A [`workload::Workload`] is a pure function of a [`cell::Cell`] and a seed. Each policy has a [`world::World`] of
//! its own: the same nodes and the same arrivals, and its own bindings. [`simulation::Simulation`] moves all worlds
//! forward in lockstep, so that the use of a pod is computed once for all of them. `WORKLOAD.md` says what is simulated
//! and what is not.
//!
//! A new policy is one file in [`policies`] that implements [`policies::Policy`], and one line in `policies::KINDS`.

pub mod args;
pub mod cell;
pub mod cluster;
pub mod policies;
pub mod readings;
pub mod report;
pub mod simulation;
pub mod time;
pub mod workload;
pub mod world;
