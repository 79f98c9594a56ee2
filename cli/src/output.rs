//! Values as JSON and YAML.

use std::io::Write;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::access::{Format, Output};
use crate::format::{is_hidden, printable};

/// Writes the value as JSON or YAML, or the names one a line, if that is asked for, and tells whether it was. Where
/// there are no names, [`refuse_names`] comes first.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn write_form(
    value: &impl Serialize,
    names: impl IntoIterator<Item = String>,
    format: Format,
    output: &mut dyn Write,
) -> Result<bool> {
    match format.chosen() {
        Some(Output::Json) => writeln!(output, "{}", json(value)?)?,
        Some(Output::Yaml) => write!(output, "{}", yaml(&serde_json::to_value(value)?))?,
        Some(Output::Name) => {
            for name in names {
                writeln!(output, "{}", printable(&name))?;
            }
        }
        Some(Output::Wide) | None => return Ok(false),
    }
    Ok(true)
}

/// Refuses `-o name` where nothing has a name.
///
/// # Errors
///
/// If it is asked for.
pub(crate) fn refuse_names(format: Format) -> Result<()> {
    if format.chosen() == Some(Output::Name) {
        bail!("-o name: this answer has no names of objects; -o json and -o yaml are for programs");
    }
    Ok(())
}

/// A value as JSON on several lines.
///
/// # Errors
///
/// If it has no form in JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?, in_json))
}

/// A value as JSON on one line.
pub(crate) fn json_line(value: &Value) -> String {
    escaped(&value.to_string(), in_json)
}

/// A value as YAML. Texts stand in quotes as in JSON, which YAML reads alike.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write_block(value, 0, &mut text);
    escaped(&text, in_yaml)
}

/// With escapes for what a terminal would not show as it is, and what YAML's readers refuse. Both are in texts alone,
/// which stand in quotes.
fn escaped(text: &str, escape: fn(char) -> String) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_hidden(c) {
            escaped += &escape(c);
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn in_json(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn in_yaml(c: char) -> String {
    let code = u32::from(c);
    if code > 0xffff { format!("\\U{code:08x}") } else { format!("\\u{code:04x}") }
}

/// A value whose lines all have this indent, or more.
fn write_block(value: &Value, indent: usize, text: &mut String) {
    let blanks = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let name = if is_plain(key) { key.clone() } else { json!(key).to_string() };
                let inner = match value {
                    Value::Object(fields) if !fields.is_empty() => indent + 2,
                    Value::Array(items) if !items.is_empty() => indent,
                    _ => {
                        *text += &format!("{blanks}{name}: {value}\n");
                        continue;
                    }
                };
                *text += &format!("{blanks}{name}:\n");
                write_block(value, inner, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                write_block(item, indent + 2, &mut inner);
                *text += &format!("{blanks}- {}", inner.trim_start_matches(' '));
            }
        }
        other => *text += &format!("{blanks}{other}\n"),
    }
}

/// Whether YAML reads it as a text without quotes: letters and digits behind a letter, and no word that is a value.
fn is_plain(key: &str) -> bool {
    let word = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        && !word.contains(&key.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_what_its_readers_read_as_the_same_value() {
        let value = json!({
            "a": [], "b": {}, "c": [1, "two: #", {"x": null, "y": [true, [1.5, {"z": "\n\u{1b}"}]]}],
            "on": "off", "plimsoll.dev/key": {"deep": [{"p": 1, "q": {"r": "s"}}]},
        });
        let text = yaml(&value);
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, value, "{text}");
        assert!(text.starts_with("a: []\nb: {}\nc:\n- 1\n- \"two: #\"\n- x: null\n"), "{text}");
    }

    #[test]
    fn what_a_terminal_would_not_show_is_an_escape_that_reads_as_the_same_value() {
        let value = json!({"model\u{9b}": "A10\u{7f}\u{9b}2J\u{202e}\u{e0041}\n"});
        for text in [json(&value).unwrap(), json_line(&value), yaml(&value)] {
            assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{text:?}");
            let read: Value = serde_saphyr::from_str(&text).unwrap_or_default();
            let read = serde_json::from_str(&text).unwrap_or(read);
            assert_eq!(read, value, "{text}");
        }
    }

    #[test]
    fn a_value_that_is_no_object_is_a_line() {
        assert_eq!(yaml(&json!([])), "[]\n");
        assert_eq!(yaml(&json!([1, 2])), "- 1\n- 2\n");
    }
}
