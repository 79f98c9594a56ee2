//! `plimsoll inspect`, against a server that gives a fixed answer.

use std::process::{Command, Stdio};

use crate::command::{PLIMSOLL, assert_golden, json, run};
use crate::server::extender;

/// The extender's answer, as the crate that owns it keeps it.
const ANSWER: &str = include_str!("../../../crates/api/tests/golden/inspect.json");

#[test]
fn cards_and_their_pods_are_shown_as_a_table() {
    let (url, server) = extender("200 OK", ANSWER);
    assert_golden("inspect.txt", &run(["inspect", "--extender", &url]).success());
    assert_eq!(server.join().unwrap(), "GET /gpushare-scheduler/inspect HTTP/1.1");
}

#[test]
fn json_is_the_extenders_answer() {
    let (url, _server) = extender("200 OK", ANSWER);
    let written = run(["inspect", "--json", "--extender", &url]).success();
    assert_eq!(json(&written), json(ANSWER));
}

#[test]
fn one_node_is_asked_for_by_name() {
    let (url, server) = extender("200 OK", ANSWER);
    run(["inspect", "node-a", "--extender", &format!("{url}/")]).success();
    assert_eq!(server.join().unwrap(), "GET /gpushare-scheduler/inspect/node-a HTTP/1.1");
}

#[test]
fn a_node_without_cards_is_an_error() {
    let (url, _server) =
        extender("200 OK", r#"{"nodes":[],"error":"node node-z reports no GPU cards"}"#);
    let stderr = run(["inspect", "node-z", "--extender", &url]).failure();
    assert_eq!(stderr, "error: node node-z reports no GPU cards\n");
}

#[test]
fn a_cluster_without_cards_is_no_error() {
    let (url, _server) = extender("200 OK", r#"{"nodes":[]}"#);
    assert_eq!(run(["inspect", "--extender", &url]).success(), "No node reports cards.\n");
}

#[test]
fn an_extender_that_does_not_answer_is_an_error_that_says_what_to_check() {
    // Below the ports that the kernel gives out.
    let url = "http://127.0.0.1:1";
    let stderr = run(["inspect", "--extender", url]).failure();
    assert!(stderr.contains(url) && stderr.contains("refused"), "{stderr}");
    assert!(stderr.contains("plimsoll inspect --help"), "{stderr}");
}

#[test]
fn other_answers_are_errors() {
    for (status, body, cause) in [
        ("404 Not Found", "", "404"),
        ("200 OK", "<html>", "not the extender's answer"),
        ("200 OK", r#"{"nodes":[{}]}"#, "not the extender's answer"),
    ] {
        let (url, _server) = extender(status, body);
        let stderr = run(["inspect", "--extender", &url]).failure();
        assert!(stderr.contains(&url) && stderr.contains(cause), "{stderr}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let pods = r#"{"name":"p","namespace":"n","usedGPU":1},"#.repeat(20_000);
    let body = format!(
        r#"{{"nodes":[{{"name":"a","totalGPU":1,"usedGPU":1,"devs":[{{"id":0,"totalGPU":1,"usedGPU":1,"pods":[{}]}}]}}]}}"#,
        pods.trim_end_matches(',')
    );
    for flags in [&["inspect"][..], &["inspect", "--json"]] {
        let (url, server) = extender("200 OK", &body);
        let mut child = Command::new(PLIMSOLL)
            .args(flags)
            .args(["--extender", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        server.join().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    }
}
