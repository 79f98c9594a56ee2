//! Calls of kubectl.

use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

use serde::de::DeserializeOwned;

use super::failure::Failure;
use crate::args::access::Connection;

/// The time that kubectl waits for one answer of the API server.
const LIMIT: &str = "--request-timeout=20s";

/// kubectl, with the flags of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    flags: Vec<String>,
}

impl Kubectl {
    /// With the flags that its user gave.
    pub(crate) fn new(connection: &Connection) -> Self {
        let single = [
            ("context", &connection.context),
            ("kubeconfig", &connection.kubeconfig),
            ("as", &connection.as_user),
        ];
        let mut flags = Vec::new();
        for (name, value) in single {
            if let Some(value) = value {
                flags.push(format!("--{name}={value}"));
            }
        }
        for group in &connection.as_groups {
            flags.push(format!("--as-group={group}"));
        }
        Self { flags }
    }

    /// A call that is not started yet, without a time limit.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(words).args(&self.flags);
        command
    }

    /// What it writes.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let output = self.command(words).arg(LIMIT).stdin(Stdio::null()).output();
        text(output.map_err(|error| not_run(&error))?)
    }

    /// What it writes, with this text on its standard input.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Result<String, Failure> {
        let mut command = self.command(words);
        command.arg(LIMIT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| not_run(&error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that ends before it has read everything says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        text(child.wait_with_output().map_err(|error| not_run(&error))?)
    }

    /// The object or the list that `get` with these words answers.
    ///
    /// # Errors
    ///
    /// If it fails, or its answer is of another form.
    pub(crate) fn get<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T, Failure> {
        let words = [&["get"], words, &["--output=json"]].concat();
        let answer = self.run(&words)?;
        serde_json::from_str(&answer).map_err(|error| {
            Failure::Other(format!("kubectl {}: its answer is not read: {error}", words.join(" ")))
        })
    }
}

fn not_run(error: &std::io::Error) -> Failure {
    if error.kind() == ErrorKind::NotFound {
        Failure::NoKubectl
    } else {
        Failure::Other(format!("cannot run kubectl: {error}"))
    }
}

fn text(output: Output) -> Result<String, Failure> {
    if !output.status.success() {
        return Err(Failure::of_message(&String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| Failure::Other("kubectl's answer is no text".to_owned()))
}
