//! Owns how other programs are run. The error of a failed one holds its command line and the end of its output.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The number of lines of a failed command's output in an error.
const SHOWN_LINES: usize = 25;

/// A command without standard input, so that it cannot wait for any.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// A command from one line of arguments that hold no spaces.
pub fn words(line: &str) -> Command {
    let mut parts = line.split_whitespace();
    let mut command = command(parts.next().unwrap_or_default());
    command.args(parts);
    command
}

/// Runs a command to its end and returns its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}\n{}", shown(command), output.status, last_lines(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs each line of `script` as a command, in order. Empty lines are skipped.
pub fn run_lines(script: &str) -> Result<()> {
    let lines = script.lines().filter(|line| !line.trim().is_empty());
    for line in lines {
        run(&mut words(line))?;
    }
    Ok(())
}

/// Starts a command in the background and appends its output to `log`.
pub fn start(command: &mut Command, log: &Path) -> Result<()> {
    let log = append(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    Ok(())
}

/// Opens a file for appending. It is created if it is missing.
pub fn append(path: &Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Creates the folder, and waits until no other process has it locked. It stays locked while the file lives.
pub fn locked(folder: &Path) -> Result<std::fs::File> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = append(&folder.join(".lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Calls `probe` ten times a second until it returns a value, at most for `limit`.
///
/// An error of the probe means "not yet"; the last one is part of the error after `limit`.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let error = match probe() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() > end {
            let late = anyhow::anyhow!("timed out after {limit:?} waiting for {what}");
            return Err(error.map_or(late, |error| {
                error.context(format!("timed out after {limit:?} waiting for {what}"))
            }));
        }
        sleep(Duration::from_millis(100));
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    format!("`{}`", words.join(" "))
}

fn last_lines(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let all = String::from_utf8_lossy(&all);
    let lines: Vec<&str> = all.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
