//! `plimsoll taints`, with a kubectl that answers from files.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::programs::write_script;

use crate::command::{PLIMSOLL, Run, text};

const KEY: &str = "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot";

/// Writes down its words, and answers the lists one after the other; the last is repeated.
const KUBECTL: &str = r#"#!/bin/sh
cd "${0%/*}"
echo "$@" >> calls
case $1 in
get) list=$(ls list-* | head -1); cat "$list"; [ "$(ls list-* | wc -l)" = 1 ] || rm "$list" ;;
patch) [ ! -e refuses ] || { echo "the test operation failed" >&2; exit 1; } ;;
esac
"#;

fn ours(key: &str) -> Value {
    json!({"key": key, "value": "plimsoll-hot", "effect": "NoSchedule"})
}

fn list(nodes: &[(&str, &[Value])]) -> Value {
    json!({ "items": nodes.iter().map(|(name, taints)| node(name, taints)).collect::<Vec<_>>() })
}

fn node(name: &str, taints: &[Value]) -> Value {
    if taints.is_empty() {
        json!({"metadata": {"name": name}, "spec": {}})
    } else {
        json!({"metadata": {"name": name}, "spec": {"taints": taints}})
    }
}

/// A folder with the kubectl and these answers.
fn world(lists: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_script(&folder.path().join("kubectl"), KUBECTL);
    for (number, list) in lists.iter().enumerate() {
        fs::write(folder.path().join(format!("list-{number}")), list.to_string()).unwrap();
    }
    folder
}

fn run(folder: &Path, args: &[&str]) -> Run {
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let output = Command::new(PLIMSOLL).arg("taints").args(args).env("PATH", path).output();
    let output = output.unwrap();
    Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

/// What kubectl was asked, each time with a time limit.
fn calls(folder: &Path) -> String {
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    let without_limit =
        calls.lines().map(|line| line.strip_suffix(" --request-timeout=20s").unwrap());
    without_limit.map(|line| format!("{line}\n")).collect()
}

#[test]
fn only_the_annotators_taints_are_shown_under_whatever_key() {
    let other = json!({"key": "team", "value": "a", "effect": "NoSchedule"});
    let folder = world(&[list(&[
        ("a", &[other.clone(), ours(KEY)]),
        ("b", &[other]),
        ("c", &[]),
        ("longer", &[ours("example.com/old")]),
    ])]);
    let shown = run(folder.path(), &[]).success();
    let expected = format!(
        "NODE     KEY{0}   EFFECT\na        {KEY}   NoSchedule\nlonger   example.com/old{1}   NoSchedule\n",
        " ".repeat(KEY.len() - 3),
        " ".repeat(KEY.len() - 15),
    );
    assert_eq!(shown, expected);
    assert_eq!(calls(folder.path()), "get nodes --output=json\n");
}

#[test]
fn they_are_written_for_programs_too() {
    let world = || world(&[list(&[("a", &[ours(KEY)])])]);
    let written = run(world().path(), &["-o", "json"]).success();
    let expected = json!([{"node": "a", "key": KEY, "effect": "NoSchedule"}]);
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), expected);
    assert_eq!(run(world().path(), &["-o", "name"]).success(), "node/a\n");
    assert_eq!(run(world().path(), &["--clear", "-o", "json"]).code, Some(2));
}

#[test]
fn they_are_cleared_by_patches_that_touch_nothing_else() {
    let other = json!({"key": "team", "effect": "NoSchedule"});
    let folder = world(&[list(&[("a", &[other.clone(), ours(KEY)])]), list(&[("a", &[other])])]);
    assert_eq!(run(folder.path(), &["--clear"]).success(), "a cleared\n");
    let patch = json!([
        {"op": "test", "path": "/spec/taints/1", "value": ours(KEY)},
        {"op": "remove", "path": "/spec/taints/1"},
    ]);
    let expected = format!(
        "get nodes --output=json\npatch node a --type=json --patch={patch}\nget nodes --output=json\n"
    );
    assert_eq!(calls(folder.path()), expected);
}

#[test]
fn a_taint_that_comes_back_is_an_error_that_names_the_node() {
    let folder = world(&[list(&[("a", &[ours(KEY)])])]);
    fs::write(folder.path().join("refuses"), "").unwrap();
    let error = run(folder.path(), &["--clear"]).failure();
    assert!(error.contains("still tainted: a; does an annotator"), "{error}");
    assert!(error.contains("kubectl patch node: the test operation failed"), "{error}");
}

#[test]
fn without_such_a_taint_there_is_nothing_to_do() {
    let folder = world(&[list(&[("a", &[])])]);
    let said = "No node carries a taint for its load.\n";
    assert_eq!(run(folder.path(), &["--clear"]).success(), said);
}
