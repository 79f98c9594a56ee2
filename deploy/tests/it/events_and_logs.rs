//! docs/monitoring.md and docs/troubleshoot.md have every event.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::documents::{cells, symptoms};
use crate::repository::{read, root};

/// Reasons of conditions, which are no events.
const OF_CONDITIONS: [&str; 2] = ["PodsWithoutClaim", "UnitsOffered"];

/// The text literals of a file that are words in PascalCase of two parts or more, without what stands behind `action`.
fn words(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let parts: Vec<&str> = code.split('"').collect();
    for pair in parts.windows(2) {
        let [before, word] = [pair[0], pair[1]];
        let capitals = word.chars().filter(char::is_ascii_uppercase).count();
        let is_pascal_case = word.starts_with(|c: char| c.is_ascii_uppercase())
            && (2..word.len()).contains(&capitals)
            && word.chars().all(|c| c.is_ascii_alphabetic());
        if is_pascal_case && !before.trim_end().ends_with("action:") {
            found.push(word.to_owned());
        }
    }
    found
}

/// The reasons of the programs' events: in the files that make events.
fn reasons() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let programs = ["annotator", "gpushare-device-plugin", "scheduler-extender"];
    let mut folders: Vec<PathBuf> = programs.map(|program| root().join(program).join("src")).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("tests") || path.ends_with("tests.rs") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
            if code.contains("EventText {") || code.contains("/// The reason of its event") {
                found.extend(words(code));
            }
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
fn every_event_is_in_the_table_and_a_symptom() {
    let text = read("docs/monitoring.md");
    let (_, table) = text.split_once("\n## Events\n").unwrap();
    let (table, _) = table.split_once("\n## Logs\n").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ")).map(cells);
    let mut named: BTreeSet<String> = rows.flat_map(|cells| codes(cells[1])).collect();
    // kube-scheduler's own.
    assert!(named.remove("FailedScheduling"));
    let reasons = reasons();
    assert_eq!(named, reasons);
    let text = read("docs/troubleshoot.md");
    let named: BTreeSet<String> =
        symptoms(&text).iter().flat_map(|row| codes(&row.join(" "))).collect();
    let missing: Vec<&String> = reasons.difference(&named).collect();
    assert!(missing.is_empty(), "docs/troubleshoot.md, By symptom, has no {missing:?}");
}
