//! Plimsoll's programs as processes: found, started, killed, and never left behind. Each is started through
//! [`child`](super::child), so that it ends even where this process is killed with SIGKILL.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::process::{Child, Command};

pub(super) const EXTENDER: &str = "scheduler-extender";
pub(super) const ANNOTATOR: &str = "annotator";
pub(super) const EXPORTER: &str = "node-exporter-plus";
pub(super) const PLUGIN: &str = "gpushare-device-plugin";
/// The stand-in for NVIDIA's library, which the plugins load.
const LIBRARY: &str = "libplimsoll_nvml_standin.so";
/// Lines of a dead program's log that its error shows.
const SHOWN_LINES: usize = 5;

/// Where the programs lie, and where their output goes.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    directory: PathBuf,
    logs: PathBuf,
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Programs {
    /// The programs in `directory`, by default this executable's. Each writes its output to a file in `logs`.
    ///
    /// # Errors
    /// When one is missing.
    pub(super) fn find(directory: Option<PathBuf>, logs: PathBuf) -> anyhow::Result<Self> {
        let directory = match directory {
            Some(directory) => directory,
            None => {
                let own = std::env::current_exe().context("cannot tell where this program is")?;
                own.parent().map(Path::to_path_buf).unwrap_or_default()
            }
        };
        for file in [EXTENDER, ANNOTATOR, EXPORTER, PLUGIN, LIBRARY] {
            let path = directory.join(file);
            ensure!(path.exists(), "{} is missing: `make demo` builds it", path.display());
        }
        Ok(Self { directory, logs })
    }

    /// The stand-in library's path.
    pub(super) fn library(&self) -> PathBuf {
        self.directory.join(LIBRARY)
    }

    /// Starts a program. `name` names it in errors, and its log `NAME.log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        &self,
        program: &str,
        name: &str,
        flags: &[String],
        env: &[(&str, &Path)],
    ) -> anyhow::Result<Program> {
        let log = self.logs.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        // The running executable, even where a newer build has replaced its file.
        let child = Command::new("/proc/self/exe")
            .arg("child")
            .arg(self.directory.join(program))
            .args(flags)
            .args(["--log-format", "text", "--log-level", "info"])
            .envs(env.iter().copied())
            // A proxy from the environment must not come between programs on one machine.
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            // In a process group of its own it does not get the terminal's Ctrl-C.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        Ok(Program { child, name: name.to_owned(), log })
    }
}

impl Program {
    /// Kills it with SIGKILL and waits for its end.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// # Errors
    /// When it has ended by itself. The error carries the last lines of its log.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        anyhow::bail!("{} ended by itself ({status}):\n{}", self.name, last.join("\n"))
    }
}
