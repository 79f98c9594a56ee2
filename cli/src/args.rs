//! The flags.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Parser, Subcommand, ValueEnum};

/// Load-aware and GPU-sharing scheduling for Kubernetes: see it at work.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, about, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run Plimsoll's four programs on an embedded cluster of a dozen nodes, and watch.
    ///
    /// The cluster's API server, kubelets and kube-scheduler are stand-ins inside this process; the
    /// programs are the real ones, as processes of their own, and this machine is one of the nodes.
    /// It needs no root and touches nothing outside a temporary directory. The last line is one JSON
    /// object, and the exit status is 0 only if every invariant held.
    Demo(DemoArgs),
    /// Start the embedded API server alone and print a kubeconfig for it, to try things out with
    /// kubectl. Nothing schedules or runs pods there.
    Sim,
}

/// What to show.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// End after the scenario, within a minute, instead of going on until Ctrl-C.
    #[arg(long, env = "ONCE", value_parser = FalseyValueParser::new())]
    pub once: bool,

    /// Leave out the pauses that are there for people to follow.
    #[arg(long)]
    pub fast: bool,

    /// Write the last picture as SVG, in colours that suit light and dark pages.
    #[arg(long, value_name = "FILE")]
    pub still: Option<PathBuf>,

    /// Write the run as an asciicast (v2) of 80 by 24 characters, to be played by asciinema.
    #[arg(long, env = "RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Break one thing on purpose: the checker must notice, and the exit status must not be 0.
    #[arg(long, env = "SABOTAGE", value_enum, value_name = "WHAT")]
    pub sabotage: Option<Sabotage>,

    /// Where Plimsoll's programs lie [default: beside this one].
    #[arg(long, env = "PLIMSOLL_PROGRAMS", value_name = "DIR")]
    pub programs: Option<PathBuf>,
}

/// What can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sabotage {
    /// A node's container runtime hands over another card than it was told to.
    Card,
    /// The exporters of overloaded nodes report them idle.
    Hot,
    /// Somebody binds GPU pods past the extender's ledger.
    Ledger,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }
}
