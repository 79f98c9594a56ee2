//! The whole demo: real programs, real sockets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Three demos at a time: each is twenty processes, which on few processors starve those of others.
static TURNS: [Mutex<()>; 3] = [const { Mutex::new(()) }; 3];

fn turn() -> MutexGuard<'static, ()> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % TURNS.len();
    // A test that has failed leaves nothing behind.
    TURNS[next].lock().unwrap_or_else(PoisonError::into_inner)
}

/// A demo that ends by itself. It keeps its files in `directory`, so that a failed run leaves nothing behind.
fn command(directory: &Path, flags: &[&str]) -> Command {
    let mut command = endless(directory);
    command.arg("--once").args(flags);
    command
}

/// A demo that goes on until it is ended.
fn endless(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-demo"));
    command.env("TMPDIR", directory).args(["--fast"]);
    // Empty, as `make demo SABOTAGE=` sets them.
    command.env("ONCE", "").env("SABOTAGE", "");
    command
}

fn demo(flags: &[&str]) -> Output {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    command(directory.path(), flags).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn last_line(output: &Output) -> Value {
    let text = text(output);
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output; {errors}"));
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

/// Runs it with one thing broken. Returns the counts of double-booked MiB, wrong GPUs and hot placements.
fn sabotaged(what: &str) -> (u64, u64, u64) {
    let output = demo(&["--sabotage", what]);
    let counts = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{counts}");
    (
        count(&counts, "double_booked_mib"),
        count(&counts, "card_mismatches"),
        count(&counts, "hot_node_placements"),
    )
}

fn count(counts: &Value, name: &str) -> u64 {
    counts[name].as_u64().unwrap()
}

/// Starts a demo and waits until its log contains a text. Returns it with the rest of its log.
fn start_until(mut command: Command, text: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut log = Vec::new();
    for line in lines.by_ref() {
        if line.contains(text) {
            return (child, lines);
        }
        log.push(line);
    }
    let (_, errors, code) = wait(child, lines);
    panic!("the demo ended with {code} before it wrote {text}: {errors}\n{}", log.join("\n"));
}

/// Waits for the end. Returns the rest of the log, stderr, and the exit status.
fn wait(mut child: Child, log: impl Iterator<Item = String>) -> (Vec<String>, String, i32) {
    let lines = log.collect();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    (lines, errors, child.wait().unwrap().code().unwrap())
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Command lines that contain the directory's path, by process id.
fn processes(directory: &Path) -> BTreeMap<i32, String> {
    let name = directory.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").unwrap();
    let lines = processes.filter_map(|entry| {
        // A process may end meanwhile.
        let entry = entry.ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        line.contains(&name).then_some((id, line))
    });
    lines.collect()
}

/// A directory with links to the programs, and `false` in place of the annotator.
fn with_a_broken_annotator(directory: &Path) -> PathBuf {
    let programs = directory.join("bin");
    std::fs::create_dir(&programs).unwrap();
    let real = Path::new(env!("CARGO_BIN_EXE_plimsoll-demo")).parent().unwrap();
    for name in [
        "scheduler-extender",
        "node-exporter-plus",
        "gpushare-device-plugin",
        "libplimsoll_nvml_standin.so",
    ] {
        std::os::unix::fs::symlink(real.join(name), programs.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/bin/false", programs.join("annotator")).unwrap();
    programs
}

#[test]
fn every_pod_that_fits_runs_on_its_gpu_and_on_no_overloaded_node() {
    let output = demo(&[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", last_line(&output));
    let expected = r#"{"pods":70,"bound":69,"running":69,"pending":1,"double_booked_mib":0,"card_mismatches":0,"hot_node_placements":0}"#;
    assert_eq!(text(&output).lines().last(), Some(expected));
    for expected in [
        "without Plimsoll cpu-2: overloaded",
        "agent-4   -> gpu-4: its DaemonSet's node",
        "1 with no such GPU; without Plimsoll gpu-1: no GPU fits",
        "cpu-4     is overloaded: ",
        "crane-1   -> ",
        "'s hot value is ",
        "cpu-5     is silent",
        "gpu-5     has no device plugin",
        "big-1     waits (20 GiB): 0/12 nodes are available",
        "Insufficient GPU Memory in one device: the node has no GPU of that size",
        "every invariant held",
    ] {
        assert!(text(&output).contains(expected), "not in the log: {expected}\n{}", text(&output));
    }
}

#[test]
fn a_runtime_that_hands_over_wrong_gpus_is_noticed() {
    // Where two containers see the same wrong GPU, that one's memory is promised twice, too.
    let (_, mismatches, hot) = sabotaged("card");
    assert!(mismatches > 0);
    assert_eq!(hot, 0);
}

#[test]
fn exporters_that_hide_an_overload_are_noticed() {
    let (double_booked, mismatches, hot) = sabotaged("hot");
    assert!(hot > 0);
    assert_eq!((double_booked, mismatches), (0, 0));
}

#[test]
fn a_pod_bound_past_the_ledger_is_noticed() {
    let (double_booked, mismatches, hot) = sabotaged("ledger");
    assert!(double_booked > 0);
    assert_eq!((mismatches, hot), (0, 0));
}

#[test]
fn an_interrupted_demo_reports_it_and_leaves_nothing_behind() {
    let _turn = turn();
    for signal in [Signal::INT, Signal::QUIT] {
        let directory = tempfile::tempdir().unwrap();
        let (child, log) = start_until(command(directory.path(), &[]), "Web pods");
        send(&child, signal);
        let (_, errors, code) = wait(child, log);
        assert_eq!(
            (errors.as_str(), code),
            ("plimsoll-demo: interrupted before the scenario had ended\n", 130)
        );
        assert_eq!(processes(directory.path()), BTreeMap::new());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_demo_that_goes_on_fails_once_a_program_has_died() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let (child, log) = start_until(endless(directory.path()), "pods come and go");
    let programs = processes(directory.path());
    let plugin = programs.iter().find(|(_, line)| line.contains("--node-name=gpu-3"));
    kill_process(Pid::from_raw(*plugin.unwrap().0).unwrap(), Signal::KILL).unwrap();
    let id = Pid::from_child(&child);
    // A demo that has not noticed by the eighth pod is ended here, and fails the test.
    let log = log.inspect(|line| {
        if line.contains("job-8 ") {
            kill_process(id, Signal::TERM).unwrap();
        }
    });
    let (lines, errors, code) = wait(child, log);
    assert!(errors.contains("gpushare-device-plugin-gpu-3 ended by itself (signal: 9"), "{errors}");
    assert!(lines.iter().any(|line| line == "  BAD not everything held: see above"), "{lines:?}");
    assert_eq!(code, 1);
}

#[test]
fn a_demo_whose_stdout_is_closed_ends_and_leaves_nothing_behind() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let (mut child, log) = start_until(endless(directory.path()), "Web pods");
    drop(log);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn programs_end_with_a_demo_that_is_killed_outright() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let (mut child, _log) = start_until(command(directory.path(), &[]), "Web pods");
    assert!(processes(directory.path()).len() > 6);
    send(&child, Signal::KILL);
    child.wait().unwrap();
    let start = Instant::now();
    while !processes(directory.path()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", processes(directory.path()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_that_dies_is_named_with_the_end_of_its_log() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let programs = with_a_broken_annotator(directory.path());
    for sabotage in [&[][..], &["--sabotage", "card"]] {
        let flags = [&["--programs", programs.to_str().unwrap()], sabotage].concat();
        let output = command(directory.path(), &flags).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("annotator ended by itself (exit status: 1)"), "{errors}");
        assert!(!text(&output).contains("noticed"), "{}", text(&output));
    }
}
