//! `node-exporter-plus`: one thread, a few MiB.

use std::process::ExitCode;

use clap::Parser;
use daemon::Flavour;
use node_exporter_plus::{Args, app};

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = args.daemon.settings();
    let run = |context| app::run(args, context);
    daemon::run_on(Flavour::CurrentThread, daemon::program!(), settings, run)
}
