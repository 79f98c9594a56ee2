//! The `annotator` program.

use std::process::ExitCode;

use annotator::{Args, app};
use clap::Parser;

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = args.daemon.settings();
    daemon::run(daemon::program!(), settings, |context| app::run(args, context))
}
