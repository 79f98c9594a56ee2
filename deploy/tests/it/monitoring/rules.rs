//! The alerts: each has what an operator needs, and fires and stays quiet in a test that promtool runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{RULES, alerts, rules};
use crate::repository::read;

const DOCUMENT: &str = "docs/monitoring.md";

fn tests() -> Vec<PathBuf> {
    let folder = deploy::folder().join("tests/promtool");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("tests").map(|file| file.expect("a file").path()).collect();
    files.sort();
    files
}

#[test]
fn every_alert_has_a_severity_a_summary_a_description_and_a_place_in_the_documents() {
    let text = read(DOCUMENT);
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name");
        assert!(name.starts_with("Plimsoll"), "{name}");
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        let annotations = &alert["annotations"];
        for part in ["summary", "description"] {
            assert!(
                annotations[part].as_str().is_some_and(|it| it.ends_with('.')),
                "{name}: {part}"
            );
        }
        let place = format!("{DOCUMENT}#{}", name.to_lowercase());
        assert_eq!(annotations["runbook_url"], place, "{name}");
        let heading = format!("\n### {name}\n");
        assert!(text.contains(&heading), "{DOCUMENT} has no heading {name}");
        let (_, runbook) = text.split_once(&heading).expect("it is there");
        let runbook = runbook.split("\n##").next().expect("a text");
        for part in ["**Means:**", "**Look:**", "**Do:**"] {
            assert!(runbook.contains(part), "{name} has no {part}");
        }
    }
}

#[test]
fn the_documents_say_what_to_do_about_alerts_that_are_there_alone() {
    let alerts = alerts();
    let names: BTreeSet<&str> =
        alerts.iter().map(|alert| alert["alert"].as_str().expect("a name")).collect();
    let text = read(DOCUMENT);
    let told: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("### Plimsoll")).collect();
    let told: BTreeSet<String> = told.into_iter().map(|name| format!("Plimsoll{name}")).collect();
    assert_eq!(told, names.into_iter().map(str::to_owned).collect());
}

#[test]
fn every_alert_fires_and_stays_quiet_in_a_test() {
    let mut fires = BTreeSet::new();
    let mut quiet = BTreeSet::new();
    for file in tests() {
        let text = fs::read_to_string(&file).expect("a test");
        let parsed: Value = serde_saphyr::from_str(&text).expect("YAML");
        for test in parsed["tests"].as_array().expect("tests") {
            for check in test["alert_rule_test"].as_array().expect("checks") {
                let name = check["alertname"].as_str().expect("a name").to_owned();
                let expected = check["exp_alerts"].as_array().expect("a list");
                if expected.is_empty() {
                    quiet.insert(name);
                    continue;
                }
                for alert in expected {
                    fires.insert((name.clone(), alert["exp_labels"]["severity"].to_string()));
                }
            }
        }
    }
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name").to_owned();
        assert!(quiet.contains(&name), "{name} stays quiet in no test");
        let severity = alert["labels"]["severity"].to_string();
        assert!(fires.contains(&(name.clone(), severity)), "{name} fires in no test");
    }
}

#[test]
fn recorded_names_say_their_level_metric_and_operation() {
    for rule in rules() {
        let Some(name) = rule["record"].as_str() else { continue };
        assert_eq!(name.split(':').count(), 3, "{name}");
    }
}

/// Runs `promtool check rules` or `promtool test rules`.
fn promtool(verb: &str, file: &Path) {
    let output = Command::new("promtool")
        .args([verb, "rules"])
        .arg(file)
        .output()
        .expect("promtool is needed: scripts/require-prometheus.sh installs it");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "promtool {verb} rules {}:\n{said}", file.display());
}

#[test]
#[ignore = "needs promtool: make oracle"]
fn promtool_finds_no_fault_in_the_rules_and_their_tests_pass() {
    promtool("check", &deploy::folder().join(RULES));
    let tests = tests();
    assert!(tests.len() >= 5, "{tests:?}");
    for test in tests {
        promtool("test", &test);
    }
}
