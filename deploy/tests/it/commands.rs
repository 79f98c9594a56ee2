//! The commands in the documents are ones that a shell and the chart take. Those of
//! `plimsoll` are tried in `cli/`, by the program itself.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::links::documents;
use crate::repository::read;

/// The blocks of a document that are for a shell, each with the number of its first line.
fn shell_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match &mut block {
            None if line.trim() == "```sh" => block = Some((number + 2, String::new())),
            None => (),
            Some(_) if line.trim() == "```" => blocks.extend(block.take()),
            Some((_, text)) => *text += &format!("{line}\n"),
        }
    }
    blocks
}

/// The words of each command in a document's code, a line that ends in `\` joined with the next, without comments.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for document in documents() {
        let joined = document.code().join("\n").replace("\\\n", " ");
        for line in joined.lines() {
            let line = line.split(" #").next().unwrap_or_default();
            for command in line.split([';', '|', '&']) {
                let words = command.split_whitespace().map(str::to_owned).collect();
                found.push((document.path.display().to_string(), words));
            }
        }
    }
    found
}

/// What bash says of a script that it cannot parse.
fn fault_of(script: &str) -> Option<String> {
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_block_for_a_shell_is_one_that_bash_parses() {
    let mut count = 0;
    for document in documents() {
        for (line, block) in shell_blocks(&document.text) {
            let fault = fault_of(&block);
            assert_eq!(fault, None, "{}, line {line}:\n{block}", document.path.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} blocks");
}

/// The values of others' charts in the documents have names that ours has not.
#[test]
fn every_value_that_helm_is_given_for_the_chart_is_in_its_schema() {
    let schema: serde_json::Value =
        serde_json::from_str(&read("deploy/chart/values.schema.json")).unwrap();
    let mut count = 0;
    for (document, words) in commands() {
        if !words.iter().any(|word| word == "deploy/chart") {
            continue;
        }
        let values = words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| &pair[1]);
        for name in values.filter_map(|value| value.split('=').next()) {
            let mut place = &schema;
            for part in name.split('.') {
                place = &place["properties"][part];
            }
            assert!(place.is_object(), "{document}: the chart has no value {name}");
            count += 1;
        }
    }
    assert!(count > 5, "{count} values");
}
