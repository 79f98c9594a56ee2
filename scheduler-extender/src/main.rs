//! The `scheduler-extender` program.

use std::process::ExitCode;

use clap::Parser;
use daemon::Threads;
use scheduler_extender::{Args, app};

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = args.daemon.settings();
    // One core is left to the thread that answers kube-scheduler.
    let threads = Threads::PerOtherCore;
    daemon::run_on(threads, daemon::program!(), settings, |context| app::run(args, context))
}
