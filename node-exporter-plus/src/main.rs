//! `node-exporter-plus`: one thread, 3.3 MiB of memory.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use daemon::Threads;
use node_exporter_plus::{Args, app, storage};

fn main() -> ExitCode {
    let args = daemon::parse::<Args>();
    if let (Some(user), Some(file)) = (args.storage_prepare, &args.storage_file) {
        return storage::prepare(file, user)
            .map_or_else(|error| failed(&named(file, error)), |()| ExitCode::SUCCESS);
    }
    let settings = args.daemon.settings();
    daemon::run_on(Threads::One, daemon::program!(), settings, |context| app::run(args, context))
}

fn named(file: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("--storage.file {}", file.display()))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    daemon::fatal::report("node-exporter-plus", error, Path::new(daemon::fatal::TERMINATION_LOG));
    ExitCode::FAILURE
}
