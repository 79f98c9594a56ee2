//! The whole demo: real programs, real sockets. They must have been built, as `make test` does.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(flags: &[&str]) -> Output {
    // What a failed run leaves behind goes with the test.
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("TMPDIR", directory.path());
    command.args(["demo", "--once", "--fast"]).args(flags);
    command.env_remove("ONCE").env_remove("SABOTAGE").env_remove("RECORD").output().unwrap()
}

fn last_line(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output; {words}"));
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}\n{words}"))
}

/// Runs it with one thing broken, and tells the counts of what must not be.
fn sabotaged(what: &str) -> (u64, u64, u64) {
    let output = demo(&["--sabotage", what]);
    let tally = last_line(&output);
    assert!(!output.status.success(), "{tally}");
    let count = |name: &str| tally[name].as_u64().unwrap();
    (count("double_booked_mib"), count("card_mismatches"), count("hot_node_placements"))
}

#[test]
fn every_pod_that_fits_runs_on_its_card_and_on_no_overloaded_node() {
    let output = demo(&[]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{words}", last_line(&output));
    let expected = r#"{"pods":55,"bound":54,"running":54,"pending":1,"double_booked_mib":0,"card_mismatches":0,"hot_node_placements":0}"#;
    assert_eq!(last_line(&output), serde_json::from_str::<Value>(expected).unwrap());
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
