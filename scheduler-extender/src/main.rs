//! The `scheduler-extender` program.

use std::process::ExitCode;

use clap::Parser;
use scheduler_extender::{Args, app};

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = args.daemon.settings();
    daemon::run(daemon::program!(), settings, |context| app::run(args, context))
}
