//! `plimsoll convert`: manifests of pods that request units, as manifests of pods with resource claims.
//!
//! Invariant: a document that is not converted keeps its text. Nothing is written unless all documents can be read.

mod claims;
mod request;
mod workload;
mod yaml;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use self::workload::Converter;
use self::yaml::Yaml;
use crate::args::convert::ConvertManifests;
use crate::format::printable;
use crate::policy::read_at_most;

/// The largest file, in bytes.
const MAX_FILE: u64 = 32 << 20;

/// Writes the manifests with resource claims in place of units, and what is lost on stderr.
///
/// # Errors
///
/// If the file cannot be read, or a document cannot be converted: then nothing is written.
pub(crate) fn convert(flags: &ConvertManifests, output: &mut dyn Write) -> Result<()> {
    let text = read_at_most(&flags.file, MAX_FILE)?;
    let stdin = flags.file == Path::new("-");
    let name = if stdin { "stdin".to_owned() } else { flags.file.display().to_string() };
    let (converted, notes) = converted(&text, Converter::new(flags)).context(name)?;
    output.write_all(converted.as_bytes())?;
    output.flush()?;
    for note in notes {
        writeln!(io::stderr(), "{}", printable(&note))?;
    }
    Ok(())
}

/// The text of all documents, and what is to be said of them. One that names no units is not
/// read.
fn converted(text: &str, mut converter: Converter) -> Result<(String, Vec<String>)> {
    let mut all = String::new();
    let mut number = 1;
    for (line, source) in sources(text) {
        let above = source.lines().take_while(|line| is_empty(line)).count();
        let place = Place { number, line: line + above, object: String::new() };
        if above < source.lines().count() {
            number += 1;
        }
        if !converter.concerns(source) {
            all += source;
            continue;
        }
        let mut node = parse(source).map_err(|(at, problem)| {
            let place = Place { line: line + at, ..place.clone() };
            anyhow!("{place}: cannot be read: {problem}")
        })?;
        let Some(templates) = converter.document(&mut node, &place)? else {
            all += source;
            continue;
        };
        if source.starts_with("---") {
            all += "---\n";
        }
        for template in templates {
            all += &format!("{}---\n", template.to_yaml()?);
        }
        all += &node.to_yaml()?;
    }
    Ok((all, converter.into_notes()))
}

/// Whether a line has no content of a document.
fn is_empty(line: &str) -> bool {
    let content = line.strip_prefix("---").unwrap_or(line).trim_start();
    content.is_empty() || content.starts_with('#')
}

/// Where an object stands: in messages `document 2 (line 14), Deployment shop/web`.
#[derive(Debug, Clone)]
struct Place {
    /// From 1, without documents of comments alone.
    number: usize,
    /// The document's first line.
    line: usize,
    /// The item of a list, and the object's kind and name.
    object: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, line, object } = self;
        write!(f, "document {number} (line {line}){object}")
    }
}

/// The text of each document with the number of its first line: a line `---` begins the next one, wherever it stands.
fn sources(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut start, mut first, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---");
        if at > start && rest.is_some_and(|rest| rest.trim_start() != rest || rest.is_empty()) {
            found.push((first, &text[start..at]));
            (start, first) = (at, number + 1);
        }
        at += line.len();
    }
    if at > start {
        found.push((first, &text[start..]));
    }
    found
}

/// A document by YAML 1.1, as kubectl reads it: `0644` is octal, `yes` is true. An error has the number of lines above
/// it, and what is wrong.
fn parse(source: &str) -> Result<Yaml, (usize, String)> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(source, options).map_err(|error| {
        let line = error.location().map_or(1, |at| at.line());
        let mut options = serde_saphyr::RenderOptions::default();
        options.snippets = serde_saphyr::SnippetMode::Off;
        let text = error.render_with_options(options);
        let (message, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
        // The parser's advice is for its callers.
        let advice = [", set ", "; use "].iter().filter_map(|begin| message.find(begin)).min();
        let problem = message[..advice.unwrap_or(message.len())].to_owned();
        let remedy = match source {
            chart if chart.contains("{{") => {
                "; if this is a chart, pipe it through `helm template`"
            }
            stream if stream.contains("}\n{") => "; write a line `---` between JSON objects",
            _ => "",
        };
        (line.saturating_sub(1) as usize, problem + remedy)
    })
}

#[cfg(test)]
mod tests;
