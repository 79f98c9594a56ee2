//! Flags of the commands about the policy in the cluster.

use std::path::PathBuf;

use clap::Parser;

use super::access::{Access, Query};

/// Flags of `policy show`.
#[derive(Debug, Parser)]
pub(crate) struct Show {
    /// The policy before the last `policy apply` or `policy rollback`.
    #[arg(long, conflicts_with = "effective")]
    pub(crate) previous: bool,

    /// What the extender decides by, with all defaults, as `policy check` shows it.
    #[arg(long)]
    pub(crate) effective: bool,

    #[command(flatten)]
    pub(crate) query: Query,
}

/// Flags of `policy apply`.
#[derive(Debug, Parser)]
#[command(after_help = APPLY_EXAMPLES)]
pub(crate) struct Apply {
    /// The policy; `-` reads stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) change: Change,
}

const APPLY_EXAMPLES: &str = "\
Examples:
  # Check it, show what changes, and put it in force
  kubectl plimsoll policy apply policy.yaml

  # Back to the one before
  kubectl plimsoll policy rollback";

/// Flags of `policy rollback`.
#[derive(Debug, Parser)]
pub(crate) struct Rollback {
    #[command(flatten)]
    pub(crate) change: Change,
}

/// How the policy is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// Do not ask.
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,

    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) access: Access,
}
