//! Objects to facts, and the calls and watches against the API stand-in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is handed over as it is written")]

mod api;
mod batch;
mod claim;
mod devices;
mod events;
mod moves;
mod node_facts;
mod pod_facts;
mod pod_use;
mod restored;
mod stored;
