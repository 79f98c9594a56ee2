//! The `scheduler-extender` program.

use std::process::ExitCode;

use scheduler_extender::{Args, app, new_ca};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        // Beside a kube-scheduler that runs as a pod.
        Some((command, arguments)) if command == new_ca::COMMAND => new_ca::main(arguments),
        _ => app::main(daemon::parse::<Args>()),
    }
}
