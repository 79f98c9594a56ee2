//! `plimsoll-card`: one node of a real Kubernetes as processes of this machine, its GPU shared by Plimsoll, and what is
//! asked of it. [The README](../README.md) says what for.
//!
//! Invariant: nothing that was started, mounted or made outlives the outer process. The node runs in a mount namespace
//! of its own and in control groups of its own; both end with it, whatever ended the questions.

mod args;
mod gpu;
mod http;
mod lab;
mod mps;
mod node;
mod parts;
mod place;
mod pods;
mod questions;
mod record;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use e2e::progress::line;

use args::{Args, Run, Verb};
use lab::Lab;
use parts::Parts;

fn main() -> ExitCode {
    let done = match Args::parse().verb {
        Verb::Run(run) => place::run(run),
        Verb::Bundle { folder } => parts::bundle(&folder).map(|()| true),
        Verb::Record { figures, page } => record::record(&figures, &page).map(|()| true),
        Verb::Inside(run) => inside(&run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Asks everything, in the namespace that [`place::run`] has made. Returns whether all promises hold.
fn inside(run: &Run) -> Result<bool> {
    let parts = Parts::at(&run.parts.clone().unwrap_or_else(|| PathBuf::from(".")))?;
    let mut lab = Lab::start(&parts, run)?;
    questions::ask(&mut lab);
    lab.table.finish(&lab.facts(), run.json.as_deref())
}
