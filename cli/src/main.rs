//! `plimsoll`: the operators' command.
//!
//! Each command is one module with a function that writes to the given output. Under the name `kubectl-plimsoll` the
//! same binary is a plugin of kubectl.

mod advice;
mod args;
mod diff;
mod effective;
mod explain;
mod extender;
mod format;
mod inspect;
mod pipe;
mod policy;
mod scheduler_config;
mod table;
mod taints;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::{Args, Command, ExplainCommand, PolicyCommand};
use crate::format::printable_lines;
use crate::pipe::UntilClosed;

fn main() -> ExitCode {
    let args = Args::of_command_line();
    let mut output = io::BufWriter::new(UntilClosed::new(io::stdout().lock()));
    let done = match &args.command {
        Command::Policy(PolicyCommand::Check(check)) => policy::check(check, &mut output),
        Command::Policy(PolicyCommand::Diff(flags)) => diff::diff(flags, &mut output),
        Command::Policy(PolicyCommand::Convert(flags)) => policy::convert(flags, &mut output),
        Command::Policy(PolicyCommand::Schema) => policy::schema(&mut output),
        Command::SchedulerConfig(flags) => scheduler_config::scheduler_config(flags, &mut output),
        Command::Inspect(flags) => inspect::inspect(flags, &mut output),
        Command::Taints(flags) => taints::taints(flags, &mut output),
        Command::Explain(ExplainCommand::Pod(flags)) => explain::explain(flags, &mut output),
    };
    match done.and_then(|code| Ok(output.flush().map(|()| code)?)) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {}", printable_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
