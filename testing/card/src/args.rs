//! Owns the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// One node of a real Kubernetes on this machine, its GPU shared by Plimsoll, and what is asked of it
#[derive(Debug, Parser)]
#[command(name = "plimsoll-card", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Ask every question, and print a row for each. Fails where a promise does not hold
    Run(Run),
    /// Pack what `run` needs on a machine without network and toolchain, and a script `run`, into a folder
    Bundle {
        /// The folder. Its files have at most 60 MiB
        folder: PathBuf,
    },
    /// Write what `run --json` has measured on a GPU into a page of results
    Record {
        /// The file that `run --json` wrote
        figures: PathBuf,
        /// The page
        #[arg(long, default_value = "bench/RESULTS.md")]
        page: PathBuf,
    },
    #[command(hide = true)]
    Inside(Run),
}

/// How the questions are asked.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Run {
    /// The programs, images and files, as `bundle` packs them. By default they are built from this checkout
    #[arg(long, value_name = "FOLDER")]
    pub(crate) parts: Option<PathBuf>,
    /// The node's own folder, removed at the end. Logs of a run with a failure stay
    #[arg(long, default_value = "/var/lib/plimsoll-card", value_name = "FOLDER")]
    pub(crate) work: PathBuf,
    /// Without a GPU: a stand-in of NVIDIA's library, and no CUDA
    #[arg(long)]
    pub(crate) fake: bool,
    /// Ask no further question after so many seconds
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    pub(crate) limit: u64,
    /// Write the rows here too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Run {
    /// The same as words of a command line.
    pub(crate) fn words(&self) -> Vec<std::ffi::OsString> {
        let mut words = vec!["--work".into(), self.work.clone().into_os_string()];
        for (flag, value) in [("--parts", &self.parts), ("--json", &self.json)] {
            if let Some(value) = value {
                words.extend([flag.into(), value.clone().into_os_string()]);
            }
        }
        if self.fake {
            words.push("--fake".into());
        }
        words.extend(["--limit".into(), self.limit.to_string().into()]);
        words
    }
}
