//! Processes of kubectl. Each ends with its [`Running`], and with this process where a signal ends that.

use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failure::Failure;
use crate::format::printable_lines;

/// Between two looks at a kubectl that runs.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at one that is about to end.
const ENDING: Duration = Duration::from_millis(2);
/// The time in which one that has ended closes its standard error.
const CLOSING: Duration = Duration::from_secs(1);
/// What kubectl says is shown once it goes on for this long: a login may wait for what it tells its user to do. What it
/// says at its end is part of an error.
const WAITS: Duration = Duration::from_secs(3);
/// The time for a call that has said something, as a login that waits for its user.
const LOGIN: Duration = Duration::from_secs(600);
/// From when a terminal shows which call there is no answer to yet.
const SLOW: Duration = Duration::from_secs(10);

/// The processes that run, for the end of this one by a signal.
static RUNNING: Mutex<Vec<Arc<Mutex<Child>>>> = Mutex::new(Vec::new());

/// A kubectl that runs.
pub(crate) struct Running {
    child: Arc<Mutex<Child>>,
    said: Arc<Mutex<Said>>,
    /// Reads what it says; `None` where that goes to this command's own standard error.
    reader: Option<JoinHandle<()>>,
    /// What it is asked, in short.
    call: String,
    started: Instant,
    told_slow: bool,
}

/// What a process has written on its standard error.
#[derive(Default)]
struct Said {
    text: Vec<u8>,
    /// How much of it has been shown.
    shown: usize,
    /// When the first of what has not been shown came.
    since: Option<Instant>,
}

impl Running {
    /// Starts kubectl with these words.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub(super) fn start(command: &mut Command, words: &[&str]) -> Result<Self, Failure> {
        watch_signals();
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::NoKubectl,
            _ => Failure::Other(format!("cannot run kubectl: {error}")),
        })?;
        let stderr = child.stderr.take();
        let child = Arc::new(Mutex::new(child));
        all_running().push(Arc::clone(&child));
        let said = Arc::new(Mutex::new(Said::default()));
        let reader = stderr.map(|stderr| {
            let said = Arc::clone(&said);
            thread::spawn(move || read(stderr, &said))
        });
        let mut call = "kubectl".to_owned();
        for word in words.iter().filter(|word| !word.starts_with('-')).take(3) {
            call += &format!(" {word}");
        }
        Ok(Self { child, said, reader, call, started: Instant::now(), told_slow: false })
    }

    /// Its standard input, the first time.
    pub(super) fn stdin(&self) -> Option<ChildStdin> {
        locked(&self.child).stdin.take()
    }

    /// Its standard output, the first time.
    pub(crate) fn stdout(&self) -> Option<ChildStdout> {
        locked(&self.child).stdout.take()
    }

    /// How it has ended; `None` while it runs.
    pub(crate) fn ended(&self) -> io::Result<Option<ExitStatus>> {
        locked(&self.child).try_wait()
    }

    /// Waits until it ends.
    pub(crate) fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            thread::sleep(LOOK);
        }
    }

    /// How it ends, once it has closed its output.
    ///
    /// # Errors
    ///
    /// As for [`Running::still_waits`].
    pub(super) fn wait_shortly(&mut self, limit: Duration) -> Result<ExitStatus, Failure> {
        loop {
            match self.ended() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => self.still_waits(limit)?,
                Err(error) => return Err(Failure::Other(format!("{}: {error}", self.call))),
            }
            thread::sleep(ENDING);
        }
    }

    /// What is due while it is waited for: shows what it has said and waits for.
    ///
    /// # Errors
    ///
    /// If it has not answered within `limit`, or for long after it has said something. It is ended then.
    pub(super) fn still_waits(&mut self, limit: Duration) -> Result<(), Failure> {
        let waited = self.started.elapsed();
        let mut said = locked(&self.said);
        if said.since.is_some_and(|since| since.elapsed() >= WAITS) {
            let text = String::from_utf8_lossy(&said.text[said.shown..]).into_owned();
            let _ = io::stderr().write_all(printable_lines(&text).as_bytes());
            said.shown = said.text.len();
            said.since = None;
        }
        let has_said = !said.text.is_empty();
        drop(said);
        if waited >= if has_said { LOGIN } else { limit } {
            self.end();
            let mut what = format!("{}: no answer within {} s", self.call, waited.as_secs());
            match self.said().trim() {
                "" => {}
                said => what += &format!("; it said: {said}"),
            }
            return Err(Failure::Other(what));
        }
        if waited >= SLOW && !has_said && !self.told_slow && io::stderr().is_terminal() {
            self.told_slow = true;
            let _ = writeln!(io::stderr(), "{}: no answer yet", self.call);
        }
        Ok(())
    }

    /// All that it has said, once it has ended.
    pub(super) fn said(&self) -> String {
        if let Some(reader) = &self.reader {
            // A process that it has started may go on and keep it open.
            let ended = Instant::now();
            while !reader.is_finished() && ended.elapsed() < CLOSING {
                thread::sleep(ENDING);
            }
        }
        String::from_utf8_lossy(&locked(&self.said).text).into_owned()
    }

    /// Ends it.
    pub(super) fn end(&self) {
        let mut child = locked(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        all_running().retain(|child| !Arc::ptr_eq(child, &self.child));
    }
}

/// The standard input of a kubectl that is given none: the user's terminal, for a login that asks there.
pub(super) fn terminal_or_null() -> Stdio {
    if io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

/// Reads all that a process says, as it comes.
fn read(mut stderr: impl Read, said: &Mutex<Said>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut bytes) {
        let mut said = locked(said);
        said.text.extend_from_slice(&bytes[..count]);
        said.since = said.since.or_else(|| Some(Instant::now()));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all_running() -> MutexGuard<'static, Vec<Arc<Mutex<Child>>>> {
    locked(&RUNNING)
}

/// Ends all processes when a signal ends this one. Ctrl-C in a terminal reaches kubectl by itself.
fn watch_signals() {
    static WATCHED: Once = Once::new();
    #[cfg(unix)]
    WATCHED.call_once(|| {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
            return;
        };
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let all = all_running();
                // The locks are held until this process exits. Otherwise the main thread could see that kubectl has
                // ended, and report that as an error.
                let mut children: Vec<_> = all.iter().map(|child| locked(child)).collect();
                for child in &mut children {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                // As a shell tells of a process that a signal ended.
                std::process::exit(128 + signal);
            }
        });
    });
    #[cfg(not(unix))]
    WATCHED.call_once(|| {});
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_answer_is_ended_and_named() {
        let mut command = Command::new("sleep");
        let words = ["get", "--all-namespaces", "nodes"];
        let mut running = Running::start(command.arg("1000"), &words).unwrap();
        running.still_waits(Duration::MAX).unwrap();
        assert!(running.ended().unwrap().is_none());
        let error = running.still_waits(Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "kubectl get nodes: no answer within 0 s");
        assert!(running.ended().unwrap().is_some());
    }
}
