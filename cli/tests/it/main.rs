//! `plimsoll` as an operator runs it: the real binary, its output held to golden files.
//!
//! After a wanted change of an output: `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-cli`.

#![cfg(test)]

mod access;
mod bundle;
mod command;
mod convert;
mod diff;
mod doctor;
mod documents;
mod explain;
mod gpus;
mod help;
mod operate;
mod pending;
mod policy;
mod scheduler;
mod scheduler_config;
mod server;
mod stored_policy;
mod taints;
mod world;
