//! docs/monitoring.md and docs/troubleshoot.md have every event; a line of a log about one pod has the pod's fields.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::documents::{cells, symptoms};
use crate::repository::{read, root};

/// The folders of the programs and libraries whose logs are read.
const CRATES: [&str; 5] =
    ["annotator", "crates", "gpushare-device-plugin", "node-exporter-plus", "scheduler-extender"];

/// The fields of a line about one pod.
const FIELDS: [&str; 3] = ["uid", "namespace", "pod"];

/// What the text of a line about one pod has; in braces what becomes a part of it.
const ABOUT_A_POD: [&str; 4] = ["pod", "container", "{refusal}", "{finding}"];

/// The beginnings of texts that have such a word and are about no certain pod.
const ABOUT_NONE: [&str; 5] = [
    "a few units are offered, to see whether the next pod has a claim",
    "isolation: none; a container can use more",
    "no pod of a namespace is evicted",
    "no room for their windows",
    "pods cannot be read from the API server",
];

/// Reasons of conditions, which are no events.
const OF_CONDITIONS: [&str; 2] = ["PodsWithoutClaim", "UnitsOffered"];

/// The sources of these folders without their tests.
fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "tests" && name != "benches" {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && name != "tests.rs" {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned();
                found.push((path, code));
            }
        }
    }
    found
}

/// A call that logs a line.
#[derive(Debug)]
struct LogCall {
    /// The names of its fields.
    fields: Vec<String>,
    /// Its text.
    text: String,
}

impl LogCall {
    /// The call whose arguments begin here.
    fn parse(source: &str) -> Self {
        let (fields, rest) = source.split_once('"').unwrap_or((source, ""));
        Self { fields: names_of_fields(fields), text: text_until_quote(rest) }
    }

    fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|name| name == field)
    }

    /// Whether a field or the text is of one pod.
    fn is_about_a_pod(&self) -> bool {
        if self.has("uid") || self.has("pod") {
            return true;
        }
        let words = self.text.split(|c: char| !(c.is_alphanumeric() || "{}_".contains(c)));
        let speaks = words.into_iter().any(|word| ABOUT_A_POD.contains(&word));
        speaks && !ABOUT_NONE.iter().any(|start| self.text.starts_with(start))
    }
}

/// `%uid, size = ids.len(), ` has `uid` and `size`.
fn names_of_fields(source: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut depth = 0;
    for c in source.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            _ => {}
        }
        if let Some(last) = names.last_mut().filter(|_| c != ',' || depth > 0) {
            last.push(c);
        }
    }
    let name = |field: &String| {
        let name = field.split('=').next().unwrap_or_default();
        name.trim().trim_start_matches(['%', '?']).to_owned()
    };
    names.iter().map(name).filter(|name| !name.is_empty()).collect()
}

/// A literal up to the quote that ends it, its lines joined.
fn text_until_quote(rest: &str) -> String {
    let mut text = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn log_calls() -> Vec<(PathBuf, LogCall)> {
    let mut calls = Vec::new();
    for (path, code) in sources(&CRATES) {
        for level in ["error", "warn", "info", "debug", "trace"] {
            for call in code.split(&format!("tracing::{level}!(")).skip(1) {
                calls.push((path.clone(), LogCall::parse(call)));
            }
        }
    }
    calls
}

#[test]
fn a_line_about_one_pod_has_its_uid_namespace_and_name() {
    let calls = log_calls();
    assert!(calls.len() > 150, "{} calls", calls.len());
    let mut of_pods = 0;
    for (path, call) in &calls {
        let path = path.strip_prefix(root()).unwrap_or(path).display();
        assert!(!call.has("name"), "{path}: say what has this name, as `pod`: {call:?}");
        if call.is_about_a_pod() {
            for field in FIELDS {
                assert!(call.has(field), "{path}: a line about a pod without `{field}`: {call:?}");
            }
            of_pods += 1;
        }
    }
    assert!(of_pods > 20, "{of_pods} lines about pods");
    for start in ABOUT_NONE {
        assert!(calls.iter().any(|(_, call)| call.text.starts_with(start)), "no line `{start}`");
    }
}

#[test]
fn a_line_that_names_a_pod_in_its_text_alone_is_about_a_pod() {
    let call =
        LogCall::parse("size = ids.len(), %error, \"container held back: {error}\");\nnext(\"x\")");
    assert_eq!(call.fields, ["size", "error"]);
    assert_eq!(call.text, "container held back: {error}");
    assert!(call.is_about_a_pod());
    let found = |source: &str| LogCall::parse(source).is_about_a_pod();
    assert!(found("reason = a(b, c), \"refused: {refusal}\")"));
    assert!(found("pod = pod.name(), \"no victims\")"));
    assert!(!found("node, \"pods listed\")"));
}

/// The text literals of a file that are words in PascalCase of two parts or more, without what stands behind `action`.
fn words(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices('"') {
        let rest = &code[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let word = &rest[..end];
        let is_pascal_case = word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().filter(char::is_ascii_uppercase).count() > 1
            && word.chars().any(|c| c.is_ascii_lowercase());
        let is_action = code[..at].trim_end().ends_with("action:");
        if rest[end..].starts_with('"') && is_pascal_case && !is_action {
            found.insert(word.to_owned());
        }
    }
    found
}

/// The reasons of the programs' events.
fn reasons() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, code) in sources(&["annotator", "gpushare-device-plugin", "scheduler-extender"]) {
        if code.contains("EventText {") || code.contains("/// The reason of its event") {
            found.append(&mut words(&code));
        }
    }
    found.retain(|reason| !OF_CONDITIONS.contains(&reason.as_str()));
    found
}

/// The texts between backticks.
fn codes(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_event_is_in_the_table_of_events_and_no_other() {
    let text = read("docs/monitoring.md");
    let (_, table) = text.split_once("\n## Events\n").unwrap();
    let (table, _) = table.split_once("\n## Logs\n").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ")).map(cells);
    let mut named: BTreeSet<String> = rows.flat_map(|cells| codes(cells[1])).collect();
    // kube-scheduler's own.
    assert!(named.remove("FailedScheduling"));
    assert_eq!(named, reasons());
}

#[test]
fn every_event_is_a_symptom_or_the_end_of_one() {
    let text = read("docs/troubleshoot.md");
    let named: BTreeSet<String> =
        symptoms(&text).iter().flat_map(|row| codes(&row.join(" "))).collect();
    let missing: Vec<String> = reasons().difference(&named).cloned().collect();
    assert!(missing.is_empty(), "docs/troubleshoot.md, By symptom, has no {missing:?}");
}
