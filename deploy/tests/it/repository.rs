//! The files in the repository's root agree: one compiler, and the same make targets in both CIs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    deploy::folder().parent().expect("the folder above deploy/")
}

/// A file of the repository, as text.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The targets that the Makefile has a recipe for.
pub(crate) fn make_targets() -> Vec<String> {
    let makefile = read("Makefile");
    let phony = makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: "));
    phony.map(str::to_owned).collect()
}

/// What stands between the first `before` of a text and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: char) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before}"));
    rest.split(after).next().expect("a first part")
}

#[test]
fn one_compiler_builds_everywhere() {
    let oldest = between(&read("Cargo.toml"), "rust-version = \"", '"').to_owned();
    let pinned = between(&read("rust-toolchain.toml"), "channel = \"", '"').to_owned();
    assert!(pinned.starts_with(&format!("{oldest}.")), "{pinned} and {oldest}");
}

/// The words after `make` in the lines that begin with one of the `starts`, without variables.
fn targets_in(text: &str, starts: &[&str]) -> BTreeSet<String> {
    let lines =
        text.lines().map(str::trim).filter(|line| starts.iter().any(|s| line.starts_with(s)));
    let targets = lines.filter_map(|line| line.rsplit_once("make ")?.1.split_whitespace().next());
    targets.map(str::to_owned).collect()
}

#[test]
fn the_hosted_ci_runs_the_make_targets_of_the_local_one() {
    let local = targets_in(&(read(".ci/run") + &read(".ci/beside")), &["step ", "make "]);
    let hosted = targets_in(&read(".github/workflows/ci.yml"), &["- run: ", "run: "]);
    assert!(local.len() >= 4, "{local:?}");
    assert_eq!(hosted, local);
    let known = make_targets();
    assert!(local.iter().all(|target| known.contains(target)), "{local:?}");
}

/// A checkout leaves the run's token in .git otherwise, where each later step of the job can read it.
#[test]
fn no_checkout_keeps_its_credentials() {
    let mut seen = 0;
    for file in fs::read_dir(root().join(".github/workflows")).expect("workflows") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a workflow");
        let steps = text.split("- uses: ").filter(|step| step.starts_with("actions/checkout@"));
        for step in steps {
            let own = step.split("\n    - ").next().unwrap_or_default();
            assert!(own.contains("persist-credentials: false"), "{path:?}: {own}");
            seen += 1;
        }
    }
    assert!(seen > 0, "nothing is checked out");
}

#[test]
fn every_program_that_is_installed_has_a_version() {
    for file in fs::read_dir(root().join("scripts")).expect("scripts") {
        let path = file.expect("a file").path();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for line in text.lines().filter(|line| line.contains("cargo install")) {
            assert!(line.contains("@$version"), "{path:?}: {line}");
        }
    }
}

#[test]
fn every_action_is_pinned_by_commit_and_says_its_version() {
    let mut seen = 0;
    for file in fs::read_dir(root().join(".github/workflows")).expect("workflows") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a workflow");
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("- uses: ")) {
            let (commit, version) =
                line.rsplit_once('@').and_then(|(_, at)| at.split_once(" # v")).expect(line);
            assert!(commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{line}");
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no action is used");
}
