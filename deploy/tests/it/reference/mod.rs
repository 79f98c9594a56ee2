//! The generated parts of the documents are what the code and the tables of results give. `make reference` writes them
//! anew.
//!
//! A generated table stands between two comments, of which the first has its name. The text around it is written by
//! hand, and in tables of metrics the last column.

mod flags;
mod metrics;
mod pictures;
mod schema;

use std::fs;

use crate::repository::{read, root};

pub(crate) use metrics::all_metrics;

const START: &str = "<!-- make reference writes this table: ";
const START_ENDS: &str = " -->\n";
const END: &str = "<!-- the end of the table -->";

/// The documents with generated tables.
const DOCUMENTS: [&str; 3] = ["docs/configuration.md", "docs/metrics.md", "docs/policy.md"];

/// The table of a name; `kept` is the one that the document has.
fn table(name: &str, kept: &str) -> String {
    if let Some(programs) = name.strip_prefix("flags of ") {
        flags::table(programs)
    } else if let Some(schema) = name.strip_prefix("fields of ") {
        schema::table(schema)
    } else if let Some(program) = name.strip_prefix("metrics of ") {
        metrics::table(program, kept)
    } else {
        panic!("no table `{name}`")
    }
}

/// Fails where a file is not the `fresh` text; with `PLIMSOLL_REGENERATE` writes it anew.
pub(crate) fn assert_fresh(file: &str, fresh: &str) {
    let path = root().join(file);
    if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
        fs::write(&path, fresh).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == fresh, "{file} is stale; `make reference` writes it anew");
}

/// The text with all its tables as `table` gives them.
fn renewed(text: &str, table: fn(&str, &str) -> String) -> String {
    let mut fresh = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(START) {
        let (name, after) = after.split_once(START_ENDS).expect("the name of a table");
        let (kept, after) = after.split_once(END).expect("the end of a table");
        fresh += &format!("{before}{START}{name}{START_ENDS}\n{}\n{END}", table(name, kept));
        rest = after;
    }
    fresh + rest
}

/// The three parts of each line: two words, and the rest.
fn triples(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    text.lines().map(|line| {
        let mut parts = line.splitn(3, ' ');
        let mut next = || parts.next().expect("three parts");
        (next(), next(), next())
    })
}

fn sentence(text: &str) -> String {
    format!("{}.", text.trim_end_matches('.'))
}

/// Text of the code as a cell of a table: flags, URLs and identifiers in it become code.
fn markdown(text: &str) -> String {
    let mut parts = Vec::new();
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 1 {
            parts.push(format!("`{part}`"));
        } else {
            let words: Vec<String> = part.split(' ').map(with_code).collect();
            parts.push(words.join(" "));
        }
    }
    parts.concat().replace('|', "\\|")
}

/// The word, as code if it is a flag, a URL or an identifier; punctuation around it stays outside.
fn with_code(word: &str) -> String {
    let start = word.trim_start_matches('(');
    let code = start.split('\'').next().unwrap_or_default();
    let code = code.trim_end_matches([',', '.', ':', ';', ')']);
    let is_code = code.starts_with("--")
        || code.contains("://")
        || code.contains('_')
        || code.contains("[::]");
    if is_code { word.replacen(code, &format!("`{code}`"), 1) } else { word.to_owned() }
}

#[test]
fn the_tables_of_the_documents_are_fresh() {
    for document in DOCUMENTS {
        assert_fresh(document, &renewed(&read(document), table));
    }
}
