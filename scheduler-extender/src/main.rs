//! The `scheduler-extender` program.

use std::process::ExitCode;

use clap::Parser;
use scheduler_extender::{Args, app};

fn main() -> ExitCode {
    app::main(Args::parse())
}
