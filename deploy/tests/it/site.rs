//! The site of the documents has every page of `docs/`, and the index lists each of them.

use std::fs;

use deploy::book::Book;

use crate::links::Document;
use crate::repository::root;

fn book() -> Book {
    Book::read(root()).unwrap()
}

/// The navigation of the site is made from the index.
#[test]
fn every_document_is_in_the_index_or_below_a_page_of_it() {
    let summary = book().summary();
    let (listed, project) = summary.split_once("# The project").unwrap();
    let mut count = 0;
    for folder in ["docs", "docs/decisions"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.ends_with(".md") {
                continue;
            }
            let line = format!("]({folder}/{name})\n");
            assert!(listed.contains(&line), "docs/README.md does not list {folder}/{name}");
            count += 1;
        }
    }
    assert!(count > 35, "{count} documents");
    assert!(!project.contains("](docs/"), "{project}");
}

/// mdBook takes `<NAME>` outside of code for the start of HTML, as the Git host does: neither shows it.
#[test]
fn nothing_in_a_page_is_taken_for_html_that_does_not_mean_to_be() {
    for page in book().pages() {
        let document = Document::read(page.as_ref());
        let mut is_code = false;
        for line in document.text.lines() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            if is_code || line.starts_with("    ") || line.starts_with("<!--") {
                continue;
            }
            let text: String = line.split('`').step_by(2).collect();
            let tag = text.match_indices('<').find(|(at, _)| {
                text[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            });
            let is_url = text.contains("<http");
            assert!(tag.is_none() || is_url, "{page}: {line}");
        }
    }
}
