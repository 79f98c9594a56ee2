//! `plimsoll policy check`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::command::{PLIMSOLL, Run, assert_golden, run, run_as};

/// The policy that is shipped.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/policy.yaml")
}

/// A policy with a fault or two, made from lists of `spec`.
fn policy(spec: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let head = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\n";
    std::fs::write(&file, format!("{head}spec:\n{spec}")).unwrap();
    (folder, file)
}

/// Runs the check in the folder of the file, so that messages name no temporary path.
fn check(file: &Path, flags: &[&str]) -> Run {
    let folder = file.parent().unwrap();
    let command = format!("cd '{}' && exec \"$0\" policy check \"$@\"", folder.display());
    let args = ["-c", &command, PLIMSOLL, "policy.yaml"].into_iter().chain(flags.iter().copied());
    run_as(Path::new("/bin/sh"), args, "")
}

const UNFETCHED: &str = "  syncPolicy: [{name: cpu_usage_avg_5m, period: 90s}]
  predicate:
  - {name: mem_usage_avg_5m, maxLimitPecent: 0.65}
  priority:
  - {name: cpu_usage_avg_5m, weight: 1}
  - {name: fs_usage_active, weight: 2}
";

const FAULTY: &str = "  predicate:
  - {name: cpu_usage_avg_5m, maxLimitPecent: -1}
";

#[test]
fn the_shipped_policy_is_shown_as_a_table() {
    let run = run(["policy".as_ref(), "check".as_ref(), shipped().as_os_str()]);
    assert_golden("policy-shipped.txt", &run.success());
}

#[test]
fn the_shipped_policy_is_shown_as_json() {
    let run = run(["policy".as_ref(), "check".as_ref(), shipped().as_os_str(), "--json".as_ref()]);
    assert_golden("policy-shipped.json", &run.success());
}

#[test]
fn stdin_is_read_in_place_of_a_file() {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let run = run_as(Path::new(PLIMSOLL), ["policy", "check", "-"], &text);
    assert_golden("policy-shipped.txt", &run.success());
}

#[test]
fn warnings_go_to_stderr_and_leave_the_exit_status_at_0() {
    let (_folder, file) = policy(UNFETCHED);
    let run = check(&file, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_golden("policy-warnings.txt", &run.stdout);
    assert_golden("policy-warnings.stderr.txt", &run.stderr);
}

#[test]
fn warnings_are_errors_where_that_is_asked_for() {
    let (_folder, file) = policy(UNFETCHED);
    assert_eq!(check(&file, &["--warnings-as-errors"]).code, Some(1));
    let valid = run([
        "policy".as_ref(),
        "check".as_ref(),
        shipped().as_os_str(),
        "--warnings-as-errors".as_ref(),
    ]);
    assert_eq!(valid.code, Some(0));
}

#[test]
fn warnings_are_part_of_the_json() {
    let (_folder, file) = policy(UNFETCHED);
    assert_golden("policy-warnings.json", &check(&file, &["--json"]).success());
}

#[test]
fn a_faulty_policy_is_refused_with_line_and_field() {
    let (_folder, file) = policy(FAULTY);
    assert_golden("policy-faulty.stderr.txt", &check(&file, &[]).failure());
}

#[test]
fn a_faulty_policy_is_refused_in_json_too() {
    let (_folder, file) = policy(FAULTY);
    let run = check(&file, &["--json"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""));
    assert_golden("policy-faulty.json", &run.stdout);
}

#[test]
fn a_missing_file_is_named_once_with_its_cause() {
    let stderr = run(["policy", "check", "/nowhere/policy.yaml"]).failure();
    assert_eq!(stderr, "error: /nowhere/policy.yaml: No such file or directory (os error 2)\n");
}
