//! The documents name every flag, variable, annotation and port.

use placement::names::{HOT_VALUE, Names, aliyun};

use crate::flags::parsed;
use crate::manifests::{PROGRAMS, ports, read};

fn document(name: &str) -> String {
    read(&format!("../docs/{name}"))
}

/// The part of configuration.md under a program's heading.
fn section(program: &str) -> String {
    let text = document("configuration.md");
    let heading = format!("### {program}\n");
    let start = text.find(&heading).unwrap_or_else(|| panic!("no heading for {program}"));
    let rest = &text[start + heading.len()..];
    rest[..rest.find("\n#").unwrap_or(rest.len())].to_owned()
}

#[test]
fn every_flag_is_documented_with_its_variable_and_default() {
    for program in PROGRAMS {
        let text = section(program) + &section("All programs");
        for line in parsed(program).documented() {
            assert!(text.contains(&line), "configuration.md, {program}: no row begins {line}");
        }
    }
}

#[test]
fn every_key_on_nodes_and_pods_is_documented() {
    let (text, names) = (document("configuration.md"), Names::default());
    let ours = [names.cards(), names.share(), names.exporter(), names.claim()];
    let theirs = [
        HOT_VALUE,
        names.gpu_resource(),
        names.gpu_count_resource(),
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
    let text = document("operations.md");
    for port in PROGRAMS.into_iter().flat_map(ports) {
        assert!(text.contains(&port.1.to_string()), "{port:?}");
    }
}

#[test]
fn the_commands_of_the_uninstall_name_every_annotation_that_is_left() {
    let (text, names) = (document("install.md"), Names::default());
    let policy = placement::policy::LoadPolicy::from_yaml(&read("base/policy.yaml")).unwrap();
    let metrics = policy.sync.iter().map(|rule| rule.metric.as_str().to_owned());
    for key in metrics.chain([HOT_VALUE.to_owned(), names.cards(), names.share()]) {
        assert!(text.contains(&format!("{key}- ")) || text.contains(&format!("{key}-\n")), "{key}");
    }
}
