//! Every link, path and make target that a Markdown file names is there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::repository::{make_targets, root};

/// How the names of source files end.
const SOURCES: [&str; 8] = ["json", "md", "proto", "rs", "sh", "toml", "yaml", "yml"];

/// A Markdown file of the repository, by its path from the root.
pub(crate) struct Document {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Document {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(root().join(path)).expect("a document");
        Self { path: path.to_owned(), text }
    }

    fn folder(&self) -> PathBuf {
        root().join(self.path.parent().expect("a file"))
    }

    /// The targets of its links that are not URLs.
    fn links(&self) -> Vec<&str> {
        deploy::book::links(&self.text)
    }

    /// What stands between single backticks, and the lines of fenced blocks.
    pub(crate) fn code(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for (number, part) in self.text.split("```").enumerate() {
            if number % 2 == 1 {
                found.extend(part.lines().skip(1));
            } else {
                found.extend(part.split('`').skip(1).step_by(2));
            }
        }
        found
    }

    /// Words of its code that are paths: they begin with the name of a folder beside it or in the repository's root, or
    /// end as a source file does.
    fn paths(&self) -> Vec<&str> {
        let words = self
            .code()
            .into_iter()
            .flat_map(|code| code.split(|c: char| c.is_whitespace() || "\"',;()=#|".contains(c)));
        words.filter(|word| self.is_path(word)).collect()
    }

    fn is_path(&self, word: &str) -> bool {
        let Some((first, rest)) = plain(word).split_once('/') else { return false };
        let made_up = word.contains(['*', '<', '$', '…', ':', '~'])
            || plain(word)
                .split('/')
                .any(|part| part.len() > 1 && !part.chars().any(char::is_lowercase));
        let source = rest.rsplit_once('.').is_some_and(|(_, ending)| SOURCES.contains(&ending));
        if made_up || ["", "target"].contains(&first) {
            return false;
        }
        source || self.bases().iter().any(|base| base.join(first).is_dir())
    }

    fn bases(&self) -> [PathBuf; 2] {
        [self.folder(), root().to_owned()]
    }

    fn has_heading(&self, anchor: &str) -> bool {
        let headings = self.text.lines().filter_map(|line| line.strip_prefix('#'));
        headings.map(slug).any(|heading| heading == anchor)
    }
}

/// A path without the steps up to its folder.
fn plain(word: &str) -> &str {
    word.trim_start_matches("./").trim_start_matches("../")
}

/// A heading as GitHub makes an anchor of it.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().replace(' ', "-")
}

/// Every Markdown file but those of build folders and of hidden ones other than `.github`.
pub(crate) fn documents() -> Vec<Document> {
    let mut found = Vec::new();
    collect(Path::new(""), &mut found);
    assert!(found.len() >= 12, "only {} Markdown files", found.len());
    found
}

fn collect(folder: &Path, found: &mut Vec<Document>) {
    for entry in fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        let path = folder.join(&name);
        let hidden = name.starts_with('.') && name != ".github";
        let is_ours = !matches!(&*name, "target" | "node_modules");
        if entry.path().is_dir() && !hidden && is_ours {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(Document::read(&path));
        }
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    for document in documents() {
        for target in document.links() {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = document.folder().join(file);
            let shown = document.path.display();
            assert!(file.is_empty() || path.exists(), "{shown} links to {target}: no such file");
            if !anchor.is_empty() {
                let other = (!file.is_empty()).then(|| Document::read(&path));
                let found = other.as_ref().unwrap_or(&document).has_heading(anchor);
                assert!(found, "{shown} links to {target}: no such heading");
            }
        }
    }
}

#[test]
fn every_path_in_code_is_there() {
    let mut missing = Vec::new();
    for document in documents() {
        for path in document.paths() {
            if !document.bases().iter().any(|base| base.join(plain(path)).exists()) {
                missing.push(format!("{}: {path}", document.path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "documents name paths that are not there: {missing:#?}");
}

#[test]
fn every_make_target_that_is_named_exists() {
    let targets = make_targets();
    for document in documents() {
        for code in document.code() {
            let code: String = code.split('"').step_by(2).collect();
            let code = code.split(['#', ';', '&', '|']).next().unwrap_or_default();
            let Some(words) = code.strip_prefix("make ") else { continue };
            let mut words = words.split_whitespace().filter(|word| !word.contains('='));
            let unknown = words.find(|word| !targets.iter().any(|known| known == word));
            assert_eq!(unknown, None, "{}: {code}", document.path.display());
        }
    }
}
