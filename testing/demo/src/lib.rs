//! `plimsoll-demo`: Plimsoll's four programs at work on an embedded cluster, shown on the terminal and checked by
//! `checker` ([`run()`]).
//!
//! The programs run unchanged, as processes of their own. This crate provides what is around them: the API server,
//! kubelets and kube-scheduler are the stand-ins of `sim`.
//!
//! - `model`: the nodes, their true loads, the pods, and how API objects are read. It imports nothing else of this
//!   crate.
//! - `cluster`: starts and stops the stand-ins and the programs.
//! - `scenario`: what happens, step by step.
//! - `baseline`: the same pods in a second cluster without Plimsoll.
//! - `checker`: counts what must never happen. It shares no code with Plimsoll.
//! - `view`: the log of what happens.
//! - `observer`: feeds checker, baseline and view; `run` wires all of this, `summary` prints the outcome.

mod args;
mod baseline;
mod checker;
mod cluster;
mod interrupt;
mod model;
mod observer;
mod run;
mod scenario;
mod summary;
mod temp_dir;
mod view;

use std::process::ExitCode;

pub use args::{Args, ChildArgs, Command, DemoArgs, Sabotage};

/// Runs the subcommand that the command line names; without one, the demo.
///
/// # Errors
/// When something that is needed cannot be had. The text says what to do.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        None => run::run(args.demo).await,
        Some(Command::Child(args)) => cluster::become_child(&args),
    }
}
