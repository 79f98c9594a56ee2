//! The `annotator` program.

use std::process::ExitCode;

use annotator::{Args, app};

fn main() -> ExitCode {
    let args = daemon::parse::<Args>();
    let settings = args.daemon.settings();
    daemon::run(daemon::program!(), settings, |context| app::run(args, context))
}
