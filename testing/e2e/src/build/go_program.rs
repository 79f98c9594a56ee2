//! Owns the programs beside Kubernetes that are pinned as Go modules: each is built once, then kept.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Result;

use super::binaries::keep_go_folders;
use crate::command::{command, run};
use crate::settings::Settings;

/// Prints the path of a program, which it builds first where that is needed.
const SCRIPT: &str = "scripts/go-program.sh";

/// The path of the program that the script knows by this name. It takes minutes when it is asked for the first time.
pub fn go_program(settings: &Settings, name: &str) -> Result<PathBuf> {
    let mut script = command(settings.sources.join(SCRIPT));
    script.arg(name).env("PLIMSOLL_CACHE", &settings.cache).stderr(Stdio::inherit());
    keep_go_folders(settings, &mut script);
    Ok(PathBuf::from(run(&mut script)?.trim_end()))
}
