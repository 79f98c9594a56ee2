//! `plimsoll completion`: for shells, and for kubectl's own completion of `kubectl plimsoll`.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;

use crate::args::Args;
use crate::args::operate::{Completion, Shell};

/// kubectl runs the program `kubectl_complete-plimsoll` with the words after `kubectl plimsoll`, the last of them
/// unfinished, and reads one candidate a line and at the end `:4`, which means that no file names are to be added.
const KUBECTL: &str = r#"#!/bin/sh
# Completes `kubectl plimsoll`. Put it on the PATH as kubectl_complete-plimsoll, executable.
if command -v plimsoll >/dev/null; then exec plimsoll __complete "$@"; fi
exec kubectl-plimsoll __complete "$@"
"#;

/// Writes the completion.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn completion(flags: &Completion, output: &mut dyn Write) -> Result<()> {
    let shell = match flags.shell {
        Shell::Kubectl => {
            write!(output, "{KUBECTL}")?;
            return Ok(());
        }
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Powershell => clap_complete::Shell::PowerShell,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "plimsoll", &mut script);
    output.write_all(&script)?;
    Ok(())
}

/// Writes what the last of these words can be, for kubectl.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn candidates(words: &[String], output: &mut dyn Write) -> Result<()> {
    let mut command = Args::command();
    command.build();
    let (last, before) =
        words.split_last().map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let mut at = &command;
    let mut values = Vec::new();
    for (place, word) in before.iter().enumerate() {
        if let Some(next) = at.find_subcommand(word) {
            at = next;
        } else if place + 1 == before.len() {
            values = values_of(at, word);
        }
    }
    let candidates = if values.is_empty() { names(at, last) } else { values };
    for candidate in candidates.iter().filter(|it| it.starts_with(last)) {
        writeln!(output, "{candidate}")?;
    }
    Ok(writeln!(output, ":4")?)
}

/// The values of a flag, if it has only some.
fn values_of(command: &clap::Command, flag: &str) -> Vec<String> {
    let found = command.get_arguments().find(|argument| {
        let long = argument.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
        let short = argument.get_short().is_some_and(|short| flag == format!("-{short}"));
        (long || short) && argument.get_action().takes_values()
    });
    let values = found.map(clap::Arg::get_possible_values).unwrap_or_default();
    values.iter().map(|value| value.get_name().to_owned()).collect()
}

/// Its subcommands, or its flags behind a dash.
fn names(command: &clap::Command, last: &str) -> Vec<String> {
    let mut names = Vec::new();
    if last.starts_with('-') {
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            names.extend(flag.get_long().map(|long| format!("--{long}")));
        }
        return names;
    }
    for command in command.get_subcommands() {
        if !command.is_hide_set() && command.get_name() != "help" {
            names.push(command.get_name().to_owned());
        }
    }
    if names.is_empty() {
        for value in command.get_positionals().flat_map(clap::Arg::get_possible_values) {
            names.push(value.get_name().to_owned());
        }
    }
    names
}
