//! The documents name every annotation and port, and the threat model tests that exist.

use placement::names::{GPU_COUNT_RESOURCE, HOT_VALUE, Names, aliyun};

use crate::manifests::{PROGRAMS, ports, read};
use crate::repository;

fn document(name: &str) -> String {
    read(&format!("../docs/{name}"))
}

#[test]
fn every_key_on_nodes_and_pods_is_documented() {
    let text = document("configuration.md");
    let names = Names::default();
    let ours = [names.gpus(), names.share(), names.exporter(), names.claim(), names.gpu_mode()];
    let theirs = [
        HOT_VALUE,
        names.gpu_resource(),
        GPU_COUNT_RESOURCE,
        aliyun::IDX,
        aliyun::DEV,
        aliyun::POD,
        aliyun::CONTAINER,
        aliyun::ASSIGNED,
        aliyun::ASSUME_TIME,
        aliyun::ALLOCATION,
    ];
    for key in ours.iter().map(String::as_str).chain(theirs) {
        assert!(text.contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn every_port_is_documented() {
    let text = document("metrics.md");
    for port in PROGRAMS.into_iter().flat_map(ports) {
        assert!(text.contains(&port.1.to_string()), "{port:?}");
    }
}

#[test]
fn the_commands_of_the_uninstall_name_every_annotation_that_is_left() {
    let text = document("install.md");
    let names = Names::default();
    let policy =
        placement::policy::LoadPolicy::from_yaml(&read("chart/policies/shipped.yaml")).unwrap();
    let metrics = policy.sync.iter().map(|rule| rule.metric.as_str().to_owned());
    for key in metrics.chain([HOT_VALUE.to_owned(), names.gpus(), names.share()]) {
        assert!(text.contains(&format!("{key}- ")) || text.contains(&format!("{key}-\n")), "{key}");
    }
}

/// The tests that a text names, each as `FILE::TEST`.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let code = text.split('`').skip(1).step_by(2);
    code.filter_map(|code| code.split_once(".rs::")).collect()
}

/// The rows of the tables of symptoms, without their heads.
pub(crate) fn symptoms(text: &str) -> Vec<Vec<&str>> {
    let (_, tables) = text.split_once("\n## By symptom\n").unwrap();
    let tables = tables.split("\n## ").next().unwrap();
    let rows = tables.lines().filter(|line| line.starts_with("| ")).map(cells);
    rows.filter(|cells| cells[0] != "you see").collect()
}

#[test]
fn every_symptom_says_what_to_do() {
    let text = document("troubleshoot.md");
    let rows = symptoms(&text);
    assert!(rows.len() > 30, "{} rows", rows.len());
    for cells in rows {
        assert_eq!(cells.len(), 3, "{cells:?}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{cells:?}");
    }
}

/// The cells of a row of a table.
pub(crate) fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// A row has four cells, and the last names tests that are there, or says that there is none. A fact about a cluster is
/// a text in its file, any other test a function.
#[test]
fn every_row_of_the_threat_model_names_a_test_or_none() {
    let text = document("threat-model.md");
    let mut rows: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("| ")).map(cells).collect();
    rows.retain(|cells| cells.last() != Some(&"test"));
    assert!(rows.len() > 30, "{} rows", rows.len());
    for cells in rows {
        assert_eq!(cells.len(), 4, "{cells:?}");
        let named = named_tests(cells[3]);
        assert!(cells[3] == "none" || !named.is_empty(), "{cells:?}");
        for (file, test) in named {
            let source = repository::read(&format!("{file}.rs"));
            let is_there =
                source.contains(&format!("fn {test}(")) || source.contains(&format!("\"{test}\""));
            assert!(is_there, "{file}.rs has no test {test}");
        }
    }
}

/// The numbers of a picture are its texts that begin with a digit.
#[test]
fn the_picture_of_the_worked_example_has_its_numbers() {
    let picture = document("pictures/node.svg");
    let example = document("policy.md");
    let texts = picture.split("</text>").filter_map(|text| text.rsplit('>').next());
    let numbers: Vec<&str> =
        texts.filter(|text| text.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(numbers.len(), 18, "{numbers:?}");
    for number in numbers {
        assert!(example.contains(number), "policy.md has no {number}");
    }
}
