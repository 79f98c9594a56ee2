//! The rule of all error types: an error's text names its cause, or `source()` returns it, never both.

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file of the workspace.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// The texts of thiserror that name a source which thiserror also returns.
fn named_twice(code: &str) -> Vec<&str> {
    let variants = code.split("#[error(").skip(1).filter_map(|rest| rest.split_once(")]"));
    let twice = variants.filter(|(text, rest)| {
        let fields = rest.split("\n}").next().unwrap_or_default();
        let marked = ["#[source]", "#[from]"].iter().filter_map(|mark| fields.split_once(mark));
        let mut names = marked.map(|(_, field)| field.split(':').next().unwrap_or_default().trim());
        let in_text = |name: &str| text.contains(&format!("{{{name}"));
        let named = fields.contains(" source:") && in_text("source");
        named || names.any(|name| in_text("0") || in_text(name))
    });
    twice.map(|(text, _)| text.trim()).collect()
}

#[test]
fn no_error_of_the_workspace_names_its_cause_twice() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut files);
    assert!(files.len() > 100, "{}", files.len());
    let faults = files.iter().flat_map(|file| {
        let code = fs::read_to_string(file).unwrap();
        let twice = named_twice(&code).into_iter().map(str::to_owned).collect::<Vec<_>>();
        twice.into_iter().map(|text| format!("{}: {text}", file.display()))
    });
    // This file's own examples stand in strings.
    let faults: Vec<String> = faults.filter(|fault| !fault.contains("it/errors.rs")).collect();
    assert!(faults.is_empty(), "leave the cause out of:\n{}", faults.join("\n"));
}

#[test]
fn the_rule_is_seen_to_be_broken() {
    let broken = "#[error(\"{path}: {source}\")]\nstruct A {\n    source: io::Error,\n}\n\
                  enum B {\n    #[error(\"TLS: {0}\")]\n    Tls(#[from] rustls::Error),\n}\n";
    assert_eq!(named_twice(broken), ["\"{path}: {source}\"", "\"TLS: {0}\""]);
    let kept = "#[error(\"{path}\")]\nstruct A {\n    source: io::Error,\n}\n\
                enum B {\n    #[error(transparent)]\n    Tls(#[from] rustls::Error),\n    \
                #[error(\"{0}\")]\n    Text(String),\n}\n";
    assert!(named_twice(kept).is_empty());
}
