//! `plimsoll-demo leashed PROGRAM`: becomes PROGRAM, which the kernel kills as soon as whoever started it dies,
//! however that comes about. Without it, a demo that is killed outright would leave twenty processes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args::Leashed;

/// Returns only where it fails.
pub(crate) fn run(args: &Leashed) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie to the parent")?;
    // It may have died before that: then whoever adopts orphans is our parent.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    ensure!(parent.is_some_and(|parent| parent != 1), "whoever started this is gone");
    let error = Command::new(&args.program).args(&args.flags).exec();
    Err(error).with_context(|| format!("cannot start {}", args.program.display()))
}
