//! Values as JSON and YAML.

use std::io::Write;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use crate::args::access::{Format, Output};
use crate::format::is_hidden;

/// Writes the value if JSON or YAML is asked for, and tells whether it was.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn write_value(
    value: &impl Serialize,
    format: Format,
    output: &mut dyn Write,
) -> Result<bool> {
    match format.chosen() {
        Some(Output::Json) => writeln!(output, "{}", json(value)?)?,
        Some(Output::Yaml) => write!(output, "{}", yaml(&serde_json::to_value(value)?))?,
        Some(Output::Wide | Output::Name) | None => return Ok(false),
    }
    Ok(true)
}

/// Writes names one a line if that is asked for, and tells whether it was.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn write_names(
    names: impl IntoIterator<Item = String>,
    format: Format,
    output: &mut dyn Write,
) -> Result<bool> {
    if format.chosen() != Some(Output::Name) {
        return Ok(false);
    }
    for name in names {
        writeln!(output, "{}", crate::format::printable(&name))?;
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
    match value {
        Value::Object(fields) if !fields.is_empty() => write_fields(fields, 0, &mut text),
        Value::Array(items) if !items.is_empty() => write_items(items, 0, &mut text),
        other => text = format!("{other}\n"),
    }
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

fn write_fields(fields: &serde_json::Map<String, Value>, indent: usize, text: &mut String) {
    for (key, value) in fields {
        *text += &" ".repeat(indent);
        *text += &if is_plain(key) { key.clone() } else { Value::from(key.as_str()).to_string() };
        *text += ":";
        write_nested(value, indent, text);
    }
}

fn write_items(items: &[Value], indent: usize, text: &mut String) {
    for item in items {
        let mut inner = String::new();
        match item {
            Value::Object(fields) if !fields.is_empty() => {
                write_fields(fields, indent + 2, &mut inner);
            }
            Value::Array(items) if !items.is_empty() => write_items(items, indent + 2, &mut inner),
            other => inner = format!("{}{other}\n", " ".repeat(indent + 2)),
        }
        *text += &" ".repeat(indent);
        *text += "- ";
        *text += inner.trim_start_matches(' ');
    }
}

/// What stands behind the colon of a field.
fn write_nested(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            *text += "\n";
            write_fields(fields, indent + 2, text);
        }
        Value::Array(items) if !items.is_empty() => {
            *text += "\n";
            write_items(items, indent, text);
        }
        other => *text += &format!(" {other}\n"),
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
