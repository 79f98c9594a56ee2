//! The real extender over HTTP, against the API stand-in.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod annotations;
mod bind;
mod bodies;
mod chaos;
mod concurrency;
mod decisions;
mod declared;
mod deleted_pods;
mod doubt;
mod dra;
mod fragmentation;
mod gpu_evictions;
mod large_objects;
mod metrics;
mod moves;
mod new_ca;
mod others;
mod outside_mps;
mod own_policy;
mod place;
mod preemption;
mod query;
mod readings_channel;
mod refusals;
mod replicas;
mod report;
mod resource_claims;
mod rig;
mod shadow;
mod simulate;
mod start;
mod stored;
mod tls;
mod verbs;
mod view;
