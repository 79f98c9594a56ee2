//! The commands of `plimsoll` in the documents are ones that it takes, with these flags.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::command::run;

/// What stands in a document between single backticks, and the lines of fenced blocks, those that end in `\` joined.
fn code(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, part) in text.split("```").enumerate() {
        if number % 2 == 1 {
            found.extend(part.replace("\\\n", " ").lines().skip(1).map(str::to_owned));
        } else {
            found.extend(part.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// A command line with a word in place of what the shell would compute.
fn plain(line: &str) -> String {
    let mut parts = line.split("$(");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += "x";
        plain += part.split_once(')').map_or("", |(_, after)| after);
    }
    plain.replace('"', "")
}

/// The arguments of each command, without comments and redirections.
fn commands(text: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for code in code(text) {
        for command in plain(&code).split(['#', '|', ';', '&', '>', '<']) {
            let words: Vec<&str> = command.split_whitespace().collect();
            if let ["plimsoll", arguments @ ..] | ["kubectl", "plimsoll", arguments @ ..] =
                &words[..]
            {
                let plain = arguments.iter().map(|word| word.trim_matches(['[', ']', ')', '…']));
                found.insert(plain.map(str::to_owned).collect());
            }
        }
    }
    found
}

fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// A value for a word that stands for one: a number for a single letter, as in `--size N`.
fn filled_in(word: &str) -> &str {
    match word {
        "SHELL" => "bash",
        _ if word.len() == 1 && word.chars().all(|letter| letter.is_ascii_uppercase()) => "1",
        _ => word,
    }
}

/// Whether the arguments are right as far as they go: a command that a text names may lack the value of its last flag.
fn is_taken(arguments: &[String]) -> bool {
    let with = |more: &[&str]| {
        let arguments = arguments.iter().map(|word| filled_in(word)).chain(more.iter().copied());
        run(arguments.collect::<Vec<_>>()).code == Some(0)
    };
    with(&["--help"]) || with(&["x", "--help"])
}

#[test]
fn every_command_in_the_documents_is_one_that_plimsoll_takes() {
    let (mut tried, mut wrong) = (BTreeSet::new(), Vec::new());
    for (document, text) in documents() {
        for arguments in commands(&text) {
            if tried.insert(arguments.clone()) && !is_taken(&arguments) {
                wrong.push(format!("{document}: plimsoll {}", arguments.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried.len() > 15, "{tried:?}");
}

#[test]
fn a_command_with_a_wrong_flag_or_verb_is_not_taken() {
    let text =
        "`plimsoll inspect --nod x` and\n```sh\nkubectl plimsoll explain \\\n  job a   # b\n```\n";
    let commands = commands(text);
    assert_eq!(commands.len(), 2, "{commands:?}");
    for arguments in commands {
        assert!(!is_taken(&arguments), "{arguments:?}");
    }
}
