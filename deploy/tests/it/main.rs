//! What lies in `deploy/` is what the programs, Kubernetes and the documents say it is.

// Tells clippy that unwrap and panic are how a test fails here, in functions beside the tests too.
#![cfg(test)]

mod components;
mod documents;
mod flags;
mod images;
mod links;
mod manifests;
mod policy;
mod rbac;
mod repository;
mod scheduler_config;
mod wiring;
mod workloads;
