//! A port-forward by kubectl, which ends with this process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::kubectl::Kubectl;

/// The time in which kubectl must have connected: a login that asks its user for something takes a while.
const CONNECTING: Duration = Duration::from_secs(60);
/// Between two looks at whether kubectl has ended.
const LOOK: Duration = Duration::from_millis(100);
/// What kubectl writes for each port.
const FORWARDING: &str = "Forwarding from 127.0.0.1:";

/// The port-forwards that run, for the end of the process by a signal.
static RUNNING: Mutex<Vec<Arc<Mutex<Child>>>> = Mutex::new(Vec::new());

/// Ports of a pod on this machine.
pub(crate) struct Forward {
    child: Arc<Mutex<Child>>,
    ports: Vec<u16>,
}

impl Forward {
    /// Forwards ports of a pod or of a Deployment to ports of 127.0.0.1: the first to `local` if that is given, the
    /// others to free ones. Waits until kubectl listens.
    ///
    /// # Errors
    ///
    /// If kubectl does not connect.
    pub(crate) fn open(
        kubectl: &Kubectl,
        namespace: &str,
        target: &str,
        ports: &[u16],
        local: Option<u16>,
    ) -> Result<Self, Failure> {
        let namespace = format!("--namespace={namespace}");
        let pairs: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(place, port)| match local.filter(|_| place == 0) {
                Some(local) => format!("{local}:{port}"),
                None => format!(":{port}"),
            })
            .collect();
        let mut words = vec!["port-forward", "--address=127.0.0.1", &namespace, target];
        words.extend(pairs.iter().map(String::as_str));
        let mut command = kubectl.command(&words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::NoKubectl,
            _ => Failure::Other(format!("cannot run kubectl: {error}")),
        })?;
        let lines = ports_of(child.stdout.take());
        let said = all_of(child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        end_with_the_process(&child);
        let mut forward = Self { child, ports: Vec::new() };
        let deadline = Instant::now() + CONNECTING;
        while forward.ports.len() < ports.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(port) => forward.ports.push(port),
                Err(_) if left.is_zero() => {
                    return Err(Failure::Other(format!(
                        "kubectl port-forward {target}: no connection within {} s",
                        CONNECTING.as_secs()
                    )));
                }
                Err(_) if Instant::now() >= deadline => {}
                // Its output has ended: it has failed.
                Err(_) => {
                    forward.end();
                    let said = said.recv().unwrap_or_default();
                    return Err(Failure::of_message(&said));
                }
            }
        }
        Ok(forward)
    }

    /// The ports on this machine, in the order in which they were asked for.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Waits until kubectl ends, as when the pod does.
    pub(crate) fn wait(&self) {
        loop {
            {
                let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
                if !matches!(child.try_wait(), Ok(None)) {
                    return;
                }
            }
            thread::sleep(LOOK);
        }
    }

    fn end(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.end();
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|child| !Arc::ptr_eq(child, &self.child));
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

/// All that it says until it ends.
fn all_of(stderr: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, said) = channel();
    if let Some(mut stderr) = stderr {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        });
    }
    said
}

/// Ends the port-forward when a signal ends this process. Ctrl-C in a terminal reaches kubectl by itself.
fn end_with_the_process(child: &Arc<Mutex<Child>>) {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let first = running.is_empty();
    running.push(Arc::clone(child));
    drop(running);
    #[cfg(unix)]
    if first {
        watch_signals();
    }
    #[cfg(not(unix))]
    let _ = first;
}

#[cfg(unix)]
fn watch_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
        return;
    };
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            for child in running.iter() {
                let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = child.kill();
                let _ = child.wait();
            }
            // As a shell tells of a process that a signal ended.
            std::process::exit(128 + signal);
        }
    });
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
