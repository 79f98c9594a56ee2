//! The documents as the book that `make site` builds: the pages that `docs/README.md` lists, those that they lead to,
//! and the other files that they link to.
//!
//! Each page has the path that it has in the repository, so that its links hold unchanged. No list of pages is kept
//! beside `docs/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The page that comes first, and from which all others are reached.
const FIRST: &str = "README.md";

/// The list of documents: each of its tables becomes a part of the navigation.
const INDEX: &str = "docs/README.md";

/// Folders of pages that stand below another page in the navigation.
const BELOW: [(&str, &str); 3] = [
    ("docs/decisions/", "ARCHITECTURE.md"),
    ("bench/", "bench/RESULTS.md"),
    ("lab/", "lab/README.md"),
];

/// The targets of a page's links that are not URLs, as they are written.
#[must_use]
pub fn links(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target).filter(|target| !target.contains("://")).collect()
}

/// The path from the repository's root that a link of a page leads to, without its anchor.
#[must_use]
pub fn target(page: &str, link: &str) -> String {
    let file = link.split('#').next().unwrap_or_default();
    if file.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => (),
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Pages and files, by their paths from the repository's root.
#[derive(Debug)]
pub struct Book {
    /// The Markdown of each page.
    pages: BTreeMap<String, String>,
    /// What pages link to and is no page: pictures, schemas, manifests, sources.
    files: BTreeSet<String>,
}

impl Book {
    /// Follows all links of a repository's documents.
    ///
    /// # Errors
    ///
    /// If a page that another one links to cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut book = Self { pages: BTreeMap::new(), files: BTreeSet::new() };
        let mut waiting = vec![FIRST.to_owned()];
        while let Some(page) = waiting.pop() {
            if book.pages.contains_key(&page) {
                continue;
            }
            let text = fs::read_to_string(root.join(&page))
                .map_err(|error| io::Error::other(format!("{page}: {error}")))?;
            for link in links(&text) {
                let path = target(&page, link);
                if is_page(&path) {
                    waiting.push(path);
                } else if root.join(&path).is_file() {
                    book.files.insert(path);
                }
            }
            let text = without_links_to_folders(&text, &page, root);
            book.pages.insert(page, text);
        }
        Ok(book)
    }

    /// The paths of its pages.
    pub fn pages(&self) -> impl Iterator<Item = &str> {
        self.pages.keys().map(String::as_str)
    }

    /// mdBook's `SUMMARY.md`: the navigation.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut listed: BTreeSet<&str> = [FIRST, INDEX].into();
        let mut summary = format!("# Summary\n\n[Plimsoll]({FIRST})\n\n[All documents]({INDEX})\n");
        let index = self.pages.get(INDEX).map(String::as_str).unwrap_or_default();
        for part in index.split("\n\n").filter(|part| part.starts_with("| ")) {
            let mut rows = part.lines();
            summary += &format!("\n# {}\n\n", capitalised(cell(rows.next().unwrap_or_default())));
            for (title, link) in rows.filter_map(first_link) {
                let path = target(INDEX, link);
                let Some((path, _)) = self.pages.get_key_value(&path) else { continue };
                if listed.insert(path) {
                    summary += &format!("- [{title}]({path})\n");
                    summary += &self.below(path, &mut listed);
                }
            }
        }
        summary += "\n# The project\n\n";
        for (path, text) in &self.pages {
            if listed.insert(path) {
                summary += &format!("- [{}]({path})\n", title(text));
            }
        }
        summary
    }

    /// The lines of the pages below one.
    fn below<'a>(&'a self, page: &str, listed: &mut BTreeSet<&'a str>) -> String {
        let mut lines = String::new();
        for (folder, _) in BELOW.iter().filter(|(_, above)| *above == page) {
            for (path, text) in self.pages.iter().filter(|(path, _)| path.starts_with(folder)) {
                if listed.insert(path) {
                    lines += &format!("  - [{}]({path})\n", title(text));
                }
            }
        }
        lines
    }

    /// Writes pages, files and `SUMMARY.md` into a folder, which it empties first.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or written.
    pub fn write(&self, root: &Path, folder: &Path) -> io::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for (path, text) in &self.pages {
            fs::write(placed(folder, path)?, text)?;
        }
        for path in &self.files {
            fs::write(placed(folder, path)?, fs::read(root.join(path))?)?;
        }
        fs::write(folder.join("SUMMARY.md"), self.summary())
    }
}

/// The path in a folder, which has the folders above it afterwards.
fn placed(folder: &Path, path: &str) -> io::Result<PathBuf> {
    let path = folder.join(path);
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    Ok(path)
}

fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// A folder has no page of its own: of a link to one, the text is kept.
fn without_links_to_folders(text: &str, page: &str, root: &Path) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let link = after.split(')').next().unwrap_or_default();
        let is_folder = !link.contains("://") && root.join(target(page, link)).is_dir();
        match (before.rsplit_once('['), after.split_once(')')) {
            (Some((before, text)), Some((_, after))) if is_folder => {
                kept += before;
                kept += text;
                rest = after;
            }
            _ => {
                kept += before;
                kept += "](";
                rest = after;
            }
        }
    }
    kept + rest
}

/// The first cell of a table's row.
fn cell(row: &str) -> &str {
    row.trim_start_matches('|').split('|').next().unwrap_or_default().trim()
}

/// Text and target of the first link in a row's first cell.
fn first_link(row: &str) -> Option<(&str, &str)> {
    let (_, link) = cell(row).split_once('[')?;
    let (text, rest) = link.split_once("](")?;
    Some((text, rest.split(')').next()?))
}

/// What a page's first heading says.
fn title(text: &str) -> String {
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    heading.unwrap_or("Untitled").replace(['[', ']'], "")
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().to_string() + letters.as_str())
}

/// The links of a built site that lead to no file of it, or to no place on a page.
///
/// # Errors
///
/// If a page cannot be read.
pub fn broken_links(site: &Path) -> io::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect_html(site, "", &mut pages)?;
    let mut broken = Vec::new();
    for (page, html) in &pages {
        for link in attributes(html, "href").chain(attributes(html, "src")) {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let path = target(page, link);
            let anchor = link.split_once('#').map(|(_, anchor)| anchor).unwrap_or_default();
            let is_there = match pages.get(&path) {
                Some(html) => anchor.is_empty() || html.contains(&format!("id=\"{anchor}\"")),
                None => site.join(&path).is_file(),
            };
            if !is_there {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    Ok(broken)
}

/// The pages of a site by their paths, without that for addresses that are not there: its links begin at the root.
fn collect_html(site: &Path, folder: &str, pages: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(site.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let path = Path::new(folder).join(&name).to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            collect_html(site, &path, pages)?;
        } else if path.ends_with(".html") && path != "404.html" {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// The values of an attribute in a page.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let rests: Vec<&str> =
        html.match_indices(&start).map(|(at, _)| &html[at + start.len()..]).collect();
    rests.into_iter().filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_resolved_from_the_folder_of_its_page() {
        assert_eq!(target("docs/a.md", "b.md#c"), "docs/b.md");
        assert_eq!(target("docs/decisions/1.md", "../../README.md"), "README.md");
        assert_eq!(target("docs/a.md", "#c"), "docs/a.md");
        assert_eq!(target("README.md", "cli/"), "cli");
    }

    #[test]
    fn of_a_link_to_a_folder_the_text_is_kept() {
        let text = "[cli](src/) and [a page](a.md), [out](https://example.com/src/)";
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let expected = "cli and [a page](a.md), [out](https://example.com/src/)";
        assert_eq!(without_links_to_folders(text, "README.md", root), expected);
    }

    #[test]
    fn a_table_of_the_index_is_a_part_and_a_page_that_none_lists_comes_last() {
        let index = "# Documents\n\n| to learn | |\n|---|---|\n| [One](one.md) and [two](../ARCHITECTURE.md) | x |\n\
                     | [Inside](../ARCHITECTURE.md) | y |\n| [One again](one.md#a) | z |\n";
        let pages = [
            ("ARCHITECTURE.md", "# Architecture\n"),
            ("CHANGELOG.md", "# Changes [1]\n"),
            ("README.md", "# P\n"),
            ("docs/README.md", index),
            ("docs/decisions/0001.md", "# 1. So\n"),
            ("docs/one.md", "# 1\n"),
        ];
        let pages = pages.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let book = Book { pages, files: BTreeSet::new() };
        let expected = "# Summary\n\n[Plimsoll](README.md)\n\n[All documents](docs/README.md)\n\n\
                        # To learn\n\n- [One](docs/one.md)\n- [Inside](ARCHITECTURE.md)\n  \
                        - [1. So](docs/decisions/0001.md)\n\n# The project\n\n- [Changes 1](CHANGELOG.md)\n";
        assert_eq!(book.summary(), expected);
    }

    #[test]
    fn a_link_to_no_file_and_one_to_no_place_on_a_page_are_broken() {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path();
        fs::create_dir_all(site.join("docs")).unwrap();
        let page = "<a href=\"../a.html#here\"> <a href=\"../a.html#gone\"> <img src=\"x.svg\"> <a href=\"https://x\">";
        fs::write(site.join("docs/b.html"), page).unwrap();
        fs::write(site.join("a.html"), "<h2 id=\"here\">").unwrap();
        let broken = broken_links(site).unwrap();
        assert_eq!(broken, ["docs/b.html: ../a.html#gone", "docs/b.html: x.svg"]);
    }
}
