//! The commands in the documents are ones that a shell, the Makefile, the scripts and the chart take. Those of
//! `plimsoll` are tried in `cli/`, by the program itself.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::links::documents;
use crate::repository::{read, root};

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

#[test]
fn a_block_that_bash_does_not_parse_is_a_fault() {
    let text = "a\n```sh\nif true\n```\n```yaml\nb: 1\n```\n";
    let blocks = shell_blocks(text);
    assert_eq!(blocks, [(3, "if true\n".to_owned())]);
    assert!(fault_of(&blocks[0].1).is_some());
}

#[test]
fn every_variable_of_make_is_one_that_the_makefile_or_a_script_of_it_reads() {
    let scripts = std::fs::read_dir(root().join("scripts")).unwrap();
    let scripts: String =
        scripts.map(|script| std::fs::read_to_string(script.unwrap().path()).unwrap()).collect();
    let known = read("Makefile") + &scripts;
    let mut count = 0;
    for (document, words) in commands() {
        if words.first().is_none_or(|word| word != "make") {
            continue;
        }
        // What stands in quotes is a value.
        let mut quotes = 0;
        let outside = words.iter().filter(|word| {
            let is_outside = quotes % 2 == 0;
            quotes += word.matches('"').count();
            is_outside
        });
        for variable in outside.filter_map(|word| word.split_once('=')).map(|(name, _)| name) {
            let uses = [format!("{variable}="), format!("${{{variable}"), format!("$({variable}")];
            assert!(uses.iter().any(|used| known.contains(used)), "{document}: {words:?}");
            count += 1;
        }
    }
    assert!(count > 5, "{count} variables");
}

/// The number of the first of these lines that begins so.
fn line_of(script: &[String], start: &str) -> Option<usize> {
    script.iter().position(|line| line.trim_start().starts_with(start))
}

#[test]
fn a_document_that_builds_the_command_makes_it_a_kubectl_plugin_before_it_runs_it_as_one() {
    let mut count = 0;
    for document in documents() {
        let lines: Vec<String> = shell_blocks(&document.text)
            .iter()
            .flat_map(|(_, block)| block.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let builds = lines.iter().any(|line| line.contains("--package plimsoll-cli"));
        let Some(used) = line_of(&lines, "kubectl plimsoll").filter(|_| builds) else { continue };
        let linked = lines
            .iter()
            .position(|line| line.contains("ln -s") && line.contains("kubectl-plimsoll"));
        let path = document.path.display();
        assert!(linked.is_some_and(|at| at < used), "{path}: `kubectl plimsoll` is not there");
        count += 1;
    }
    assert!(count > 0, "no document does so");
}

#[test]
fn each_way_of_the_quick_start_makes_the_namespace_in_its_cluster_before_it_is_used() {
    let text = read("docs/quick-start.md");
    let mut count = 0;
    for section in text.split("\n## ") {
        let lines: Vec<String> = shell_blocks(section)
            .iter()
            .flat_map(|(_, block)| block.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let made = line_of(&lines, "kubectl create namespace plimsoll");
        let title = section.lines().next().unwrap_or_default();
        let Some(installed) = line_of(&lines, "helm install") else {
            assert_eq!(made, None, "{title}");
            continue;
        };
        let made = made.unwrap_or_else(|| panic!("{title}: no namespace"));
        assert!(made < installed, "{title}");
        let certificates = line_of(&lines, "plimsoll scheduler certificates");
        assert!(certificates.is_none_or(|at| made < at), "{title}: certificates");
        assert!(line_of(&lines, "kind create cluster").is_none_or(|at| at < made), "{title}: kind");
        count += 1;
    }
    assert_eq!(count, 3);
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
