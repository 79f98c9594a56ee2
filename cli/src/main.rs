//! `plimsoll`: the operators' command.
//!
//! Each command is one module with a function that writes to the given output. Under the name `kubectl-plimsoll` the
//! same binary is a plugin of kubectl.

mod advice;
mod args;
mod bundle;
mod cluster_access;
mod completion;
mod convert;
mod diff;
mod doctor;
mod events;
mod explain;
mod extender;
mod format;
mod gpus;
mod output;
mod packing;
mod pending;
mod pipe;
mod policy;
#[cfg(unix)]
mod scheduler;
mod scheduler_config;
mod stored_policy;
mod table;
mod taints;
mod ui;
mod version;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

use crate::args::{Args, Command, ExplainCommand, PolicyCommand};
use crate::format::printable_lines;
use crate::gpus::cordon::{self, Wanted};
use crate::gpus::{capacity, defragment, inspect, top};
use crate::pipe::UntilClosed;

fn main() -> ExitCode {
    let args = Args::of_command_line();
    let mut output = io::BufWriter::new(UntilClosed::new(io::stdout().lock()));
    let done = run(&args.command, &mut output);
    match done.and_then(|code| Ok(output.flush().map(|()| code)?)) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {}", printable_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, output: &mut dyn Write) -> Result<ExitCode> {
    match command {
        Command::Doctor(flags) => return doctor::doctor(flags, output),
        Command::Why(flags) | Command::Explain(ExplainCommand::Pod(flags)) => {
            explain::why(flags, output)?;
        }
        Command::Pending(flags) => pending::pending(flags, output)?,
        Command::Top(what) => top::top(what, output)?,
        Command::Gpus(flags) => inspect::gpus(flags, output)?,
        Command::Inspect(flags) => inspect::inspect(flags, output)?,
        Command::Capacity(flags) => capacity::capacity(flags, output)?,
        Command::Defragment(flags) => return defragment::defragment(flags, output),
        Command::Events(flags) => events::events(flags, output)?,
        Command::Policy(command) => return of_policy(command, output),
        Command::Convert(flags) => convert::convert(flags, output)?,
        Command::Cordon(flags) => cordon::cordon(flags, Wanted::Cordoned, output)?,
        Command::Uncordon(flags) => cordon::cordon(flags, Wanted::Open, output)?,
        Command::Taints(flags) => taints::taints(flags, output)?,
        Command::SchedulerConfig(flags) => scheduler_config::scheduler_config(flags, output)?,
        #[cfg(unix)]
        Command::Scheduler(command) => return scheduler::scheduler(command, output),
        Command::Ui(flags) => ui::ui(flags, output)?,
        Command::Version(flags) => return version::version(flags, output),
        Command::Completion(flags) => completion::completion(flags, output)?,
        Command::Complete { words } => completion::candidates(words, output)?,
        Command::SupportBundle(flags) => bundle::support_bundle(flags, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn of_policy(command: &PolicyCommand, output: &mut dyn Write) -> Result<ExitCode> {
    match command {
        PolicyCommand::Check(flags) => return policy::check(flags, output),
        PolicyCommand::Convert(flags) => policy::convert(flags, output)?,
        PolicyCommand::Schema => policy::schema(output)?,
        PolicyCommand::Show(flags) => stored_policy::show(flags, output)?,
        PolicyCommand::Apply(flags) => return stored_policy::apply(flags, output),
        PolicyCommand::Rollback(flags) => return stored_policy::rollback(flags, output),
        PolicyCommand::Diff(flags) => diff::diff(flags, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
