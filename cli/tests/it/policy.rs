//! `plimsoll policy check`, `convert` and `schema`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{PLIMSOLL, Run, assert_golden, run, run_as};

/// The policy that is shipped.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/policies/shipped.yaml")
}

/// Every field of our own kind.
fn full() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/placement/tests/golden/scheduling-policy.yaml")
}

/// The policy that crane ships.
fn crane() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/placement/tests/golden/crane-policy.yaml")
}

/// Runs `plimsoll policy` with a file.
fn policy_command(command: &str, file: &Path, flags: &[&str]) -> Run {
    let flags = flags.iter().map(OsStr::new);
    run(["policy".as_ref(), command.as_ref(), file.as_os_str()].into_iter().chain(flags))
}

/// A policy with a fault or two, made from lists of `spec`.
fn policy(spec: &str) -> (TempDir, PathBuf) {
    let head = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\n";
    written(&format!("{head}spec:\n{spec}"))
}

/// A file with this text.
fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).unwrap();
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
fn a_policy_is_shown_with_every_field_as_text_and_as_json() {
    for file in [shipped(), full(), crane()] {
        let text = policy_command("check", &file, &[]).stdout;
        let converted = policy_command("convert", &file, &[]).success();
        assert!(text.contains("  scoring:\n    model: "), "{text}");
        assert!(converted.ends_with(&text), "{text}\nis not what is converted\n{converted}");
        let json: Value =
            serde_json::from_str(&policy_command("check", &file, &["--json"]).stdout).unwrap();
        assert_eq!(json["valid"], true);
        let (_folder, copy) = written(&json["policy"].to_string());
        assert_eq!(policy_command("check", &copy, &[]).stdout, text);
    }
}

#[test]
fn stdin_is_read_in_place_of_a_file() {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let run = run_as(Path::new(PLIMSOLL), ["policy", "check", "-"], &text);
    assert_eq!(run.success(), policy_command("check", &shipped(), &[]).stdout);
}

#[test]
fn warnings_go_to_stderr_and_leave_the_exit_status_at_0() {
    let (_folder, file) = policy(UNFETCHED);
    let run = check(&file, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
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
    let json: Value = serde_json::from_str(&check(&file, &["--json"]).success()).unwrap();
    let warnings = json["warnings"].as_array().unwrap().iter();
    let lines: String =
        warnings.map(|warning| format!("Warning: {}\n", warning.as_str().unwrap())).collect();
    assert_eq!(lines, check(&file, &[]).stderr);
}

/// A metric that only exporters give, and one that each source gives.
const OF_EXPORTERS: &str =
    "  syncPolicy: [{name: cpu_steal_active, period: 1m}, {name: cpu_usage_avg_5m, period: 1m}]
  priority: [{name: cpu_steal_active, weight: 1}, {name: cpu_usage_avg_5m, weight: 1}]
";

#[test]
fn a_metric_that_the_source_cannot_give_is_a_warning() {
    let (folder, file) = policy(OF_EXPORTERS);
    for flags in [&[][..], &["--source=exporters"]] {
        assert_eq!(check(&file, flags).stderr, "");
    }
    for (flag, part) in [
        ("--source=metrics-server", "metrics-server cannot give"),
        ("--source=prometheus", "add one to --prometheus-queries-file"),
    ] {
        let text = check(&file, &[flag]).stderr;
        assert!(text.lines().count() == 1 && text.contains("`cpu_steal_active`"), "{text}");
        assert!(text.contains(part), "{text}");
    }
    let queries = r#"{"metrics": {"cpu_steal_active": "q", "cpu_usage_avg_5m": "q"}}"#;
    std::fs::write(folder.path().join("queries.json"), queries).unwrap();
    let own = ["--source=prometheus", "--prometheus-queries-file=queries.json"];
    assert_eq!(check(&file, &own).stderr, "");
}

#[test]
fn a_file_of_queries_that_is_faulty_or_of_no_use_is_an_error() {
    let (folder, file) = policy(OF_EXPORTERS);
    std::fs::write(folder.path().join("queries.json"), "{}").unwrap();
    let queries = "--prometheus-queries-file=queries.json";
    let of_no_use = check(&file, &["--source=metrics-server", queries]).failure();
    assert!(of_no_use.contains("--source prometheus alone"), "{of_no_use}");
    let faulty = check(&file, &["--source=prometheus", queries]).failure();
    assert!(faulty.contains("queries.json: expected {\"metrics\""), "{faulty}");
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

#[test]
fn what_exporters_serve_only_when_configured_is_said_beside_the_warnings() {
    assert_golden("policy-full.stderr.txt", &policy_command("check", &full(), &[]).stderr);
}

#[test]
fn a_policy_of_crane_is_converted_with_advice() {
    let converted = policy_command("convert", &crane(), &[]).success();
    assert_golden("policy-converted.yaml", &converted);
    let again = run_as(Path::new(PLIMSOLL), ["policy", "convert", "-"], &converted).success();
    let without_comments: Vec<_> = converted.lines().filter(|it| !it.starts_with('#')).collect();
    assert_eq!(again.lines().collect::<Vec<_>>(), without_comments);
}

#[test]
fn a_faulty_policy_is_not_converted() {
    let (_folder, file) = policy(FAULTY);
    let stderr = policy_command("convert", &file, &[]).failure();
    assert!(stderr.contains("line 5: spec.predicate[0].maxLimitPecent: expected"), "{stderr}");
}

#[test]
fn the_schema_is_the_one_that_is_kept() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/api/schema/scheduling-policy.schema.json");
    let kept = std::fs::read_to_string(kept).unwrap();
    assert_eq!(run(["policy", "schema"]).success(), kept);
}
