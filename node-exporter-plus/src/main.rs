//! `node-exporter-plus`: one thread, a few MiB.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use daemon::Flavour;
use node_exporter_plus::{Args, app, storage};

fn main() -> ExitCode {
    let args = Args::parse();
    if let (Some(user), Some(file)) = (args.storage_prepare, &args.storage_file) {
        return storage::prepare(file, user)
            .map_or_else(|error| failed(file, error), |()| ExitCode::SUCCESS);
    }
    let settings = args.daemon.settings();
    let run = |context| app::run(args, context);
    daemon::run_on(Flavour::CurrentThread, daemon::program!(), settings, run)
}

fn failed(file: &Path, error: io::Error) -> ExitCode {
    let error = anyhow::Error::new(error).context(format!("--storage.file {}", file.display()));
    daemon::fatal::report("node-exporter-plus", &error, Path::new(daemon::fatal::TERMINATION_LOG));
    ExitCode::FAILURE
}
