//! The whole demo: real programs, real sockets. They must have been built, as `make test` does.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What a failed run leaves behind goes with `directory`.
fn command(directory: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("TMPDIR", directory).args(["demo", "--once", "--fast"]).args(flags);
    command.env_remove("ONCE").env_remove("SABOTAGE").env_remove("RECORD");
    command
}

fn demo(flags: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    command(directory.path(), flags).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn last_line(output: &Output) -> Value {
    let (text, words) = (text(output), String::from_utf8_lossy(&output.stderr));
    let last = text.lines().last().unwrap_or_else(|| panic!("no output; {words}"));
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}\n{words}"))
}

/// Runs it with one thing broken, and tells the counts of what must not be.
fn sabotaged(what: &str) -> (u64, u64, u64) {
    let output = demo(&["--sabotage", what]);
    let tally = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{tally}");
    let count = |name: &str| tally[name].as_u64().unwrap();
    (count("double_booked_mib"), count("card_mismatches"), count("hot_node_placements"))
}

/// A demo in whose log the word was read, and the rest of that.
fn begun(directory: &Path, word: &str) -> (Child, impl Sized) {
    let mut child =
        command(directory, &[]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines.by_ref().map(Result::unwrap).find(|line| line.contains(word));
    assert!(found.is_some(), "the demo ended before it said {word}");
    (child, lines)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Processes whose command lines name something in the directory.
fn processes(directory: &Path) -> Vec<String> {
    let name = directory.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").unwrap();
    let lines = processes.filter_map(|entry| {
        // One that ends meanwhile is none.
        let line = std::fs::read_to_string(entry.ok()?.path().join("cmdline")).ok()?;
        line.contains(&name).then_some(line)
    });
    lines.collect()
}

#[test]
fn every_pod_that_fits_runs_on_its_card_and_on_no_overloaded_node() {
    let output = demo(&[]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{words}", last_line(&output));
    let expected = r#"{"pods":65,"bound":64,"running":64,"pending":1,"double_booked_mib":0,"card_mismatches":0,"hot_node_placements":0}"#;
    assert_eq!(text(&output).lines().last(), Some(expected));
    for told in [
        "by default cpu-2: overloaded",
        "agent-4   -> gpu-4: its DaemonSet's node",
        "1 with no such card; by default gpu-1: no card fits",
        "cpu-4     is overloaded",
        "cpu-5     is silent",
        "gpu-5     has no device plugin",
        "big-1     waits (20 GiB): 0/12 nodes are available",
        "Insufficient GPU Memory in one device: asked 20 units",
        "every invariant held",
    ] {
        assert!(text(&output).contains(told), "not told: {told}\n{}", text(&output));
    }
}

#[test]
fn a_runtime_that_hands_over_wrong_cards_is_noticed() {
    let (double_booked, mismatches, hot) = sabotaged("card");
    assert!(mismatches > 0);
    assert_eq!((double_booked, hot), (0, 0));
}

#[test]
fn exporters_that_hide_an_overload_are_noticed() {
    let (double_booked, mismatches, hot) = sabotaged("hot");
    assert!(hot > 0);
    assert_eq!((double_booked, mismatches), (0, 0));
}

#[test]
fn a_binder_beside_the_ledger_is_noticed() {
    let (double_booked, mismatches, hot) = sabotaged("ledger");
    assert!(double_booked > 0);
    assert_eq!((mismatches, hot), (0, 0));
}

#[test]
fn a_demo_that_is_interrupted_says_so_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, _log) = begun(directory.path(), "Web pods");
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(processes(directory.path()), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn programs_end_with_a_demo_that_is_killed_outright() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, _log) = begun(directory.path(), "Web pods");
    assert!(processes(directory.path()).len() > 6);
    send(&child, Signal::KILL);
    child.wait().unwrap();
    let start = Instant::now();
    while !processes(directory.path()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", processes(directory.path()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_that_dies_is_named_with_its_last_words() {
    let directory = tempfile::tempdir().unwrap();
    let programs = directory.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    let real = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap();
    for name in [
        "scheduler-extender",
        "node-exporter-plus",
        "gpushare-device-plugin",
        "libplimsoll_nvml_standin.so",
    ] {
        std::os::unix::fs::symlink(real.join(name), programs.join(name)).unwrap();
    }
    // It knows none of the annotator's flags.
    std::os::unix::fs::symlink("/bin/false", programs.join("annotator")).unwrap();
    let flags = ["--programs", programs.to_str().unwrap()];
    let output = command(directory.path(), &flags).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("annotator ended by itself (exit status: 1)"), "{words}");
}
