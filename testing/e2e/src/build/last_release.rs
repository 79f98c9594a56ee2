//! Owns Plimsoll's last release: its chart, and its programs as images with a tag of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::binaries::empty_folder;
use super::images::Archive;
use super::programs::{self, BESIDE_THE_EXPORTER, PROGRAMS};
use crate::command::{command, locked, run};
use crate::progress::step;
use crate::settings::Settings;

/// Names the commit of the last release. Until there is one: the first commit whose chart Helm could install.
const FILE: &str = "testing/e2e/last-release";
/// The tag of its images.
pub const TAG: &str = "0.0.0-last";

/// The last release, built.
#[derive(Debug)]
pub struct LastRelease {
    /// The folder of its chart.
    pub chart: PathBuf,
    /// The images of its programs, with [`TAG`].
    pub images: Vec<Archive>,
}

/// Compiles and packs the last release. Programs and chart are kept beside the other programs: it takes ten minutes
/// when it is asked for the first time. An error where this clone does not have the commit.
pub fn last_release(settings: &Settings) -> Result<LastRelease> {
    let file = settings.sources.join(FILE);
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let revision = text.split_whitespace().next().context("it names no commit")?;
    let commit =
        run(git(settings).args(["rev-parse", "--verify", &format!("{revision}^{{commit}}")]))
            .with_context(|| {
                format!("{FILE} names {revision}: `git fetch --unshallow` brings it")
            })?;
    let kept = settings.cache.join("last-release").join(commit.trim());
    let _lock = locked(&kept)?;
    let bin = kept.join("bin");
    if !bin.exists() {
        build(settings, revision, &kept, &bin)?;
    }
    let images = programs::pack_as(settings, &bin, TAG)?;
    Ok(LastRelease { chart: kept.join("sources/deploy/chart"), images })
}

/// The programs appear under their folder's name only when all are there.
fn build(settings: &Settings, revision: &str, kept: &Path, bin: &Path) -> Result<()> {
    step(&format!("compiling the last release, {revision} (once; ten minutes)"));
    let (sources, target) = (kept.join("sources"), kept.join("target"));
    empty_folder(&sources)?;
    let archive = kept.join("sources.tar");
    run(git(settings).args(["archive", revision, "--output"]).arg(&archive))?;
    run(command("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources))?;
    fs::remove_file(&archive)?;
    let mut cargo = programs::builder(settings, "cargo");
    cargo.current_dir(&sources).env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
    cargo.args(["build", "--locked"]);
    cargo.args(PROGRAMS.iter().flat_map(|program| ["--package", program]));
    run(cargo.stdout(Stdio::inherit()))?;
    let unfinished = kept.join("bin.unfinished");
    empty_folder(&unfinished)?;
    for program in PROGRAMS.into_iter().chain([BESIDE_THE_EXPORTER]) {
        let built = target.join("debug").join(program);
        ensure!(built.exists(), "the last release has no {program}");
        // The debug information is most of it.
        run(command("strip").arg("-o").arg(unfinished.join(program)).arg(&built))?;
    }
    fs::remove_dir_all(&target)?;
    fs::rename(&unfinished, bin).context("cannot keep the programs")
}

fn git(settings: &Settings) -> std::process::Command {
    let mut git = command("git");
    // The sources may belong to another user, as in a container.
    git.arg("-c").arg(format!("safe.directory={}", settings.sources.display()));
    git.arg("-C").arg(&settings.sources);
    git
}
