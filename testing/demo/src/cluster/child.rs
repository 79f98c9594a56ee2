//! `plimsoll-demo child PROGRAM FLAGS…`: asks the kernel to kill this process when its parent dies, then becomes
//! PROGRAM. Otherwise a demo that is killed with SIGKILL would leave twenty processes behind.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args::ChildArgs;

/// Becomes the program. Returns only with an error.
pub(crate) fn become_child(args: &ChildArgs) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie to the parent")?;
    // A parent that died before that line sends no signal. Process 1 has adopted this one then.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    ensure!(parent.is_some_and(|parent| parent != 1), "the parent process is gone");
    let error = Command::new(&args.program).args(&args.flags).exec();
    Err(error).with_context(|| format!("cannot start {}", args.program.display()))
}
