//! The embedded cluster as a process: how it begins and how it ends.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// As from a terminal, even where these tests run under nohup.
const PLAINLY: [&str; 2] = ["env", "--default-signal=HUP"];

/// Started by way of another program, and ready: it has told what to try.
fn started(directory: &Path, by: &[&str]) -> Child {
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).args([env!("CARGO_BIN_EXE_plimsoll-demo"), "sim", "--nodes=1"]);
    command.env("TMPDIR", directory).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "Ctrl-C ends it."));
    child
}

/// Its exit status after the signal; `None` where the signal itself has ended it.
fn ended(mut child: Child, signal: Signal) -> Option<i32> {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn whatever_ends_it_nothing_is_left_behind() {
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
        let directory = tempfile::tempdir().unwrap();
        let child = started(directory.path(), &PLAINLY);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(ended(child, signal), Some(0), "{signal:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{signal:?}");
    }
}

/// The mask of `/proc/PID/status` under this name.
fn mask(child: &Child, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

#[test]
fn a_closed_terminal_does_not_end_it_under_nohup() {
    let directory = tempfile::tempdir().unwrap();
    let hangup = 1 << (Signal::HUP.as_raw() - 1);
    let plain = started(directory.path(), &PLAINLY);
    assert_eq!((mask(&plain, "SigIgn:") & hangup, mask(&plain, "SigCgt:") & hangup), (0, hangup));
    assert_eq!(ended(plain, Signal::TERM), Some(0));
    let lasting = started(directory.path(), &["nohup"]);
    let masks = (mask(&lasting, "SigIgn:") & hangup, mask(&lasting, "SigCgt:") & hangup);
    assert_eq!(masks, (hangup, 0));
    assert_eq!(ended(lasting, Signal::TERM), Some(0));
}

#[test]
fn a_temporary_directory_that_is_too_long_for_sockets_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("d".repeat(60));
    fs::create_dir(&long).unwrap();
    for name in ["sim", "--fast"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-demo"));
        let output = command.arg(name).env("TMPDIR", &long).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        let (begin, end) =
            (format!("plimsoll-demo: {}/plimsoll-", long.display()), words.len() - 1);
        assert!(words.starts_with(&begin), "{words}");
        let told = " is too long for sockets below it: set TMPDIR to a shorter one";
        assert!(words[..end].ends_with(told), "{words}");
        assert_eq!((output.status.code(), fs::read_dir(&long).unwrap().count()), (Some(1), 0));
    }
}
