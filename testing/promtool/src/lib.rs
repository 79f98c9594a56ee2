//! Prometheus's own check of a page of metrics, for tests: `promtool check metrics`.
//!
//! Debian's package `prometheus` has promtool. Tests that need it are ignored by `make test` and run by `make oracle`.
#![allow(clippy::panic, clippy::expect_used)] // For tests: a failure is a panic.

use std::io::Write;
use std::process::{Command, Stdio};

/// Checks a page in the text format: its syntax, and the names, types and help texts of its metrics.
///
/// # Panics
/// When promtool finds a fault, or is not there.
pub fn check(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is needed: scripts/require-prometheus.sh installs it");
    let mut input = promtool.stdin.take().expect("stdin is piped");
    input.write_all(page.as_bytes()).expect("promtool reads the page");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "promtool check metrics:\n{said}\n{page}");
}
