//! The `plimsoll` command: a demo cluster in one process ([`demo`]), and that cluster alone.
//!
//! Everything of Plimsoll's that runs here runs as its own process, unchanged; this crate only stands
//! in for what is around it, and looks on.

mod args;
pub mod demo;
mod interrupt;
mod leash;
mod scratch;
mod stand_alone;

use std::process::ExitCode;

pub use args::{Args, Command, DemoArgs, Leashed, Sabotage, SimArgs};

/// Does what the command line says.
///
/// # Errors
/// When something that is needed cannot be had; the text says what to do.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Demo(args) => demo::run(args).await,
        Command::Sim(args) => stand_alone::run(&args).await,
        Command::Leashed(args) => leash::run(&args),
    }
}
