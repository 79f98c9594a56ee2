//! Calls of kubectl.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::running::{LOOK, Running, terminal_or_null};
use crate::args::access::Connection;

/// The time that kubectl waits for one answer of the API server.
const LIMIT: &str = "--request-timeout=20s";
/// The time for a call, in which kubectl may log in and ask for a list in several parts.
const CALL: Duration = Duration::from_secs(120);

/// kubectl, with the flags of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    flags: Vec<String>,
}

impl Kubectl {
    /// With the flags that its user gave.
    pub(crate) fn new(connection: &Connection) -> Self {
        let Connection { context, kubeconfig, as_user, as_groups } = connection;
        let mut flags = Vec::new();
        for (name, value) in [("context", context), ("kubeconfig", kubeconfig), ("as", as_user)] {
            flags.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        flags.extend(as_groups.iter().map(|group| format!("--as-group={group}")));
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
        let mut command = self.command(words);
        command.stdin(terminal_or_null());
        answer(&mut command, words, None)
    }

    /// What it writes, with this text on its standard input.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Result<String, Failure> {
        let mut command = self.command(words);
        command.stdin(Stdio::piped());
        answer(&mut command, words, Some(input.to_owned()))
    }

    /// A call that goes on, whose output is read as it comes. What it says goes to this command's standard error.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Running, Failure> {
        let mut command = self.command(words);
        command.stdin(terminal_or_null()).stdout(Stdio::piped());
        Running::start(&mut command, words)
    }

    /// The object or the list that `get` with these words answers.
    ///
    /// # Errors
    ///
    /// If it fails, or its answer is of another form.
    pub(crate) fn get<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T, Failure> {
        let words = [&["get"], words, &["--output=json"]].concat();
        parsed(&words, &self.run(&words)?)
    }

    /// As [`Kubectl::get`]; `None` if the answer is empty, as that of `--ignore-not-found` may be.
    ///
    /// # Errors
    ///
    /// If it fails, or its answer is of another form.
    pub(crate) fn get_if_there<T: DeserializeOwned>(
        &self,
        words: &[&str],
    ) -> Result<Option<T>, Failure> {
        let words = [&["get"], words, &["--output=json"]].concat();
        let answer = self.run(&words)?;
        if answer.trim().is_empty() { Ok(None) } else { parsed(&words, &answer).map(Some) }
    }
}

fn parsed<T: DeserializeOwned>(words: &[&str], answer: &str) -> Result<T, Failure> {
    serde_json::from_str(answer).map_err(|error| {
        Failure::Other(format!("kubectl {}: its answer is not read: {error}", words.join(" ")))
    })
}

/// What a call writes, within [`CALL`].
fn answer(command: &mut Command, words: &[&str], input: Option<String>) -> Result<String, Failure> {
    command.arg(LIMIT).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command, words)?;
    if let (Some(mut stdin), Some(input)) = (running.stdin(), input) {
        thread::spawn(move || {
            // A kubectl that ends before it has read everything says why.
            let _ = stdin.write_all(input.as_bytes());
        });
    }
    let (sender, written) = channel();
    if let Some(mut stdout) = running.stdout() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            let _ = sender.send(bytes);
        });
    }
    let bytes = loop {
        match written.recv_timeout(LOOK) {
            Ok(bytes) => break bytes,
            Err(RecvTimeoutError::Disconnected) => break Vec::new(),
            Err(RecvTimeoutError::Timeout) => running.still_waits(CALL)?,
        }
    };
    let status = running.wait_shortly(CALL)?;
    if !status.success() {
        return Err(Failure::of_message(&running.said()));
    }
    String::from_utf8(bytes).map_err(|_| Failure::Other("kubectl's answer is no text".to_owned()))
}
