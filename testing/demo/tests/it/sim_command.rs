//! `plimsoll-demo sim`: how it starts and how it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Resets SIGHUP to its default, which these tests may have inherited as ignored from `nohup`.
const WITH_DEFAULT_HANGUP: [&str; 2] = ["env", "--default-signal=HUP"];

/// Starts it through another command, and waits until it has printed its instructions.
fn start_through(directory: &Path, wrapper: &[&str]) -> Child {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).args([env!("CARGO_BIN_EXE_plimsoll-demo"), "sim", "--nodes=1"]);
    command.env("TMPDIR", directory).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "Ctrl-C ends it."));
    child
}

/// Sends a signal and returns the exit status; `None` where the signal killed the process.
fn end_with(mut child: Child, signal: Signal) -> Option<i32> {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn no_signal_that_ends_it_leaves_files_behind() {
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
        let directory = tempfile::tempdir().unwrap();
        let child = start_through(directory.path(), &WITH_DEFAULT_HANGUP);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(end_with(child, signal), Some(0), "{signal:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{signal:?}");
    }
}

/// The signal mask of this name in `/proc/PID/status`.
fn mask(child: &Child, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

#[test]
fn a_closed_terminal_does_not_end_it_under_nohup() {
    let directory = tempfile::tempdir().unwrap();
    let hangup = 1 << (Signal::HUP.as_raw() - 1);
    let plain = start_through(directory.path(), &WITH_DEFAULT_HANGUP);
    assert_eq!((mask(&plain, "SigIgn:") & hangup, mask(&plain, "SigCgt:") & hangup), (0, hangup));
    assert_eq!(end_with(plain, Signal::TERM), Some(0));
    let lasting = start_through(directory.path(), &["nohup"]);
    let masks = (mask(&lasting, "SigIgn:") & hangup, mask(&lasting, "SigCgt:") & hangup);
    assert_eq!(masks, (hangup, 0));
    assert_eq!(end_with(lasting, Signal::TERM), Some(0));
}

#[test]
fn a_temporary_directory_that_is_too_long_for_sockets_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("d".repeat(60));
    fs::create_dir(&long).unwrap();
    for name in ["sim", "--fast"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-demo"));
        let output = command.arg(name).env("TMPDIR", &long).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let begin = format!("plimsoll-demo: {}/plimsoll-", long.display());
        let end = errors.len() - 1;
        assert!(errors.starts_with(&begin), "{errors}");
        let end_of_error = " is too long for sockets below it: set TMPDIR to a shorter one";
        assert!(errors[..end].ends_with(end_of_error), "{errors}");
        assert_eq!((output.status.code(), fs::read_dir(&long).unwrap().count()), (Some(1), 0));
    }
}
