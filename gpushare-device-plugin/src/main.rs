//! The device plugin's process.

use std::process::ExitCode;

use gpushare_device_plugin::{app, args::Args};

fn main() -> ExitCode {
    let args = daemon::parse::<Args>();
    let settings = args.daemon.settings();
    daemon::run(daemon::program!(), settings, |context| app::run(args, context))
}
