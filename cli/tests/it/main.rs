//! `plimsoll` as an operator runs it: the real binary, its output held to golden files.
//!
//! After a wanted change of an output: `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-cli`.

#![cfg(test)]

mod command;
mod diff;
mod documents;
mod explain;
mod help;
mod inspect;
mod policy;
mod scheduler_config;
mod server;
mod taints;
