//! Values as JSON and YAML.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::args::access::{Format, Output};

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
        Some(Output::Json) => writeln!(output, "{}", serde_json::to_string_pretty(value)?)?,
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

/// A value as YAML. Texts stand in quotes as in JSON, which YAML reads alike.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => write_fields(fields, 0, &mut text),
        Value::Array(items) if !items.is_empty() => write_items(items, 0, &mut text),
        other => text = format!("{other}\n"),
    }
    text
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
    fn a_value_that_is_no_object_is_a_line() {
        assert_eq!(yaml(&json!([])), "[]\n");
        assert_eq!(yaml(&json!([1, 2])), "- 1\n- 2\n");
    }
}
