//! `plimsoll policy diff`, against a server that gives a fixed answer.

use serde_json::Value;

use crate::command::{assert_golden, json, run};
use crate::server::extender;

/// The extender's answer, as the crate that owns it keeps it.
const ANSWER: &str = include_str!("../../../crates/api/tests/golden/shadow.json");

#[test]
fn pods_that_would_have_gone_elsewhere_come_first_and_are_counted() {
    let mut answer: Value = serde_json::from_str(ANSWER).unwrap();
    answer["pods"].as_array_mut().unwrap().reverse();
    let (url, server) = extender("200 OK", &answer.to_string());
    assert_golden("diff.txt", &run(["policy", "diff", "--extender", &url]).success());
    assert_eq!(server.join().unwrap(), "GET /shadow HTTP/1.1");
}

#[test]
fn an_hour_without_pods_is_no_error() {
    let (url, _server) = extender("200 OK", r#"{"time":"2026-11-20T09:10:00Z","pods":[]}"#);
    let written = run(["policy", "diff", "--extender", &url]).success();
    assert!(written.starts_with("0 pods in the last hour"), "{written}");
}

#[test]
fn json_is_the_extenders_answer() {
    let (url, _server) = extender("200 OK", ANSWER);
    let written = run(["policy", "diff", "--json", "--extender", &url]).success();
    assert_eq!(json(&written), json(ANSWER));
}

#[test]
fn an_extender_without_a_shadow_policy_is_an_error_that_names_the_flag() {
    let (url, _server) = extender("404 Not Found", r#""start it with --shadow-policy-file""#);
    let stderr = run(["policy", "diff", "--extender", &url]).failure();
    assert_eq!(stderr, "error: start it with --shadow-policy-file\n");
}
