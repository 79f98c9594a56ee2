//! A port-forward by kubectl, which ends with this process.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::failure::Failure;
use super::kubectl::Kubectl;
use super::running::{LOOK, Running, terminal_or_null};

/// The time in which kubectl must have connected.
const CONNECTING: Duration = Duration::from_secs(60);
/// What kubectl writes for each port.
const FORWARDING: &str = "Forwarding from 127.0.0.1:";

/// Ports of a pod on this machine.
pub(crate) struct Forward {
    running: Running,
    ports: Vec<u16>,
}

impl Forward {
    /// Forwards ports of a pod or of a Deployment to free ports of 127.0.0.1. Waits until kubectl listens.
    ///
    /// # Errors
    ///
    /// If kubectl does not connect.
    pub(crate) fn open(
        kubectl: &Kubectl,
        namespace: &str,
        target: &str,
        ports: &[u16],
    ) -> Result<Self, Failure> {
        let namespace = format!("--namespace={namespace}");
        let pairs: Vec<String> = ports.iter().map(|port| format!(":{port}")).collect();
        let mut words = vec!["port-forward", "--address=127.0.0.1", &namespace, target];
        words.extend(pairs.iter().map(String::as_str));
        let mut command = kubectl.command(&words);
        command.stdin(terminal_or_null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::start(&mut command, &["port-forward", target])?;
        let lines = ports_of(running.stdout());
        let mut found = Vec::new();
        while found.len() < ports.len() {
            match lines.recv_timeout(LOOK) {
                Ok(port) => found.push(port),
                Err(RecvTimeoutError::Timeout) => running.still_waits(CONNECTING)?,
                // Its output has ended: it has failed.
                Err(RecvTimeoutError::Disconnected) => {
                    running.end();
                    return Err(Failure::of_message(&running.said()));
                }
            }
        }
        Ok(Self { running, ports: found })
    }

    /// The ports on this machine, in the order in which they were asked for.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Waits until kubectl ends, as when the pod does.
    pub(crate) fn wait(&self) {
        let _ = self.running.wait();
    }
}

/// The ports that kubectl says it listens on, as they come. What it says later is read and dropped, or it would wait.
fn ports_of(stdout: Option<impl Read + Send + 'static>) -> Receiver<u16> {
    let (sender, ports) = channel();
    if let Some(stdout) = stdout {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(port) = port_of(&line) {
                    let _ = sender.send(port);
                }
            }
        });
    }
    ports
}

/// The local port of `Forwarding from 127.0.0.1:41234 -> 19107`.
fn port_of(line: &str) -> Option<u16> {
    line.strip_prefix(FORWARDING)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_kubectls_line_and_from_no_other() {
        assert_eq!(port_of("Forwarding from 127.0.0.1:41234 -> 19107"), Some(41234));
        for other in ["Forwarding from [::1]:41234 -> 19107", "Handling connection for 41234", ""] {
            assert_eq!(port_of(other), None, "{other}");
        }
    }
}
