//! Plimsoll's programs as processes: found, started, killed, and never left behind. Each is started
//! [on a leash](crate::leash), so that it ends even where this process is killed outright.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::process::{Child, Command};

/// The programs' names.
pub(crate) const EXTENDER: &str = "scheduler-extender";
pub(crate) const ANNOTATOR: &str = "annotator";
pub(crate) const EXPORTER: &str = "node-exporter-plus";
pub(crate) const PLUGIN: &str = "gpushare-device-plugin";
/// The stand-in for NVIDIA's library, which the plugins load.
const LIBRARY: &str = "libplimsoll_nvml_standin.so";

/// Where the programs lie.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    directory: PathBuf,
    logs: PathBuf,
}

/// One that runs; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    pub(crate) name: String,
    log: PathBuf,
}

impl Programs {
    /// The programs in `directory`, or beside this executable; `logs` takes their output.
    ///
    /// # Errors
    /// Where one is missing.
    pub(crate) fn find(directory: Option<PathBuf>, logs: PathBuf) -> anyhow::Result<Self> {
        let beside = || -> anyhow::Result<PathBuf> {
            let own = std::env::current_exe().context("cannot tell where this program lies")?;
            Ok(own.parent().map(Path::to_path_buf).unwrap_or_default())
        };
        let directory = directory.map_or_else(beside, Ok)?;
        for file in [EXTENDER, ANNOTATOR, EXPORTER, PLUGIN, LIBRARY] {
            let path = directory.join(file);
            ensure!(path.exists(), "{} is missing: `make demo` builds it", path.display());
        }
        Ok(Self { directory, logs })
    }

    /// The stand-in library.
    pub(crate) fn library(&self) -> PathBuf {
        self.directory.join(LIBRARY)
    }

    /// Starts a program under a name of its own.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(crate) fn start(
        &self,
        program: &str,
        name: &str,
        flags: &[String],
        env: &[(&str, &Path)],
    ) -> anyhow::Result<Program> {
        let log = self.logs.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        // This program itself, even where a newer build has taken its path meanwhile.
        let child = Command::new("/proc/self/exe")
            .arg("leashed")
            .arg(self.directory.join(program))
            .args(flags)
            .args(["--log-format", "text", "--log-level", "info"])
            .envs(env.iter().copied())
            // A proxy of the user's must not come between programs on one machine.
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            // A group of its own: Ctrl-C is for us alone, who then end it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        Ok(Program { child, name: name.to_owned(), log })
    }
}

impl Program {
    /// Kills it, as by `kill -9`, and waits for its end.
    ///
    /// # Errors
    /// Where the system does not let us.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// # Errors
    /// Where it has ended by itself; the error carries its last words.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        let last: Vec<&str> = lines.into_iter().rev().collect();
        anyhow::bail!("{} ended by itself ({status}):\n{}", self.name, last.join("\n"))
    }
}
