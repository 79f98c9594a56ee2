//! Owns how other programs are run: a failure always carries the command line and the end of what it printed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How many lines of a failed command's output are worth showing.
const SHOWN_LINES: usize = 25;

/// A command with no standard input, so that nothing ever waits for a person.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// A command from one line of words without spaces inside them.
pub fn words(line: &str) -> Command {
    let mut parts = line.split_whitespace();
    let mut command = command(parts.next().unwrap_or_default());
    command.args(parts);
    command
}

/// Runs to the end and returns what was printed on standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}\n{}", shown(command), output.status, last_lines(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs each line of `script` as a command, in order; empty lines are skipped.
pub fn run_lines(script: &str) -> Result<()> {
    let lines = script.lines().filter(|line| !line.trim().is_empty());
    for line in lines {
        run(&mut words(line))?;
    }
    Ok(())
}

/// Starts in the background, its output appended to `log`, in a session of its own so that it outlives this program.
pub fn start(command: &mut Command, log: &Path) -> Result<()> {
    let log = append(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    Ok(())
}

/// Opens a file for appending, creating it first where it is missing.
pub fn append(path: &Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Asks `probe` ten times a second until it answers, at most for `limit`.
///
/// An error of the probe counts as "not yet" and is shown if the time runs out.
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
            let late = anyhow::anyhow!("waited {limit:?} in vain for {what}");
            return Err(error.map_or(late, |error| {
                error.context(format!("waited {limit:?} in vain for {what}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_shows_what_it_said() {
        let error = run(command("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("exit status: 3") && text.contains("why"),
            "{text}"
        );
    }

    #[test]
    fn waiting_in_vain_tells_what_was_awaited_and_the_last_error() {
        let error = wait_for::<()>("the moon", Duration::ZERO, || bail!("cloudy")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("the moon") && text.contains("cloudy"), "{text}");
    }
}
