//! What a release consists of: the plugin's manifest, the changelog, and the rights of the workflow.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::repository::{read, root};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SOURCE: &str = "https://example.com/owner/plimsoll";
const SYSTEMS: [(&str, &str, &str); 3] = [
    ("linux", "plimsoll", "unknown-linux-musl"),
    ("darwin", "plimsoll", "apple-darwin"),
    ("windows", "plimsoll.exe", "pc-windows-msvc"),
];
const ARCHES: [(&str, &str); 2] = [("amd64", "x86_64"), ("arm64", "aarch64")];

fn parsed(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn archive(system: &str, arch: &str) -> String {
    format!("plimsoll_{VERSION}_{system}_{arch}.tar.gz")
}

/// A part of `scripts/release.sh` that writes into a folder.
fn release_command(part: &str, dist: &Path) -> Command {
    let mut command = Command::new(root().join("scripts/release.sh"));
    command.arg(part).env("DIST", dist).env("SOURCE", SOURCE);
    // Those of the commit otherwise.
    command.env("PLIMSOLL_GIT", "0123456789ab").env("SOURCE_DATE_EPOCH", "1");
    command
}

/// Runs a part, and returns whether it succeeded, with what it printed.
fn release(part: &str, dist: &Path) -> (bool, String) {
    let output = release_command(part, dist).output().expect("bash runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).expect("UTF-8"))
}

#[test]
fn the_plugins_manifest_names_each_archive_by_address_and_checksum() {
    let dist = TempDir::new().expect("a folder");
    let mut wanted = Vec::new();
    for (system, program, _) in SYSTEMS {
        for (arch, _) in ARCHES {
            let name = archive(system, arch);
            fs::write(dist.path().join(&name), &name).expect("an archive");
            let printed = Command::new("sha256sum").arg(dist.path().join(&name)).output();
            let printed = String::from_utf8(printed.expect("sha256sum runs").stdout).expect("text");
            wanted.push(json!({
                "selector": {"matchLabels": {"os": system, "arch": arch}},
                "uri": format!("{SOURCE}/releases/download/v{VERSION}/{name}"),
                "sha256": printed.split(' ').next(),
                "bin": program,
            }));
        }
    }
    let (succeeded, said) = release("krew", dist.path());
    assert!(succeeded, "{said}");
    let text = fs::read_to_string(dist.path().join("plimsoll.yaml")).expect("a manifest");
    let manifest = parsed(&text);
    assert_eq!(manifest["spec"]["platforms"], json!(wanted));
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "plimsoll");
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    assert_eq!(manifest["spec"]["homepage"], SOURCE);
    // krew's index takes no more.
    let short = manifest["spec"]["shortDescription"].as_str().expect("a text");
    assert!(short.len() <= 50 && !short.ends_with('.'), "{short}");
}

#[test]
fn a_manifest_with_an_archive_missing_is_not_written() {
    let dist = TempDir::new().expect("a folder");
    fs::write(dist.path().join(archive("linux", "amd64")), "").expect("an archive");
    let (succeeded, said) = release("krew", dist.path());
    assert!(!succeeded && !dist.path().join("plimsoll.yaml").exists(), "{said}");
    for missing in
        [archive("linux", "arm64"), archive("darwin", "amd64"), archive("windows", "arm64")]
    {
        assert!(said.contains(&missing), "{said}");
    }
}

#[test]
fn each_system_without_an_archive_is_named() {
    let folder = TempDir::new().expect("a folder");
    let mut command = release_command("archives", folder.path());
    let output = command.arg(folder.path().join("built")).output().expect("bash runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{said}");
    for (system, _, _) in SYSTEMS {
        for (arch, _) in ARCHES {
            assert!(said.contains(&format!("No archive for {system}_{arch}: ")), "{said}");
        }
    }
}

#[test]
fn the_workflow_builds_plimsoll_for_each_system_and_architecture() {
    let workflow = read(".github/workflows/release.yml");
    for (system, _, target) in SYSTEMS {
        for (arch, machine) in ARCHES {
            assert!(workflow.contains(&format!("{machine}-{target}")), "{machine}-{target}");
            let folder = format!("{system}_{arch}");
            // The folder of a matrix has the system's name in it.
            let of_matrix = format!("${{{{ matrix.system }}}}_{arch}");
            assert!(workflow.contains(&folder) || workflow.contains(&of_matrix), "{folder}");
        }
    }
}

#[test]
fn only_the_job_that_publishes_may_write_and_it_compiles_nothing() {
    let workflow = parsed(&read(".github/workflows/release.yml"));
    assert_eq!(workflow["permissions"], json!({"contents": "read"}));
    let jobs = workflow["jobs"].as_object().expect("jobs");
    let with_rights: Vec<_> =
        jobs.iter().filter(|(_, job)| !job["permissions"].is_null()).collect();
    let [(name, publish)] = with_rights[..] else { panic!("{with_rights:?}") };
    assert_eq!(name, "publish");
    let rights: BTreeSet<&str> =
        publish["permissions"].as_object().expect("rights").keys().map(String::as_str).collect();
    let needed = ["attestations", "contents", "id-token", "packages"];
    assert_eq!(rights, BTreeSet::from(needed));
    let steps = publish["steps"].to_string();
    assert!(!steps.contains("make images ") && !steps.contains("scripts/build-"), "{steps}");
    for (name, job) in jobs {
        assert!(!job.to_string().contains("cache@"), "{name}: a cache is another job's to write");
        assert_eq!(job["steps"][0]["with"]["persist-credentials"], false, "{name}");
    }
}

/// The headings of the changelog's sections.
fn sections(changelog: &str) -> Vec<&str> {
    changelog.lines().filter_map(|line| line.strip_prefix("## ")).collect()
}

#[test]
fn the_changelog_begins_with_what_is_not_released() {
    let changelog = read("CHANGELOG.md");
    let sections = sections(&changelog);
    assert_eq!(sections[0], "[Unreleased]");
    for released in &sections[1..] {
        let (version, date) = released.split_once(" - ").expect(released);
        assert!(version.starts_with('[') && version.ends_with(']'), "{released}");
        assert!(date.len() == 10 && date.parse::<jiff::civil::Date>().is_ok(), "{released}");
    }
}

#[test]
fn notes_of_a_version_without_a_section_are_refused() {
    let dist = TempDir::new().expect("a folder");
    let (succeeded, said) = release("notes", dist.path());
    let changelog = read("CHANGELOG.md");
    let has_it =
        sections(&changelog).iter().any(|section| section.starts_with(&format!("[{VERSION}]")));
    assert_eq!(succeeded, has_it, "{said}");
    assert!(has_it || said.contains(&format!("no section [{VERSION}]")), "{said}");
}
