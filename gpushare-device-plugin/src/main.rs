//! The device plugin's process.

use std::process::ExitCode;

use clap::Parser;
use gpushare_device_plugin::{app, args::Args};

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = args.daemon.settings();
    daemon::run(daemon::program!(), settings, |context| app::run(args, context))
}
