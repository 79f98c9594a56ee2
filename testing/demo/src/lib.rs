//! `plimsoll-demo`: Plimsoll's four programs on an embedded cluster in one process, shown and judged
//! ([`run`]), and that cluster alone.
//!
//! Everything of Plimsoll's that runs here runs as its own process, unchanged; this crate only stands
//! in for what is around it, and looks on.

mod alone;
mod args;
mod bars;
mod cast;
mod checker;
mod evidence;
mod fleet;
mod furnish;
mod interrupt;
mod journal;
mod leash;
mod loads;
mod motive;
mod pods;
mod ports;
mod programs;
mod rehearsal;
mod run;
mod scenario;
mod scratch;
mod screen;
mod sight;
mod stand_alone;
mod still;
mod story;
mod terminal;
mod verdict;
mod witness;
mod world;

use std::process::ExitCode;

pub use args::{Args, Command, DemoArgs, Leashed, Sabotage, SimArgs};

/// Does what the command line says: without a subcommand, runs the demo.
///
/// # Errors
/// When something that is needed cannot be had; the text says what to do.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        None => run::run(args.demo).await,
        Some(Command::Sim(args)) => stand_alone::run(&args).await,
        Some(Command::Leashed(args)) => leash::run(&args),
    }
}
