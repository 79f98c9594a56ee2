//! Flags of the commands that look after an installation.

use std::path::PathBuf;

use clap::Parser;

use super::access::{Access, Connection, Format, Query};

/// Flags of `doctor`.
#[derive(Debug, Parser)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct Doctor {
    /// Only these checks, by the names of the second column, with commas between them.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Warn of a certificate that ends within this many days.
    #[arg(long, default_value_t = 30, value_name = "DAYS")]
    pub(crate) certificate_days: u16,

    #[command(flatten)]
    pub(crate) query: Query,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  # Whether Plimsoll is installed, wired and healthy
  kubectl plimsoll doctor

  # What is wrong alone, for a pipeline
  kubectl plimsoll doctor -o json | jq '.findings[] | select(.level != \"ok\")'

Exit status: 0 if every check is ok or warns, 1 if one fails, 3 if none fails and something is not known. What may not be \
read is not known, and is told with the right that is missing.";

/// Flags of `support-bundle`.
#[derive(Debug, Parser)]
#[command(after_help = BUNDLE_EXAMPLES)]
pub(crate) struct SupportBundle {
    /// The archive [default: plimsoll-support-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// How many lines of each log.
    #[arg(long, default_value_t = 2_000, value_name = "LINES")]
    pub(crate) log_lines: u32,

    #[command(flatten)]
    pub(crate) access: Access,
}

const BUNDLE_EXAMPLES: &str = "\
Examples:
  # Everything that a report of a fault needs
  kubectl plimsoll support-bundle

  # Look before you send it
  tar -tzf plimsoll-support-*.tar.gz";

/// Flags of `ui`.
#[derive(Debug, Parser)]
pub(crate) struct Ui {
    /// The port on this machine [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,

    /// Open it in the browser.
    #[arg(long)]
    pub(crate) open: bool,

    #[command(flatten)]
    pub(crate) access: Access,
}

/// Flags of `version`.
#[derive(Debug, Parser)]
pub(crate) struct Version {
    /// Of this command alone.
    #[arg(long)]
    pub(crate) client: bool,

    #[command(flatten)]
    pub(crate) query: Query,
}

/// Flags of `completion`.
#[derive(Debug, Parser)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct Completion {
    /// The shell; `kubectl` writes the program by which kubectl completes `kubectl plimsoll`.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// What completion is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// kubectl, in whichever shell that is set up for it.
    Kubectl,
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  # bash, for `plimsoll`
  source <(plimsoll completion bash)

  # kubectl, for `kubectl plimsoll`, where kubectl's own completion is set up
  plimsoll completion kubectl | sudo tee /usr/local/bin/kubectl_complete-plimsoll >/dev/null
  sudo chmod +x /usr/local/bin/kubectl_complete-plimsoll";

/// Flags of `taints`.
#[derive(Debug, Parser)]
#[command(after_help = TAINTS_EXAMPLES)]
pub(crate) struct Taints {
    /// Remove them, whatever their key; other taints stay.
    #[arg(long, conflicts_with_all = ["output", "json"])]
    pub(crate) clear: bool,

    #[command(flatten)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) connection: Connection,
}

const TAINTS_EXAMPLES: &str = "\
Examples:
  # The nodes that are hot now
  plimsoll taints

  # After `kubectl delete -k deploy/`
  plimsoll taints --clear";
