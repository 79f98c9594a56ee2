//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, Resettable};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

/// Run Plimsoll's four programs on an embedded cluster of a dozen nodes, and watch.
///
/// The cluster's API server, kubelets and kube-scheduler are stand-ins inside this process; the
/// programs are the real ones, as processes of their own, and this machine is one of the nodes.
/// It needs no root and touches nothing outside a temporary directory.
///
/// It writes what happens, a line each: for each pod why it is where it is, and what kube-scheduler
/// would have done by itself. Its first line has the address of the extender's page, which shows
/// the nodes' loads and the GPUs with their pods.
#[derive(Debug, Parser)]
#[command(name = "plimsoll-demo", version, about, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, after_help = DEMO_HELP)]
pub struct Args {
    /// The demo's flags.
    #[command(flatten)]
    pub demo: DemoArgs,

    /// What to do instead of running the demo.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Args {
    /// Parses this process's command line and environment. A wrong flag ends the process with a message.
    #[must_use]
    pub fn of_command_line() -> Self {
        let mut command = without_variables(Self::command(), |name: &OsStr| {
            std::env::var_os(name).is_some_and(|value| value.is_empty())
        });
        let parsed = Self::from_arg_matches(&command.clone().get_matches());
        parsed.unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// Drops the environment variables that `ignored` selects. An empty variable counts as unset, so that
/// `make demo SABOTAGE=` breaks nothing.
fn without_variables(command: clap::Command, ignored: impl Fn(&OsStr) -> bool) -> clap::Command {
    command.mut_args(|arg: Arg| match arg.get_env() {
        Some(name) if ignored(name) => arg.env(Resettable::Reset),
        _ => arg,
    })
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Become a program that the kernel kills when its parent process dies.
    #[command(hide = true)]
    Child(ChildArgs),
}

const DEMO_HELP: &str = "\
The last line of the output is one JSON object (unless nothing could be started; stderr says why):
  pods, bound, running, pending   pods made, placed, started (many end again), and left waiting
  double_booked_mib               GPU memory promised to two pods at once
  card_mismatches                 containers that saw another GPU than was chosen for them
  hot_node_placements             pods placed on overloaded nodes
The last three are counted from what processes see, by code that Plimsoll does not share, and must be 0.

Exit status: 0 if everything held, 1 if something did not or a file could not be written (stderr
says what), 130 if it was interrupted before the scenario had ended.

Examples:
  plimsoll-demo --once                     about a minute, then the counts
  plimsoll-demo --once --sabotage ledger   the checker must notice: exit status 1
  plimsoll-demo                            until Ctrl-C, to look at the page";

/// Flags of the demo.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// End after the scenario, in about a minute, instead of going on until Ctrl-C.
    #[arg(long, env = "ONCE", value_parser = FalseyValueParser::new())]
    pub once: bool,

    /// Leave out the pauses that are there for people to follow.
    #[arg(long)]
    pub fast: bool,

    /// Break one thing on purpose: the checker must notice, and the exit status must not be 0.
    #[arg(long, env = "SABOTAGE", value_enum, value_name = "WHAT")]
    pub sabotage: Option<Sabotage>,

    /// The directory of Plimsoll's programs [default: where this one lies].
    #[arg(long, env = "PLIMSOLL_PROGRAMS", value_name = "DIR")]
    pub programs: Option<PathBuf>,
}

/// What can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sabotage {
    /// A node's container runtime hands over another GPU than it was told to.
    #[value(alias = "card")]
    Gpu,
    /// The exporters of overloaded nodes report them idle.
    Hot,
    /// GPU pods are bound without the extender, past its ledger.
    Ledger,
}

/// Arguments of `plimsoll-demo child`.
#[derive(Debug, Clone, clap::Args)]
pub struct ChildArgs {
    /// The program's path.
    pub program: PathBuf,
    /// The program's flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_variable_that_is_set_to_nothing_is_not_set() {
        assert_eq!(variables_left("SABOTAGE"), ["ONCE", "PLIMSOLL_PROGRAMS"]);
        assert_eq!(variables_left("ONCE"), ["SABOTAGE", "PLIMSOLL_PROGRAMS"]);
    }

    fn variables_left(empty: &'static str) -> Vec<String> {
        let command = without_variables(Args::command(), |name: &OsStr| name == empty);
        let names = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
        names.map(str::to_owned).collect::<Vec<_>>()
    }
}
